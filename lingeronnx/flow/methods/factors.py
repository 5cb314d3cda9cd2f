"""Positive factors on tensors, moved into the weights around them: what `equalize` and `ranges` have in common.

Multiplying a tensor by f (one value, or one per channel) and dividing it out in the weights that read it changes no
real result: ``W' = W * f_out / f_in``, ``b' = b * f_out``. `apply` does that to a float graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...formats import CLIP
from ...graph import ir
from ...graph.disjoint import DisjointSets
from ..partition import Partition

__all__ = ["SCALED_BY_HOST", "Factors", "Groups", "apply", "combine", "pin_borders"]

#: Tensor name -> float64 [1] or [channels].
Factors = Mapping[str, np.ndarray]

#: Why a Mul that `host_scale` put in stays in float.
SCALED_BY_HOST = "it scales the tensor into the range of exponents that the chip holds"

_ONE = np.ones(1)


class Groups(DisjointSets):
    """Sets of tensors that share a factor, and which of them are pinned to the factor 1."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: set[str] = set()

    def pin(self, name: str) -> None:
        """Keep the factor of `name`'s group at 1."""
        self.find(name)
        self.pinned.add(name)

    def free(self, tensors: list[str]) -> bool:
        """Whether no tensor of a group is pinned."""
        return not any(name in self.pinned for name in tensors)


def pin_borders(groups: Groups, parts: Partition) -> None:
    """Pin graph inputs and outputs and everything a float node reads or writes, but for the host's own scalings.

    What layers with a common weight read and write is pinned too: a factor would give each a weight of its own.
    """
    graph = parts.graph.graph
    for value in (*graph.inputs, *graph.outputs):
        groups.pin(str(value.name))
    for node in graph:
        if parts.floats.get(str(node.name), SCALED_BY_HOST) != SCALED_BY_HOST:
            for read in (*node.inputs, *node.outputs):
                if read is not None and read.name:
                    groups.pin(str(read.name))
        elif node.op_type == "Linear" and len(ir.source(node, 1).uses()) > 1:
            groups.pin(ir.read_name(node))
            groups.pin(ir.written_name(node))


def combine(first: Factors, second: Factors) -> dict[str, np.ndarray]:
    """Return the product of two sets of factors."""
    return {name: first.get(name, _ONE) * second.get(name, _ONE) for name in {**first, **second}}


def apply(parts: Partition, factors: Factors) -> None:
    """Rewrite weights, biases and bounds of the graph in place so that every tensor is multiplied by its factor."""
    model = parts.graph
    for node, op in parts.nodes:
        f_in = factors.get(ir.read_name(node), _ONE)
        f_out = factors.get(ir.written_name(node), _ONE)
        if op.factor == "absorbed":
            if np.any(f_in != 1) or np.any(f_out != 1):
                _scale_parameters(model, node, f_in, f_out)
        elif op.format is CLIP and np.any(f_out != 1):
            _scale_bounds(model, node, float(f_out[0]))


def _scale_parameters(model: ir.Graph, node: ir.Node, f_in: np.ndarray, f_out: np.ndarray) -> None:
    if node.op_type == "BatchNormalization":
        changes = {1: f_out / f_in, 2: f_out, 3: f_in}
    else:
        weight = ir.const(node.inputs[1])
        assert weight is not None
        changes = {1: _weight_factor(weight.shape, int(ir.attr(node, "group", 1)), f_in, f_out), 2: f_out}
    for index, factor in changes.items():
        array = ir.const(node.inputs[index]) if len(node.inputs) > index else None
        if array is not None:
            ir.set_constant(model, node, index, (array * factor).astype(array.dtype), "ranged")


def _weight_factor(shape: tuple[int, ...], group: int, f_in: np.ndarray, f_out: np.ndarray) -> np.ndarray:
    """Return the factor of a weight [O, I/group, ...], broadcastable to it."""
    outputs, depth = shape[0], shape[1]
    per_input = np.broadcast_to(f_in, (depth * group,)).reshape(group, 1, depth)
    rows = np.broadcast_to(per_input, (group, outputs // group, depth)).reshape(outputs, depth)
    both = np.broadcast_to(f_out, (outputs,))[:, None] / rows
    return both.reshape(outputs, depth, *[1] * (len(shape) - 2))


def _scale_bounds(model: ir.Graph, node: ir.Node, factor: float) -> None:
    for index, name in ((1, "min"), (2, "max")):
        array = ir.const(node.inputs[index]) if len(node.inputs) > index else None
        if array is not None:
            ir.set_constant(model, node, index, (array.astype(np.float64) * factor).astype(array.dtype), "ranged")
        elif name in node.attributes:
            ir.set_attr(node, name, float(ir.attr(node, name)) * factor)
