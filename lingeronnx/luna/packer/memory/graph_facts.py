"""Facts of a prepared graph that all its memory plans and verdicts share, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from ....operators.integer_ops import (
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    GRU,
    LAYER_NORM,
    LINEAR,
    LSTM,
)
from ....targets import Target
from ...packer_profile import get_packer_profile
from ..packer_graph import PackerGraph, PackerTensor
from .constants import StoredSize, compute_stored_sizes
from .work_areas import PlacedStep, get_work_area, get_work_area_rule

__all__ = [
    "IN_PLACE_OPERATORS",
    "RESERVED_BUFFER_NAMES",
    "Activation",
    "GraphFacts",
    "PrefetchPlan",
]

#: Operators whose constants the DMA prefetches.
PREFETCHING_OPERATORS = (
    CONV1D.name,
    CONV2D.name,
    CONV_TRANSPOSE2D.name,
    LINEAR.name,
    LSTM.name,
    GRU.name,
    LAYER_NORM.name,
)
#: Tensor names that the packer confuses with its own buffers.
RESERVED_BUFFER_NAMES = ("dma_buffer1", "dma_buffer2")
#: Operators that need no bytes for the output if it is in the memory of the input.
IN_PLACE_OPERATORS = ("Reshape", "Squeeze", "Unsqueeze")

_Fact = TypeVar("_Fact")


class Activation(NamedTuple):
    """An activation: planned bytes, lifetime (first and last step, both included).

    source : the tensor whose address it has if both are in one memory; "" for none.
    """

    name: str
    size: int
    first_step: int
    last_step: int
    source: str = ""


class PrefetchPlan(NamedTuple):
    """Bytes of each DMA buffer, the buffer of each prefetching node, bytes fetched in one run."""

    buffer_bytes: Mapping[str, int]
    buffer_by_node: Mapping[str, str]
    prefetched_bytes: int


class GraphFacts:
    """What does not depend on the packer's options, computed when it is first asked for.

    Dozens of plans are made of one graph, which must not change afterwards.

    Parameters
    ----------
    net : PackerGraph
        The graph after the packer's transforms.
    target : Target
        The chip.
    """

    def __init__(self, net: PackerGraph, target: Target) -> None:
        """Compute nothing yet."""
        self.net, self.target = net, target
        self._facts: dict[Callable[[GraphFacts], Any], Any] = {}
        self._work_areas: dict[tuple[int, tuple[str | None, ...]], tuple[str, int]] = {}

    def remember(self, compute: Callable[[GraphFacts], _Fact]) -> _Fact:
        """Return `compute(self)`, computed once: a fact of another module about this graph."""
        if compute not in self._facts:
            self._facts[compute] = compute(self)
        fact: _Fact = self._facts[compute]
        return fact

    @cached_property
    def constants(self) -> list[list[PackerTensor]]:
        """For each step its constants that take memory in the package, in input order."""
        return [self.net.get_constants(step) for step in self.net.steps]

    @cached_property
    def stored_sizes(self) -> dict[str, StoredSize]:
        """Stored size of each constant that takes memory, in storage order."""
        return compute_stored_sizes(self.net, self.target)

    @cached_property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes in the package of each constant that takes memory."""
        return {name: size.written_bytes for name, size in self.stored_sizes.items()}

    @cached_property
    def activation_bytes(self) -> dict[str, int]:
        """Bytes of each activation by name, not rounded up; graph inputs first."""
        return {tensor.name: tensor.size_bytes for tensor in self.net.iterate_tensors()}

    @cached_property
    def activations(self) -> list[Activation]:
        """The activations in the packer's order.

        Graph inputs come first, then the outputs of each step, then the parts of split layers.
        Graph outputs live to the last step; a tensor named like a DMA buffer lives for the whole
        run.
        """
        net, final_step = self.net, len(self.net.steps) - 1
        last_use: dict[str, int] = {}
        for index, step in enumerate(net.steps):
            last_use.update(dict.fromkeys(step.inputs, index))
        activations = [
            Activation(name, net.tensors[name].planned_bytes, 0, last_use.get(name, 0))
            for name in net.inputs
        ]
        split_parts: list[Activation] = []
        for index, step in enumerate(net.steps):
            source = step.inputs[0] if step.op in IN_PLACE_OPERATORS else ""
            if source and net.tensors[source].is_constant:
                source = ""
            for name in step.outputs:
                last_step = final_step if name in net.outputs else last_use.get(name, index)
                size = net.tensors[name].planned_bytes
                activation = Activation(name, size, index, last_step, source)
                (split_parts if step.created_as == "part" else activations).append(activation)
        for index, activation in enumerate(activations):
            if activation.name in RESERVED_BUFFER_NAMES:  # treated as a DMA buffer
                activations[index] = activation._replace(first_step=0, last_step=final_step)
        return activations + split_parts

    @cached_property
    def prefetch(self) -> PrefetchPlan:
        """Two DMA buffers, used in turn by the steps whose constants are prefetched.

        A buffer is as large as the most bytes that one of its steps fetches.
        """
        buffer_bytes: dict[str, int] = {}
        buffer_by_node: dict[str, str] = {}
        prefetched_bytes = 0
        for step, constants in zip(self.net.steps, self.constants, strict=True):
            sizes = [self.stored_sizes[tensor.name] for tensor in constants]
            fetched_bytes = sum(size.fetched_bytes for size in sizes)
            if step.op in PREFETCHING_OPERATORS and fetched_bytes:
                buffer = f"#dma-buffer{len(buffer_by_node) % 2 + 1}"
                buffer_by_node[step.name] = buffer
                buffer_bytes[buffer] = max(buffer_bytes.get(buffer, 0), fetched_bytes)
                prefetched_bytes += sum(size.written_bytes for size in sizes)
        return PrefetchPlan(buffer_bytes, buffer_by_node, prefetched_bytes)

    def get_work_areas(self, placements: Mapping[str, str]) -> list[tuple[int, str, int]]:
        """Return (index of the step, memory, bytes) of each work area under `placements`.

        A work area is computed once for each placement of the tensors of its step.
        """
        profile = get_packer_profile(self.target)
        work_areas = []
        get_placement = placements.get
        for index, names in self._work_area_operands:
            key = index, tuple(map(get_placement, names))
            work_area = self._work_areas.get(key)
            if work_area is None:
                node = PlacedStep.from_step(self.net, self.net.steps[index], placements)
                work_area = get_work_area(node, profile)
                self._work_areas[key] = work_area
            if work_area[1] > 0:
                work_areas.append((index, *work_area))
        return work_areas

    @cached_property
    def _work_area_operands(self) -> list[tuple[int, tuple[str, ...]]]:
        """(index, names of inputs and outputs) of each step whose operator may have a work area."""
        profile = get_packer_profile(self.target)
        return [
            (index, (*step.inputs, *step.outputs))
            for index, step in enumerate(self.net.steps)
            if get_work_area_rule(step.op, profile) is not None
        ]
