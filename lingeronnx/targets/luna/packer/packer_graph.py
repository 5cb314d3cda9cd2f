"""An integer graph as the packer sees it: steps over named tensors, without Quant and Dequant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....formats import PAD
from .window import round_up

__all__ = ["PackerGraph", "PackerStep", "PackerTensor"]


@dataclass(frozen=True)
class PackerTensor:
    """A tensor: shape, bytes of one element, constant or not; the scale where it is known."""

    name: str
    shape: tuple[int, ...]
    width: int = 1
    is_constant: bool = False
    scale: float | None = None

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """What it takes, not rounded."""
        return self.elements * self.width

    @property
    def planned_bytes(self) -> int:
        """What the packer reserves for it."""
        return round_up(self.size_bytes, 16)


@dataclass(frozen=True)
class PackerStep:
    """One node.

    origin : the node of the user's graph that it comes from. made : what the packer made it as,
    "pad" in front of a convolution, "group" or "part" of one; empty for a node of the graph.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    created_as: str = ""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the caller knows the operator
        """Return attribute `name`, or `default`."""
        return self.attributes.get(name, default)

    @property
    def weight_bits(self) -> int:
        """The width that it says its weights have."""
        bits = self.attributes.get("parameter_bits")
        return bits if isinstance(bits, int) else 8

    def with_changes(self, **changes: Any) -> PackerStep:
        """Return the step with other fields."""
        return replace(self, **changes)


@dataclass
class PackerGraph:
    """Steps in order, graph inputs and outputs by name, tensors and constant arrays by name."""

    steps: list[PackerStep]
    inputs: list[str]
    outputs: list[str]
    tensors: dict[str, PackerTensor]
    arrays: dict[str, np.ndarray]
    dequantized_outputs: list[tuple[str, str, float]] = field(
        default_factory=list
    )  # (Dequant, tensor, scale_o) of what vanished

    def find_consumers(self, name: str) -> list[PackerStep]:
        """Return the steps that read a tensor."""
        return [step for step in self.steps if name in step.inputs]

    def find_producer(self, name: str) -> PackerStep | None:
        """Return the step that writes a tensor; None for graph inputs and constants."""
        return next((step for step in self.steps if name in step.outputs), None)

    def data(self, step: PackerStep) -> list[PackerTensor]:
        """Return the inputs of a step that are computed at run time."""
        return [t for t in (self.tensors[n] for n in step.inputs) if not t.is_constant]

    def get_constants(self, step: PackerStep) -> list[PackerTensor]:
        """Return the constants of a step that take memory: not shapes, positions and the like."""
        keep = STORED_CONSTANT_INPUTS.get(step.op)
        names = step.inputs if keep is None else [n for i, n in enumerate(step.inputs) if i in keep]
        return [t for t in (self.tensors[n] for n in names) if t.is_constant]

    def iterate_tensors(self) -> Iterator[PackerTensor]:
        """Yield the tensors of a run: graph inputs, then every step's outputs."""
        for name in self.inputs:
            yield self.tensors[name]
        for step in self.steps:
            for name in step.outputs:
                yield self.tensors[name]


#: The inputs of an operator that may be constants which are kept; of all others any may.
STORED_CONSTANT_INPUTS: Mapping[str, Sequence[int]] = {
    "Reshape": (),
    "Slice": (),
    "Squeeze": (),
    "Unsqueeze": (),
    PAD.name: (),
    "Resize": (),
    "Tile": (),
    "Expand": (),
    "Gather": (0,),
}
