"""Initial states of recurrent layers that are zeros are left out: absent means zero.

Exporters compute them from the batch size, with ConstantOfShape or Expand and operators that only
move data.
"""

from __future__ import annotations

from ...graph import ir, operators
from .._pass import PassResult, SkipReason

_VALUE_PRESERVING_OPS = (
    operators.PERMUTATION_OPS | operators.SELECTION_OPS | operators.REPEAT_OPS | {"Cast"}
)


def drop_zero_states(model: ir.Model) -> PassResult:
    """Drop the zero states of LSTM, GRU and RNN nodes of `model`."""
    dropped, why = 0, list[SkipReason]()
    for node in model.graph:
        if node.op_type not in operators.RECURRENT_OPS or node.domain:
            continue
        for index in (5, 6):
            if len(node.inputs) <= index or node.inputs[index] is None:
                continue
            if _is_zero(node.inputs[index]):
                node.replace_input_with(index, None)
                dropped += 1
            else:
                why.append(
                    SkipReason(
                        node, f"its state '{ir.input_name(node, index)}' is not known to be zero"
                    )
                )
    return PassResult(dropped, why)


def has_initial_state(node: ir.Node) -> bool:
    """Whether `node` is a recurrent layer of the standard with an initial state."""
    return (
        node.op_type in operators.RECURRENT_OPS
        and not node.domain
        and any(v is not None for v in node.inputs[5:7])
    )


def _is_zero(value: ir.Value | None) -> bool:
    """Whether `value` is zero throughout, whatever its shape."""
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
