"""What the mask of a Softmax is: a sum or a choice that leaves some numbers no share.

A constant mask has one form, a sum with 0 or `MASK_VALUE` (`passes.mask` writes it). A mask that is
computed at run time is a sum or a choice with numbers that only a mask has; how far down they reach
is no range for eight bits.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators

__all__ = [
    "CERTAIN_MASK_THRESHOLD",
    "LIKELY_MASK_THRESHOLD",
    "MASK_VALUE",
    "RUN_TIME_MASK_REASON",
    "is_masked_at_run_time",
    "masked_row_length",
]

#: What a constant mask adds: no share is left, and a chip's least scale, 2^-3, holds it.
MASK_VALUE = -1024.0
#: A summand from here down is a mask, whatever the others are; one from `LIKELY_MASK_THRESHOLD` down
#: is a mask where all others are 0.
CERTAIN_MASK_THRESHOLD, LIKELY_MASK_THRESHOLD = -1000.0, -50.0
#: Why a sum or a Softmax stays in float.
RUN_TIME_MASK_REASON = "its mask is computed at run time, and reaches too far down for integers"

_PASS_THROUGH_OPS = operators.PERMUTATION_OPS | operators.REPEAT_OPS | {"Cast"}
_MASK_OPS = operators.AFFINE_OPS | {"BatchNormalization", "Where"}


def masked_row_length(node: ir.Node) -> int | None:
    """Return the length of a Softmax's row where the sum `node` is its constant mask, else None."""
    after = ir.sole_consumer(node.outputs[0])
    array = next((a for a in map(ir.const_value, node.inputs) if a is not None), None)
    if (
        node.op_type != "Add"
        or after is None
        or after.op_type != "Softmax"
        or array is None
        or not array.size
    ):
        return None
    shape = ir.get_shape(node.outputs[0]) or (1,)
    mask = array.min() == MASK_VALUE and np.isin(array, (0.0, MASK_VALUE)).all()
    return int(shape[ir.get_attr(after, "axis", -1)] or 1) if mask else None


def is_masked_at_run_time(value: ir.Value | None) -> bool:
    """Whether the sum or choice that writes `value` hides numbers, and which is only known at run
    time.
    """
    node = ir.producer(value)
    if node is None or node.domain:
        return False
    if node.op_type == "Where":
        return _is_mask_like(value)
    computed = all(ir.const_value(v) is None for v in node.inputs)
    return node.op_type == "Add" and computed and any(_is_mask_like(v) for v in node.inputs)


def _is_mask_like(value: ir.Value | None) -> bool:
    """Whether arithmetic or a choice with a constant that only a mask has writes `value`, perhaps
    reshaped.
    """
    node = ir.producer(value)
    while node is not None and node.op_type in _PASS_THROUGH_OPS and not node.domain:
        node = ir.producer(node.inputs[0])
    if node is None or node.domain or node.op_type not in _MASK_OPS or node.op_type == "Div":
        return False  # a quotient by a large number is small
    arrays = [ir.const_value(v) for v in node.inputs]
    return any(
        a is not None and a.dtype.kind == "f" and a.size and a.min() <= LIKELY_MASK_THRESHOLD
        for a in arrays
    )
