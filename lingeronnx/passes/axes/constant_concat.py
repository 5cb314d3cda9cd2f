"""Constants beside a tensor, such as the class token of a transformer, are zeros around it and a sum: exact.

    Concat(c, x)  =  Pad(x) + (c, 0)

A constant that has to be there for each sample cannot stand in a Concat; chips take none at all. An
Expand of a constant along the batch is that constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import ir
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["replace_constant_concat", "rewrite_concat_as_pad_add"]


def replace_constant_concat(model: ir.Model) -> PassResult:
    """Rewrite each Concat of one tensor and constants for each sample."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        shape = (
            ir.get_shape(node.outputs[0]) if node.op_type == "Concat" and not node.domain else None
        )
        if shape is None or not shape or shape[0] is not None:
            continue
        done = rewrite_concat_as_pad_add(model, node, shape)
        changed += done
        if not done and any(ir.const_value(value) is not None for value in node.inputs):
            why.append(
                SkipReason(
                    node, "not one tensor among constants for each sample, or a size is not known"
                )
            )
    if changed:
        ir.remove_unused(model)
    return PassResult(changed, why)


def rewrite_concat_as_pad_add(model: ir.Model, node: ir.Node, shape: Sequence[int | None]) -> bool:
    """Rewrite the Concat `node`, whose output has this `shape`.

    False where it is none of a tensor and constants.
    """
    axis, sizes = ir.get_attr(node, "axis") % len(shape), [int(d or 0) for d in shape[1:]]
    constants = [_constant_part(value, len(shape)) for value in node.inputs]
    computed = [i for i, array in enumerate(constants) if array is None]
    if len(computed) != 1 or len(constants) < 2 or axis == 0 or None in shape[1:]:
        return False
    before, behind = (
        sum(array.shape[axis] for array in arrays if array is not None)
        for arrays in (constants[: computed[0]], constants[computed[0] + 1 :])
    )
    whole = [1, *sizes]
    whole[axis] -= before + behind
    full = [np.zeros(whole, np.float32) if array is None else array for array in constants]
    if (
        any(array.dtype != np.float32 for array in full)
        or len({_other_dims(array, axis) for array in full}) > 1
    ):
        return False
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, axis] = before, behind
    make, batch = SubgraphBuilder(model, node), ["N" if shape[0] is None else shape[0]]
    padded = make(
        "Pad",
        [node.inputs[computed[0]], make.constant(pads.reshape(-1), "pads")],
        [*batch, *sizes],
        "zeros",
    )
    make(
        "Add",
        [padded, make.constant(np.concatenate(full, axis), "rows")],
        [*batch, *sizes],
        "with_rows",
    )
    make.replace_node()
    return True


def _other_dims(array: np.ndarray, axis: int) -> tuple[int, ...]:
    return tuple(np.delete(array.shape, axis))


def _constant_part(value: ir.Value | None, rank: int) -> np.ndarray | None:
    """Return the constant [1, ...] of `rank` axes that `value` is, for each sample.

    None for anything else.
    """
    array, maker = ir.const_value(value), ir.producer(value)
    if array is None and maker is not None and maker.op_type == "Expand" and not maker.domain:
        array = ir.const_value(maker.inputs[0])
        shape = ir.get_shape(maker.outputs[0]) or ()
        if array is None or len(shape) != rank or array.shape[1:] != tuple(shape[1:]):
            return None
    return array if array is not None and array.ndim == rank and array.shape[0] == 1 else None
