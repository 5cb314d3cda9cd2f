"""Limits of the other operators: see `limits`."""

from __future__ import annotations

import math

import numpy as np

from .....graph import ir
from .... import Target
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


def linear_rank(node: ir.Node, target: Target) -> object:
    """a fully connected layer reads two or three axes | merge the axes before the last."""
    shape = static_shape(node.inputs[0])
    return f"{len(shape)} axes" if shape is not None and len(shape) not in (2, 3) else None


def bmm_rank(node: ir.Node, target: Target) -> object:
    """both factors of a product have two or three axes | put the heads of an attention into the
    batch.
    """
    ranks = [len(s) for s in (static_shape(v) for v in node.inputs[:2]) if s is not None]
    if is_float_node(node) or all(r in (2, 3) for r in ranks):
        return None
    return " and ".join(f"{r} axes" for r in ranks)


def broadcast_add(node: ir.Node, target: Target) -> object:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    left, right = (static_shape(v) for v in node.inputs[:2])
    if left is None or right is None or left == right:
        return None
    return f"{format_shape(left)} and {format_shape(right)}"


def broadcast_mul(node: ir.Node, target: Target) -> object:
    """the operands have the same shape, or the second is [1, C, 1, 1] | expand the smaller one."""
    left, right = (static_shape(v) for v in node.inputs[:2])
    if left is None or right is None or left == right:
        return None
    channel = len(left) == len(right) == 4 and right[1:] == (left[1], 1, 1)
    return None if channel else f"{format_shape(left)} and {format_shape(right)}"


def concat_input_count(node: ir.Node, target: Target) -> object:
    """a concatenation has two inputs or more | leave it out."""
    return f"{len(node.inputs)}" if len(node.inputs) < 2 else None


def softmax_row(node: ir.Node, target: Target) -> object:
    """rows of a softmax have at most {target.softmax_limits.max_length} elements | split the
    row.
    """
    shape = static_shape(node.inputs[0])
    if not shape or target.softmax_limits is None:
        return None
    length = shape[_softmax_axis(node) % len(shape)]
    return f"{length} elements" if length > target.softmax_limits.max_length else None


def softmax_axis(node: ir.Node, target: Target) -> object:
    """the axis of a softmax is the last, written -1, or the one behind the batch | move the axis to
    the end.
    """
    shape, axis, axes = (
        static_shape(node.inputs[0]),
        _softmax_axis(node),
        get_packer_profile(target).correct_softmax_axes,
    )
    if not shape or axes is None:
        return None
    last = is_float_node(node) and axis % len(shape) == len(shape) - 1
    return None if last or axis in axes else f"axis {axis}"


def _softmax_axis(node: ir.Node) -> int:
    axis = ir.get_attr(node, "axis")
    return int(ir.get_attr(node, "dim", -1) if axis is None else axis)


def transpose_rotation_bytes(node: ir.Node, target: Target) -> object:
    """transposes that rotate ({own.packing.transpose.rotations}) take at most
    {own.packing.transpose.max_rotation_bytes} bytes | cut the
    tensor into parts.
    """
    shape, most = (
        static_shape(node.inputs[0]),
        get_packer_profile(target).transpose.max_rotation_bytes,
    )
    if shape is None or most is None:
        return None
    rotated = (
        tuple(ir.get_attr(node, "perm") or ()) in get_packer_profile(target).transpose.rotations
    )
    need = math.prod(shape)
    return f"{need} bytes" if rotated and need > most else None


def transpose_crashing_perm(node: ir.Node, target: Target) -> object:
    """transposes are none of {own.packing.transpose.crashing_perms} | use two others in a row (the
    quantizer does).
    """
    perm = tuple(ir.get_attr(node, "perm") or ())
    if is_float_node(node):
        return None
    return f"{list(perm)}" if perm in get_packer_profile(target).transpose.crashing_perms else None


def slice_axis_count(node: ir.Node, target: Target) -> object:
    """a slice cuts one axis | use a slice for each axis."""
    axes = _get_int_list(node, "axes", 3)
    if is_float_node(node) or axes is None:
        return None
    return f"{len(axes)} axes" if len(axes) > 1 else None


def slice_step(node: ir.Node, target: Target) -> object:
    """a slice takes every element (step 1) | slice the operator before, or use a strided layer."""
    steps = _get_int_list(node, "steps", 4)
    if steps is None:
        return None
    return next((f"step {s}" for s in steps if s != 1), None)


def _get_int_list(node: ir.Node, name: str, index: int) -> list[int] | None:
    """Return the integers of attribute `name`, or of constant input `index`."""
    stated = ir.get_attr(node, name)
    array = (
        ir.const_value(node.inputs[index])
        if stated is None and len(node.inputs) > index
        else stated
    )
    return None if array is None else [int(v) for v in np.ravel(array)]
