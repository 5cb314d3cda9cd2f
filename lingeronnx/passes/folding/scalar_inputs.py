"""Settings: inputs of one number beside the data, such as a threshold.

Which number a model would take there.
Said is what the graph itself tells: what the number is compared with, or what leaves the data as
they are. A user who knows better gives another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...graph import ir, operators

__all__ = ["find_scalar_inputs", "format_fix_option", "format_fix_suggestion", "suggest_value"]

_PASS_THROUGH_OPS = operators.IDENTITY_OPS | operators.RESHAPING_OPS | {"Cast", "Expand"}
_SELECTING_OPS = {
    kind
    for kind, how in {**operators.POOL_KINDS, **operators.REDUCTION_KINDS}.items()
    if how in ("max", "min")
}
_VALUE_PRESERVING_OPS = (
    _PASS_THROUGH_OPS | operators.DATA_MOVEMENT_OPS | _SELECTING_OPS | {"Max", "TopK"}
)
_PROBABILITY_OPS = ("Sigmoid", "Softmax")
_IDENTITY_OPERANDS: Mapping[tuple[str, int], float] = {
    **{(kind, 1): number for kind, number in operators.IDENTITY_OPERANDS.items()},
    **{(kind, 0): operators.IDENTITY_OPERANDS[kind] for kind in ("Add", "Mul")},
}
_NO_EFFECT_REASON = "with that number it changes nothing"
_AT_LEAST, _AT_MOST = "at least", "at most"
#: (operator, which input) -> the other one has to be at least, or at most, so large that all is let through.
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
    2: (100, "so many boxes are kept at most"),
    3: (0.5, "boxes that overlap by more are one"),
    4: (0.25, "boxes of lower scores are none"),
}


def find_scalar_inputs(model: ir.Model) -> list[str]:
    """Return the inputs of `model` that are one number, with no axis of samples."""
    return [
        str(v.name)
        for v in model.graph.inputs
        if v.const_value is None and ir.get_shape(v) in ((), (1,))
    ]


def format_fix_suggestion(model: ir.Model, names: Sequence[str]) -> str:
    """Return what to say of the settings `names`, for which nobody gave a number.

    The options to paste, and why.
    """
    values = {str(v.name): v for v in model.graph.inputs}
    options, reasons = [], dict[str, list[str]]()
    for name in names:
        options.append(format_fix_option(values[name]))
        reasons.setdefault(_choose_suggestion(values[name])[1], []).append(name)
    what = "a setting, one number" if len(names) == 1 else "settings, one number each"
    are = f"is {names[0]}" if len(names) == 1 else f"are {', '.join(names)}"
    because = "; ".join(f"{', '.join(of)}: {why}" for why, of in reasons.items())
    return f"{are} {what} for all samples? then fix it with {' '.join(options)} ({because})"


def format_fix_option(value: ir.Value) -> str:
    """Return the option that fixes the setting `value`, with the number that the model tells, or VALUE."""
    number = suggest_value(value)
    return f"--fix {value.name}={'VALUE' if number is None else _format_number(number)}"


def suggest_value(value: ir.Value) -> float | None:
    """Return the number that the model tells of the setting `value`; None where it tells none."""
    return _choose_suggestion(value)[0]


def _choose_suggestion(value: ir.Value) -> tuple[float | None, str]:
    """Return (number, why); a number that changes nothing is the last choice."""
    whole = value.dtype is not None and np.dtype(value.dtype.numpy()).kind in "iub"
    told = [
        (number, why)
        for number, why in _iter_suggestions(value)
        if number == int(number) or not whole
    ]
    return min(
        told,
        key=lambda one: one[1] == _NO_EFFECT_REASON,
        default=(None, "whole number" if whole else "number"),
    )


def _format_number(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{np.float32(number)}"


def _iter_suggestions(value: ir.Value) -> Iterator[tuple[float, str]]:
    """Yield (number, why) of what is computed from `value`, which holds one number."""
    for use in value.uses():
        node, index = use.node, use.idx
        if (node.op_type in _PASS_THROUGH_OPS or node.op_type == "Gather") and index == 0:
            yield from _iter_suggestions(node.outputs[0])
        elif (node.op_type, index) in _COMPARISON_SIDES:
            yield from _iter_comparison_suggestions(node, index)
        elif (
            node.op_type == "Equal"
            and (table := ir.const_value(node.inputs[1 - index])) is not None
            and table.size
        ):
            yield float(table.reshape(-1)[0]), "the model compares it with that number"
        elif node.op_type in operators.IDENTITY_OPERANDS and (
            index == 1 or node.op_type in ("Add", "Mul")
        ):
            yield operators.IDENTITY_OPERANDS[node.op_type], _NO_EFFECT_REASON
        elif node.op_type == "NonMaxSuppression" and index in _NMS_DEFAULTS:
            yield _NMS_DEFAULTS[index]
        elif node.op_type in ("If", "Where") and index == 0:
            yield 1, "yes; 0: no"


def _iter_comparison_suggestions(node: ir.Node, index: int) -> Iterator[tuple[float, str]]:
    """Yield what lets pass all of what it is compared with.

    Of shares, which are 0 to 1, their middle.
    """
    other, side = node.inputs[1 - index], _COMPARISON_SIDES[node.op_type, index]
    table = None if other is None else ir.const_value(other)
    if table is not None and table.size and np.isfinite(table).all():
        numbers = table.astype(np.float64).reshape(-1)
        least, most = float(numbers.min()), float(numbers.max())
        room = 0.0 if "Equal" in node.op_type else (most - least) / max(numbers.size - 1, 1) or 1.0
        bound = least - room if side == _AT_LEAST else most + room
        yield (
            bound,
            (
                f"compared with {_format_number(least)} to {_format_number(most)}, all of which it "
                "lets pass"
            ),
        )
    elif _is_probability(other):
        yield 0.5, "compared with shares of 0 to 1"


def _is_probability(value: ir.Value | None) -> bool:
    """Whether the values are some of what a Softmax or a Sigmoid gives."""
    node = None if value is None else ir.producer(value)
    while node is not None and node.op_type in _VALUE_PRESERVING_OPS:
        node = ir.producer(node.inputs[0]) if node.inputs[0] is not None else None
    return node is not None and node.op_type in _PROBABILITY_OPS
