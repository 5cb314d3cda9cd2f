"""Limits of other operators: None if the node is within the limit, else a text with the value.

The docstring of each limit is the rule that users read; see `limit_tables`.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....targets import Target
from ...packer_profile import get_packer_profile
from ..window import format_shape, is_float_node, static_shape

__all__ = [
    "linear_rank",
    "bmm_rank",
    "broadcast_add",
    "broadcast_mul",
    "concat_input_count",
    "softmax_row",
    "softmax_axis",
    "transpose_rotation_bytes",
    "transpose_crashing_perm",
    "slice_axis_count",
    "slice_step",
]


def linear_rank(node: ir.Node, target: Target) -> str | None:
    """fully connected layers require a rank-2 or rank-3 input | merge the leading axes."""
    shape = static_shape(node.inputs[0])
    return f"{len(shape)} axes" if shape is not None and len(shape) not in (2, 3) else None


def bmm_rank(node: ir.Node, target: Target) -> str | None:
    """both matmul operands must have rank 2 or 3 | fold the attention heads into the batch axis."""
    shapes = [static_shape(value) for value in node.inputs[:2]]
    ranks = [len(shape) for shape in shapes if shape is not None]
    if is_float_node(node) or all(rank in (2, 3) for rank in ranks):
        return None
    return " and ".join(f"{rank} axes" for rank in ranks)


def broadcast_add(node: ir.Node, target: Target) -> str | None:
    """both operands must have the same shape | expand the smaller one, or fold it into a layer."""
    left, right = (static_shape(v) for v in node.inputs[:2])
    if left is None or right is None or left == right:
        return None
    return f"{format_shape(left)} and {format_shape(right)}"


def broadcast_mul(node: ir.Node, target: Target) -> str | None:
    """the operands must have the same shape, or the second must be [1, C, 1, 1] | expand the
    smaller one.
    """
    left, right = (static_shape(v) for v in node.inputs[:2])
    if left is None or right is None or left == right:
        return None
    is_per_channel = len(left) == len(right) == 4 and right[1:] == (left[1], 1, 1)
    return None if is_per_channel else f"{format_shape(left)} and {format_shape(right)}"


def concat_input_count(node: ir.Node, target: Target) -> str | None:
    """Concat requires at least two inputs | remove the node."""
    return f"{len(node.inputs)}" if len(node.inputs) < 2 else None


def softmax_row(node: ir.Node, target: Target) -> str | None:
    """softmax rows must not have more than {target.softmax_limits.max_length} elements | split the
    row.
    """
    shape = static_shape(node.inputs[0])
    if not shape or target.softmax_limits is None:
        return None
    length = shape[_get_softmax_axis(node) % len(shape)]
    return f"{length} elements" if length > target.softmax_limits.max_length else None


def softmax_axis(node: ir.Node, target: Target) -> str | None:
    """the softmax axis must be the last, written as -1, or the one after the batch | move the axis
    to the end.
    """
    shape, axis = static_shape(node.inputs[0]), _get_softmax_axis(node)
    correct_axes = get_packer_profile(target).correct_softmax_axes
    if not shape or correct_axes is None:
        return None
    is_last_of_float = is_float_node(node) and axis % len(shape) == len(shape) - 1
    return None if is_last_of_float or axis in correct_axes else f"axis {axis}"


def _get_softmax_axis(node: ir.Node) -> int:
    """Return the attribute `axis` of a softmax, or else `dim`, or else -1; it may be negative."""
    axis = ir.get_attr(node, "axis")
    return int(ir.get_attr(node, "dim", -1) if axis is None else axis)


def transpose_rotation_bytes(node: ir.Node, target: Target) -> str | None:
    """a Transpose with a perm of {own.packing.transpose.rotations} must not have more than
    {own.packing.transpose.max_rotation_bytes} bytes | split the tensor.
    """
    shape, limits = static_shape(node.inputs[0]), get_packer_profile(target).transpose
    if shape is None or limits.max_rotation_bytes is None:
        return None
    required_bytes = math.prod(shape)
    is_rotation = tuple(ir.get_attr(node, "perm") or ()) in limits.rotations
    exceeds = is_rotation and required_bytes > limits.max_rotation_bytes
    return f"{required_bytes} bytes" if exceeds else None


def transpose_crashing_perm(node: ir.Node, target: Target) -> str | None:
    """the perm of a Transpose must not be one of {own.packing.transpose.crashing_perms} | use two
    other transposes in a row (the quantizer does).
    """
    perm = tuple(ir.get_attr(node, "perm") or ())
    if is_float_node(node):
        return None
    return f"{list(perm)}" if perm in get_packer_profile(target).transpose.crashing_perms else None


def slice_axis_count(node: ir.Node, target: Target) -> str | None:
    """Slice supports one axis per node | use one Slice per axis."""
    axes = _get_int_list(node, "axes", 3)
    if is_float_node(node) or axes is None:
        return None
    return f"{len(axes)} axes" if len(axes) > 1 else None


def slice_step(node: ir.Node, target: Target) -> str | None:
    """Slice supports step 1 only | slice earlier in the graph or use a strided layer."""
    steps = _get_int_list(node, "steps", 4)
    if steps is None:
        return None
    return next((f"step {s}" for s in steps if s != 1), None)


def _get_int_list(node: ir.Node, name: str, index: int) -> list[int] | None:
    """Return attribute `name`, or else constant input `index`, as a flat list of integers.

    None if the node has neither.
    """
    values = ir.get_attr(node, name)
    if values is None and len(node.inputs) > index:
        values = ir.const_value(node.inputs[index])
    return None if values is None else [int(value) for value in np.ravel(values)]
