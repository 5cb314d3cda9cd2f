"""Recognize the masks of a Softmax: sums or selections that give some elements no weight.

A constant mask is a sum with 0 or `MASK_VALUE`; a pass converts masks to this form. A mask that is
computed at run time is a sum or selection with large negative values, whose range does not fit 8
bits.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..ir import float_ops, ir

__all__ = [
    "CERTAIN_MASK_THRESHOLD",
    "LIKELY_MASK_THRESHOLD",
    "MASK_OPS",
    "MASK_VALUE",
    "RUN_TIME_MASK_REASON",
    "find_masked_nodes",
    "is_mask_array",
    "is_mask_source",
    "is_masked_at_run_time",
    "masked_row_length",
]

#: Summand of masked elements in a constant mask; the smallest scale of a chip, 2^-3, can store it.
MASK_VALUE = -1024.0
#: A summand of at most CERTAIN_MASK_THRESHOLD is a mask; one of at most LIKELY_MASK_THRESHOLD is a
#: mask if all others are 0.
CERTAIN_MASK_THRESHOLD, LIKELY_MASK_THRESHOLD = -1000.0, -50.0
#: Why a sum or a Softmax stays in float.
RUN_TIME_MASK_REASON = "its mask is computed at run time, and reaches too far down for integers"

_PASS_THROUGH_OPS = float_ops.PERMUTATION_OPS | float_ops.REPEAT_OPS | {"Cast"}
#: Operators that may compute the values of a mask.
MASK_OPS = float_ops.AFFINE_OPS | {"BatchNormalization", "Where"}


def masked_row_length(node: ir.Node) -> int | None:
    """Return the row length of the Softmax whose constant mask `node` adds, else None.

    `node` must be an Add with a constant of only 0 and MASK_VALUE (at least one), whose only
    consumer is the Softmax; an unknown length is 1.
    """
    softmax = ir.sole_consumer(node.outputs[0])
    if node.op_type != "Add" or softmax is None or softmax.op_type != "Softmax":
        return None
    constants = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
    if not constants or not constants[0].size:
        return None
    mask = constants[0]
    if mask.min() != MASK_VALUE or not np.isin(mask, (0.0, MASK_VALUE)).all():
        return None
    shape = ir.get_shape(node.outputs[0]) or (1,)
    return int(shape[ir.get_attr(softmax, "axis", -1)] or 1)


def is_masked_at_run_time(value: ir.Value | None) -> bool:
    """Whether `value` is masked by a sum or selection whose mask is computed at run time.

    True if its producer is an Add without constants one of whose inputs results from a large
    negative constant, or a Where with such a constant.
    """
    node = ir.producer(value)
    if node is None or node.domain:
        return False
    if node.op_type == "Where":
        return _is_mask_like(value)
    computed = all(ir.const_value(v) is None for v in node.inputs)
    return node.op_type == "Add" and computed and any(_is_mask_like(v) for v in node.inputs)


def is_mask_source(node: ir.Node) -> bool:
    """Whether `node` computes large negative values that only sums masked at run time read.

    These sums stay in float, and values such as the lowest float fit no integers: only arithmetic
    with a constant of at most `CERTAIN_MASK_THRESHOLD` counts.
    """
    if node.domain or node.op_type not in MASK_OPS or node.op_type == "Div":
        return False
    arrays = [ir.const_value(value) for value in node.inputs]
    is_far_down = any(
        array is not None
        and array.dtype.kind == "f"
        and array.min(initial=0) <= CERTAIN_MASK_THRESHOLD
        for array in arrays
    )
    return is_far_down and _feeds_only_masked_sums(node.outputs[0])


def _feeds_only_masked_sums(value: ir.Value) -> bool:
    """Whether all consumers of `value`, of which there must be some, are sums masked at run time.

    Permutations, repetitions and casts may lie between.
    """
    uses = list(value.uses())
    if not uses or value.is_graph_output():
        return False
    for use in uses:
        result = use.node.outputs[0]
        if use.node.op_type in _PASS_THROUGH_OPS and not use.node.domain:
            if not _feeds_only_masked_sums(result):
                return False
        elif use.node.op_type != "Add" or not is_masked_at_run_time(result):
            return False
    return True


def is_mask_array(array: np.ndarray) -> bool:
    """Whether an array is a mask to add: 0 and large negative numbers, or far below the scores."""
    if array.dtype.kind != "f" or not array.size:
        return False
    lowest = float(array.min())
    if lowest <= CERTAIN_MASK_THRESHOLD:
        return True
    return lowest <= LIKELY_MASK_THRESHOLD and bool(
        ((array == 0) | (array <= LIKELY_MASK_THRESHOLD)).all()
    )


def find_masked_nodes(model: ir.Model, mask_inputs: Collection[str]) -> set[str]:
    """Return the names of each Add of a mask from `mask_inputs`, and of the Softmax behind it.

    `mask_inputs` are names of graph inputs; permutations, repetitions and casts may lie between.
    """
    names: set[str] = set()
    for softmax in model.graph:
        if not ir.is_standard_op(softmax, "Softmax"):
            continue
        add = ir.producer(softmax.inputs[0])
        if not ir.is_standard_op(add, "Add"):
            continue
        sources = {_find_source(value).name for value in add.inputs if value is not None}
        if not sources.isdisjoint(mask_inputs):
            names |= {str(add.name), str(softmax.name)}
    return names


def _find_source(value: ir.Value) -> ir.Value:
    """Return the tensor that permutations, repetitions and casts compute `value` from."""
    node = ir.producer(value)
    while node is not None and node.op_type in _PASS_THROUGH_OPS and not node.domain:
        value = ir.require_input(node)
        node = ir.producer(value)
    return value


def _is_mask_like(value: ir.Value | None) -> bool:
    """Whether `value` results from a large negative constant, possibly reshaped afterwards.

    Permutations, repetitions and casts above it are skipped. The next node must be arithmetic other
    than a division, BatchNormalization or Where, with a constant input of at most
    `LIKELY_MASK_THRESHOLD`.
    """
    node = None if value is None else ir.producer(_find_source(value))
    if node is None or node.domain or node.op_type not in MASK_OPS:
        return False
    if node.op_type == "Div":
        return False  # a quotient by a large number is small
    return any(_has_mask_value(ir.const_value(value)) for value in node.inputs)


def _has_mask_value(array: np.ndarray | None) -> bool:
    """Whether `array` is float and has an element of at most `LIKELY_MASK_THRESHOLD`."""
    if array is None or array.dtype.kind != "f" or not array.size:
        return False
    return bool(array.min() <= LIKELY_MASK_THRESHOLD)
