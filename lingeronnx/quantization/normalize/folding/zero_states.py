"""Remove initial states of recurrent layers that are zero: an absent state is zero.

Exporters compute them from the batch size, with ConstantOfShape or Expand and data movement.
"""

from __future__ import annotations

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason

_VALUE_PRESERVING_OPS = (
    float_ops.PERMUTATION_OPS | float_ops.SELECTION_OPS | float_ops.REPEAT_OPS | {"Cast"}
)


def drop_zero_states(model: ir.Model) -> PassResult:
    """Remove initial states (inputs 5, 6) that are zero of LSTM, GRU and RNN nodes, in place.

    An absent state is zero. States that are not known to be zero are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in model.graph:
        if node.op_type not in float_ops.RECURRENT_OPS or node.domain:
            continue
        for index in (5, 6):
            if len(node.inputs) <= index or node.inputs[index] is None:
                continue
            if _is_zero(node.inputs[index]):
                node.replace_input_with(index, None)
                changes += 1
            else:
                reason = f"its state '{ir.input_name(node, index)}' is not known to be zero"
                skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def has_initial_state(node: ir.Node) -> bool:
    """Whether `node` is an LSTM, GRU or RNN with an initial state or cell (input 5 or 6)."""
    if node.op_type not in float_ops.RECURRENT_OPS or node.domain:
        return False
    return any(value is not None for value in node.inputs[5:7])


def _is_zero(value: ir.Value | None) -> bool:
    """Whether `value` is known to be zero throughout, whatever its shape.

    It is a constant or ConstantOfShape of zeros, or such values concatenated, moved, selected,
    repeated or cast.
    """
    array = ir.const_value(value)
    if array is not None:
        return not array.any()
    node = ir.producer(value)
    if node is None or node.domain:
        return False
    if node.op_type == "ConstantOfShape":
        constant = ir.get_attr(node, "value")
        return constant is None or not constant.any()
    if node.op_type == "Concat":
        return all(_is_zero(v) for v in node.inputs)
    return node.op_type in _VALUE_PRESERVING_OPS and _is_zero(node.inputs[0])
