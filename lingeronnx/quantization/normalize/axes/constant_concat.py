"""Replace the concatenation of a tensor with constants by padding and a sum.

    Concat(c, x)  =  Pad(x) + (c, 0)

This is exact; an example is the class token of a transformer. A constant would have to be repeated
for each sample in a Concat, and platforms do not support constants there. An Expand of a constant
along the batch counts as that constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["replace_concat_with_constants", "rewrite_concat_as_pad_add"]


def replace_concat_with_constants(model: ir.Model) -> PassResult:
    """Rewrite each Concat of one computed tensor and constants of batch size 1 as Pad and Add.

    In place. Only those whose batch size is unknown are rewritten; other ones with a constant are
    skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Concat" or node.domain:
            continue
        shape = ir.get_shape(node.outputs[0])
        if not shape or shape[0] is not None:
            continue
        if rewrite_concat_as_pad_add(model, node, shape):
            changes += 1
        elif any(ir.const_value(value) is not None for value in node.inputs):
            reason = (
                "it is not one computed tensor and constants of batch size 1, or a size is unknown"
            )
            skipped.append(SkipReason(node, reason))
    if changes:
        ir.remove_unused(model)
    return PassResult(changes, skipped)


def rewrite_concat_as_pad_add(model: ir.Model, node: ir.Node, shape: Sequence[int | None]) -> bool:
    """Rewrite the Concat `node`, whose output has this `shape`, as Pad and Add; return True.

    Returns False, without a change, unless exactly one operand is computed and the others are
    float32 constants with axis 0 of size 1, along another axis than 0 and with known sizes.
    """
    axis, sizes = ir.get_attr(node, "axis") % len(shape), [dim or 0 for dim in shape[1:]]
    constants = [_constant_part(value, len(shape)) for value in node.inputs]
    computed = [index for index, array in enumerate(constants) if array is None]
    if len(computed) != 1 or len(constants) < 2 or axis == 0 or None in shape[1:]:
        return False
    size_before = _total_size(constants[: computed[0]], axis)
    size_after = _total_size(constants[computed[0] + 1 :], axis)
    zero_shape = [1, *sizes]
    zero_shape[axis] -= size_before + size_after
    bias = _concatenate_constants(constants, np.zeros(zero_shape, np.float32), axis)
    if bias is None:
        return False
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = size_before, size_after
    build = SubgraphBuilder(model, node)
    result_shape = ["N" if shape[0] is None else shape[0], *sizes]
    padded = build(
        "Pad",
        [node.inputs[computed[0]], build.constant(pads.reshape(-1), "pads")],
        result_shape,
        "zeros",
    )
    build("Add", [padded, build.constant(bias, "rows")], result_shape, "with_rows")
    build.replace_node()
    return True


def _concatenate_constants(
    constants: Sequence[np.ndarray | None], zeros: np.ndarray, axis: int
) -> np.ndarray | None:
    """Concatenate `constants` along `axis`, with `zeros` in the place of each None.

    None if one is not float32 or if their dimensions other than `axis` differ.
    """
    arrays = [zeros if array is None else array for array in constants]
    if any(array.dtype != np.float32 for array in arrays):
        return None
    if len({_other_dims(array, axis) for array in arrays}) > 1:
        return None
    return np.concatenate(arrays, axis)


def _total_size(arrays: Sequence[np.ndarray | None], axis: int) -> int:
    """Return the sum of the sizes of `arrays` along `axis`; None entries count as 0."""
    return sum(array.shape[axis] for array in arrays if array is not None)


def _other_dims(array: np.ndarray, axis: int) -> tuple[int, ...]:
    """Return the dimensions of `array` without that of `axis`."""
    return tuple(np.delete(array.shape, axis))


def _constant_part(value: ir.Value | None, rank: int) -> np.ndarray | None:
    """Return the constant array of a Concat operand with `rank` axes and size 1 on axis 0, or None.

    An Expand of such a constant along axis 0 only counts too; its unexpanded array is returned.
    None for computed operands and other shapes.
    """
    array = ir.const_value(value)
    if array is None:
        array = _expanded_constant(ir.producer(value), rank)
    if array is None or array.ndim != rank or array.shape[0] != 1:
        return None
    return array


def _expanded_constant(node: ir.Node | None, rank: int) -> np.ndarray | None:
    """Return the constant input of `node` if it is an Expand that changes axis 0 only, else None.

    The result must have `rank` axes, and all dimensions after axis 0 must equal those of the
    constant.
    """
    if node is None or node.op_type != "Expand" or node.domain:
        return None
    array = ir.const_value(node.inputs[0])
    shape = ir.get_shape(node.outputs[0]) or ()
    if array is None or len(shape) != rank or array.shape[1:] != tuple(shape[1:]):
        return None
    return array
