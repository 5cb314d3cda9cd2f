"""The table of lowering rules: float operators to integer operators.

A new rule is a class in the `lowering` of its family, a line in `LOWERING_RULES` and a test.
`find_lowering_rule` finds the rule of a float node; `get_rule_for_integer_op` the rule whose limits
apply to an integer node. The integer operators are in `integer_ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

import numpy as np

from ..ir import ir
from ..targets import Target, format_limit_rule
from ._integer_op import Format
from ._lowering import Op, ScalePair, Scaling, Violation, share_no_scales
from .activation_tables.lowering.gated_activations import GatedActivation
from .activation_tables.lowering.hard_activations import HardSigmoid, HardSwish
from .activation_tables.lowering.lookup_table import LEAKY_RELU_TABLE, TABLE
from .activation_tables.lowering.sigmoid_tanh import SIGMOID, TANH
from .attention_masks import MASK_OPS, RUN_TIME_MASK_REASON, is_mask_source
from .batch_norm.lowering import BatchNorm2d, fold_batch_norm_parameters
from .clamp.lowering import Clip, LeakyRelu, Relu, is_relu_like
from .concat.lowering import Concat
from .conv.lowering import CONV2D, Conv1d, ConvTranspose2d
from .elementwise.lowering.constant_operand import AddConstant, MulConstant
from .elementwise.lowering.two_activations import Add, Mul, Sub
from .linear.lowering import LINEAR, Bmm
from .normalization.lowering.instance_norm import InstanceNorm
from .normalization.lowering.layer_norm import LayerNorm
from .normalization.lowering.softmax import LogSoftmax, Softmax
from .periodic_angles import ANGLE_OPS, ANGLE_REASON, is_angle_source
from .pool.lowering import AVERAGE, MaxPool
from .recurrent.lowering import LSTM, Gru
from .repeat_resize.lowering.pad import Pad
from .repeat_resize.lowering.repeat_resize import Expand, Resize, Tile
from .reshape.lowering import Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from .selection.lowering import Gather, Slice

__all__ = [
    "LOWERING_RULES",
    "Op",
    "ScalePair",
    "Scaling",
    "Violation",
    "add_lowering_rule",
    "find_lowering_rule",
    "is_relu_like",
    "is_table_only",
    "share_no_scales",
    "get_weight_values",
    "remove_lowering_rule",
    "get_rule_for_integer_op",
    "format_limit_rule",
    "can_lower",
    "replace_weight_values",
]

LOWERING_RULES: tuple[Op, ...] = (
    CONV2D,
    Conv1d(),
    ConvTranspose2d(),
    LINEAR,
    Bmm(),
    BatchNorm2d(),
    AddConstant(),
    MulConstant(),
    Add(),
    Sub(),
    Mul(),
    Concat(),
    AVERAGE,
    MaxPool(),
    Relu(),
    Clip(),
    LEAKY_RELU_TABLE,
    LeakyRelu(),
    SIGMOID,
    TANH,
    GatedActivation(),
    HardSigmoid(),
    HardSwish(),
    Softmax(),
    LogSoftmax(),
    LayerNorm(),
    InstanceNorm(),
    LSTM,
    Gru(),
    Reshape(),
    Flatten(),
    Squeeze(),
    Unsqueeze(),
    Transpose(),
    Slice(),
    Gather(),
    Tile(),
    Expand(),
    Pad(),
    Resize(),
    TABLE,
)

#: Without compositions, whose name is not that of their integer operator.
_RULES_BY_INTEGER_OP = {op.integer_op: op for op in LOWERING_RULES if not op.composition_name}
_RULES_BY_FLOAT_OP: dict[tuple[str, str], list[Op]] = {}
for _op in LOWERING_RULES:
    for _key in _op.floats:
        _RULES_BY_FLOAT_OP.setdefault(_key, []).append(_op)


class _HostCondition(NamedTuple):
    """A condition under which nodes of `op_types` stay in float, although a rule lowers them."""

    op_types: Set[str]
    holds: Callable[[ir.Node], bool]
    reason: str


_HOST_CONDITIONS = (
    _HostCondition(MASK_OPS, is_mask_source, RUN_TIME_MASK_REASON),
    _HostCondition(ANGLE_OPS, is_angle_source, ANGLE_REASON),
)


def find_lowering_rule(node: ir.Node, target: Target) -> tuple[Op | None, str]:
    """Find the rule that lowers the float `node` on `target`.

    Rules match if they do not reject the node. Of several, the first that the target has
    (`is_available`) and whose limits the node keeps is selected, else the first that the target
    has, else the first. The caller must therefore still test `is_available` and `find_violations`.

    Returns
    -------
    rule : Op or None
        None if no rule matches on any platform.
    reason : str
        Why there is no rule; empty if there is one.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    op_type = ir.base_op_type(node)
    candidates = _RULES_BY_FLOAT_OP.get((domain, op_type), [])
    if not candidates:
        return None, f"{node.op_type} has no integer form"
    for condition in _HOST_CONDITIONS:
        if op_type in condition.op_types and condition.holds(node):
            return None, condition.reason
    reasons = [op.explain_rejection(node) for op in candidates]
    matching = [op for op, reason in zip(candidates, reasons, strict=True) if reason is None]
    if not matching:
        return None, str(reasons[0])
    available = [op for op in matching if op.is_available(target)]
    if len(available) > 1:
        within_limits = [op for op in available if not op.find_violations(node, target)]
        available = within_limits or available
    return (available or matching)[0], ""


def can_lower(node: ir.Node, target: Target) -> bool:
    """Whether `target` can compute the float `node` in integers, within its limits.

    There must be a lowering rule that accepts the node, the target must have its operators, and no
    limit may be violated.
    """
    op, _ = find_lowering_rule(node, target)
    return op is not None and op.is_available(target) and not op.find_violations(node, target)


def is_table_only(op_type: str) -> bool:
    """Whether a lookup table is the only lowering rule of the standard unary operator `op_type`."""
    return _RULES_BY_FLOAT_OP.get(("", op_type)) == [TABLE]


def add_lowering_rule(op: Op) -> None:
    """Register the lowering rule `op`, after the existing ones for its float operators.

    Unless it is a composition of several integer operators, it also becomes the rule of its integer
    operator.
    """
    if not op.composition_name:
        _RULES_BY_INTEGER_OP[op.integer_op] = op
    for key in op.floats:
        _RULES_BY_FLOAT_OP.setdefault(key, []).append(op)


def remove_lowering_rule(op: Op) -> None:
    """Remove `op` from both tables of rules, in place; undoes `add_lowering_rule`.

    Only the object `op` itself is removed, not a rule that is equal to it; does nothing if it is
    not registered.
    """
    if _RULES_BY_INTEGER_OP.get(op.integer_op) is op:
        del _RULES_BY_INTEGER_OP[op.integer_op]
    for key in op.floats:
        rules = _RULES_BY_FLOAT_OP.get(key, [])
        _RULES_BY_FLOAT_OP[key] = [rule for rule in rules if rule is not op]


def get_rule_for_integer_op(form: Format) -> Op | None:
    """Return the lowering rule that emits the integer operator `form`.

    None if the quantizer never emits it, or only within a composition.
    """
    return _RULES_BY_INTEGER_OP.get(form)


def get_weight_values(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the real values of the weight, input `index` of `node`, or None if it is not constant.

    Those of a float BatchNormalization are its folded factors gamma / sqrt(var + eps), whatever the
    index.
    """
    if node.op_type == "BatchNormalization" and not node.domain:
        folded = fold_batch_norm_parameters(node)
        return None if folded is None else folded[0]
    return ir.const_value(node.inputs[index])


def replace_weight_values(node: ir.Node, index: int, values: np.ndarray) -> dict[int, np.ndarray]:
    """Return new arrays, by input index, that set the weight, input `index` of `node`, to `values`.

    The node itself is not changed. For a float BatchNormalization, `values` are the wanted factors
    gamma / sqrt(var + eps), and gamma (1) and beta (2) are returned, such that the offset is kept.
    The arrays have the dtype of the old ones.
    """
    old = ir.require_const_value(node.inputs[index])
    if node.op_type != "BatchNormalization" or node.domain:
        return {index: values.astype(old.dtype)}
    folded = fold_batch_norm_parameters(node)
    assert folded is not None
    beta, mean, var = (np.asarray(ir.const_value(value), np.float64) for value in node.inputs[2:5])
    gamma = values * np.sqrt(var + ir.get_attr(node, "epsilon", 1e-5))
    return {1: gamma.astype(old.dtype), 2: (beta + mean * (values - folded[0])).astype(old.dtype)}
