"""An integer graph as the packer sees it: steps over named tensors, without Quant and Dequant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...common.arithmetic import round_up
from ...ir.float_ops import keeps_element_order
from ...operators.integer_ops import CONV1D, CONV2D, PAD

__all__ = ["PackerGraph", "PackerStep", "PackerTensor", "map_producers"]


@dataclass(frozen=True)
class PackerTensor:
    """A tensor of the packer's graph.

    `width` is the size of one element in bytes. `scale` is None if it is not known.
    """

    name: str
    shape: tuple[int, ...]
    width: int = 1
    is_constant: bool = False
    scale: float | None = None

    @property
    def elements(self) -> int:
        """The number of elements, the product of `shape`."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The size in bytes, elements times `width`, not rounded up."""
        return self.elements * self.width

    @property
    def planned_bytes(self) -> int:
        """The bytes that the packer reserves for the tensor: its size rounded up to 16."""
        return round_up(self.size_bytes, 16)


@dataclass(frozen=True)
class PackerStep:
    """One node of the packer's graph.

    origin : name of the node of the user's graph that the step comes from.
    created_as : why the packer created the step: "pad" in front of a convolution, "group" or "part"
    of a split layer; empty for a node of the user's graph.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    created_as: str = ""

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - the caller knows the operator
        """Return the value of attribute `name`, or `default` if the step does not have it."""
        return self.attributes.get(name, default)

    @property
    def weight_bits(self) -> int:
        """The declared width of the weights in bits.

        8 if `parameter_bits` is absent or no integer.
        """
        bits = self.attributes.get("parameter_bits")
        return bits if isinstance(bits, int) else 8

    def with_changes(self, **changes: Any) -> PackerStep:
        """Return a copy of the step with the given fields replaced."""
        return replace(self, **changes)


@dataclass
class PackerGraph:
    """Steps in execution order, names of graph inputs and outputs, tensors and constants by name.

    dequantized_outputs : (Dequant node, its input tensor, its scale_o) of each removed Dequant.
    follow_batch_first : recurrent operators whose axes are those that batch_first says.
    """

    steps: list[PackerStep]
    inputs: list[str]
    outputs: list[str]
    tensors: dict[str, PackerTensor]
    arrays: dict[str, np.ndarray]
    dequantized_outputs: list[tuple[str, str, float]] = field(default_factory=list)
    follow_batch_first: tuple[str, ...] = ()

    def find_consumers(self, name: str) -> list[PackerStep]:
        """Return the steps that have tensor `name` as an input, in execution order."""
        return [step for step in self.steps if name in step.inputs]

    def find_producer(self, name: str) -> PackerStep | None:
        """Return the step that writes tensor `name`, or None for graph inputs and constants."""
        return next((step for step in self.steps if name in step.outputs), None)

    def data(self, step: PackerStep) -> list[PackerTensor]:
        """Return the input tensors of `step` that are not constants, in input order."""
        inputs = [self.tensors[name] for name in step.inputs]
        return [tensor for tensor in inputs if not tensor.is_constant]

    def get_constants(self, step: PackerStep) -> list[PackerTensor]:
        """Return the constants of `step` that take memory in the package, in input order.

        Shapes, axes, pads, indices and the like, which the packer reads itself, are left out.
        """
        stored_indices = STORED_CONSTANT_INPUTS.get(step.op)
        names: Sequence[str] = step.inputs
        if stored_indices is not None:
            names = [name for index, name in enumerate(step.inputs) if index in stored_indices]
        tensors = [self.tensors[name] for name in names]
        return [tensor for tensor in tensors if tensor.is_constant]

    def get_split_groups(self, step: PackerStep) -> int:
        """Return the groups into which the packer splits a convolution; 0 for other steps.

        A depthwise convolution is not split.
        """
        if step.op not in (CONV1D.name, CONV2D.name):
            return 0
        group = int(step.get("group", 1))
        return 0 if group in (1, self.tensors[step.inputs[1]].shape[0]) else group

    def is_reshape(self, step: PackerStep) -> bool:
        """Whether the packer treats a step as a Reshape: also a Transpose of axes of length 1."""
        if step.op != "Transpose":
            return step.op == "Reshape"
        return keeps_element_order(step.get("perm"), self.tensors[step.inputs[0]].shape)

    def iterate_tensors(self) -> Iterator[PackerTensor]:
        """Yield the graph inputs, then the outputs of each step in execution order."""
        for name in self.inputs:
            yield self.tensors[name]
        for step in self.steps:
            for name in step.outputs:
                yield self.tensors[name]


def map_producers(steps: Iterable[PackerStep]) -> dict[str, PackerStep]:
    """Map each output name of `steps` to the step that writes it."""
    return {name: step for step in steps for name in step.outputs}


#: Operator -> indices of the inputs that are stored if they are constants. An operator that is not
#: listed stores all its constants.
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
