"""Find scalar inputs next to the data, such as a threshold, and suggest values for them.

Suggestions follow from the graph: the constants that the scalar is compared with, or the value with
which it has no effect. The user may choose another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ....ir import float_ops, ir

__all__ = ["find_scalar_inputs", "format_fix_option", "format_fix_suggestion", "suggest_value"]

_PASS_THROUGH_OPS = float_ops.IDENTITY_OPS | float_ops.RESHAPING_OPS | {"Cast", "Expand"}
_FORWARDING_OPS = _PASS_THROUGH_OPS | {"Gather"}
_SELECTING_OPS = {
    op_type
    for op_type, reduction in {**float_ops.POOL_KINDS, **float_ops.REDUCTION_KINDS}.items()
    if reduction in ("max", "min")
}
_VALUE_PRESERVING_OPS = (
    _PASS_THROUGH_OPS | float_ops.DATA_MOVEMENT_OPS | _SELECTING_OPS | {"Max", "TopK"}
)
_PROBABILITY_OPS = ("Sigmoid", "Softmax")
_IDENTITY_OPERANDS: Mapping[tuple[str, int], float] = {
    **{(op_type, 1): operand for op_type, operand in float_ops.IDENTITY_OPERANDS.items()},
    **{(op_type, 0): float_ops.IDENTITY_OPERANDS[op_type] for op_type in ("Add", "Mul")},
}
_NO_EFFECT_REASON = "this value has no effect"
_UNUSED_REASON = "it is multiplied by 0, so that any number will do"
_AT_LEAST, _AT_MOST = "at least", "at most"
#: (operator, index of the scalar) -> how it compares with the data if every element passes.
_COMPARISON_SIDES: Mapping[tuple[str, int], str] = {
    ("Greater", 1): _AT_LEAST,
    ("GreaterOrEqual", 1): _AT_LEAST,
    ("Less", 0): _AT_LEAST,
    ("LessOrEqual", 0): _AT_LEAST,
    ("Greater", 0): _AT_MOST,
    ("GreaterOrEqual", 0): _AT_MOST,
    ("Less", 1): _AT_MOST,
    ("LessOrEqual", 1): _AT_MOST,
}
_NMS_DEFAULTS: Mapping[int, tuple[float, str]] = {
    2: (100, "maximum number of boxes"),
    3: (0.5, "boxes that overlap by more are merged"),
    4: (0.25, "boxes with lower scores are ignored"),
}


def find_scalar_inputs(model: ir.Model) -> list[str]:
    """Return the names of the graph inputs of shape [] or [1] that are not initializers."""
    return [
        str(value.name)
        for value in model.graph.inputs
        if value.const_value is None and ir.get_shape(value) in ((), (1,))
    ]


def format_fix_suggestion(model: ir.Model, names: Sequence[str]) -> str:
    """Format the suggestion to fix the scalar inputs `names`, which have no data.

    Contains the options to paste, and the reasons for the values.
    """
    values = {str(value.name): value for value in model.graph.inputs}
    options, names_by_reason = [], dict[str, list[str]]()
    for name in names:
        options.append(format_fix_option(values[name]))
        reason = _choose_suggestion(values[name]).reason
        names_by_reason.setdefault(reason, []).append(name)
    subject = f"is {names[0]} a setting, one number"
    if len(names) != 1:
        subject = f"are {', '.join(names)} settings, one number each"
    reasons = [f"{', '.join(group)}: {reason}" for reason, group in names_by_reason.items()]
    return f"{subject} for all samples? then fix it with {' '.join(options)} ({'; '.join(reasons)})"


def format_fix_option(value: ir.Value) -> str:
    """Return ``--fix NAME=NUMBER`` for the scalar input `value`, with the suggested number.

    "VALUE" stands for the number if there is no suggestion.
    """
    number = suggest_value(value)
    return f"--fix {value.name}={'VALUE' if number is None else _format_number(number)}"


def suggest_value(value: ir.Value) -> float | None:
    """Return the suggested value of the scalar input `value`, or None if there is none."""
    return _choose_suggestion(value).number


class _Suggestion(NamedTuple):
    """A suggested number for a scalar input of the model, or None, and the reason for it."""

    number: float | None
    reason: str


def _choose_suggestion(value: ir.Value) -> _Suggestion:
    """Choose a value for the scalar input `value` from how its consumers use it, with a reason.

    The first suggestion counts; one without effect only if there is no other. An integer input
    takes whole numbers only. If there is none, the number is None and the reason "number" or "whole
    number".
    """
    is_integer = value.dtype is not None and np.dtype(value.dtype.numpy()).kind in "iub"
    fallback = _Suggestion(None, "whole number" if is_integer else "number")
    no_effect = None
    for number, reason in _iter_suggestions(value):
        if is_integer and number != int(number):
            continue
        if reason not in (_NO_EFFECT_REASON, _UNUSED_REASON):
            return _Suggestion(number, reason)
        no_effect = no_effect or _Suggestion(number, reason)
    return no_effect or fallback


def _format_number(number: float) -> str:
    """Format a whole number without a decimal point, another one with the digits of float32."""
    return str(int(number)) if number == int(number) else f"{np.float32(number)}"


def _iter_suggestions(value: ir.Value) -> Iterator[tuple[float, str]]:
    """Yield (number, reason) for fixing the scalar `value`, from its consumers in order.

    The number is a bound that all constants pass, a number that Equal compares with, a neutral
    operand, a default of NonMaxSuppression, or 1 for a condition. Follows casts, reshapes and the
    like downstream; yields nothing for other consumers.
    """
    for use in value.uses():
        node, index = use.node, use.idx
        if index == 0 and node.op_type in _FORWARDING_OPS:
            yield from _iter_suggestions(node.outputs[0])
        elif (node.op_type, index) in _COMPARISON_SIDES:
            yield from _iter_comparison_suggestions(node, index)
        elif node.op_type == "Equal":
            yield from _iter_equality_suggestions(node, index)
        elif node.op_type == "Mul" and _is_zero(node.inputs[1 - index]):
            yield 1, _UNUSED_REASON
        elif (node.op_type, index) in _IDENTITY_OPERANDS:
            yield _IDENTITY_OPERANDS[node.op_type, index], _NO_EFFECT_REASON
        elif node.op_type == "NonMaxSuppression" and index in _NMS_DEFAULTS:
            yield _NMS_DEFAULTS[index]
        elif node.op_type in ("If", "Where") and index == 0:
            yield 1, "yes; 0: no"


def _iter_equality_suggestions(node: ir.Node, index: int) -> Iterator[tuple[float, str]]:
    """Yield (number, reason): the first constant that an Equal compares operand `index` with.

    Nothing if the other operand is not a constant or is empty.
    """
    table = ir.const_value(node.inputs[1 - index])
    if table is not None and table.size:
        yield float(table.reshape(-1)[0]), "the model compares it with that number"


def _iter_comparison_suggestions(node: ir.Node, index: int) -> Iterator[tuple[float, str]]:
    """Yield at most one (number, reason) for a scalar that `node` compares with its other operand.

    `index` is the scalar's input index. For a constant operand it is a bound that all its elements
    pass; for probabilities 0.5.
    """
    operand, side = node.inputs[1 - index], _COMPARISON_SIDES[node.op_type, index]
    table = None if operand is None else ir.const_value(operand)
    if table is not None and table.size and np.isfinite(table).all():
        numbers = table.astype(np.float64).reshape(-1)
        low, high = float(numbers.min()), float(numbers.max())
        margin = 0.0
        if "Equal" not in node.op_type:
            margin = (high - low) / max(numbers.size - 1, 1) or 1.0
        bound = low - margin if side == _AT_LEAST else high + margin
        yield (
            bound,
            f"compared with {_format_number(low)} to {_format_number(high)}, all of which pass",
        )
    elif _is_probability(operand):
        yield 0.5, "compared with probabilities"


def _is_zero(value: ir.Value | None) -> bool:
    """Whether `value` is a constant of zeros."""
    array = None if value is None else ir.const_value(value)
    return array is not None and array.size > 0 and not np.any(array)


def _is_probability(value: ir.Value | None) -> bool:
    """Whether `value` comes from a Softmax or a Sigmoid.

    Directly, or behind operators that keep values.
    """
    producer = None if value is None else ir.producer(value)
    while producer is not None and producer.op_type in _VALUE_PRESERVING_OPS:
        producer = ir.producer(producer.inputs[0])
    return producer is not None and producer.op_type in _PROBABILITY_OPS
