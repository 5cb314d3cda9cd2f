"""Elementwise functions in lookup tables: identify them, and express them in standard operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ...ir import float_ops, ir
from ...ir.plan import Affine
from ..float_model import FloatNodeBuilder

__all__ = ["build_function_nodes", "identify_table_function"]

_T = TypeVar("_T", np.ndarray, ir.Value)

#: Functions of opset 13, the minimum opset of written files; attributes have their defaults.
_STANDARD_FUNCTIONS = frozenset(
    name for name in float_ops.UNARY_FUNCTIONS if float_ops.OPERATORS[name].since_opset <= 13
)

#: Functions composed of several operators; also the candidates for tables of unknown functions.
#: `op(op_type, ...)` emits or evaluates an operator; a float is a constant.
_COMPOSED_FUNCTIONS: Mapping[str, Callable[[Callable[..., Any], Any], Any]] = {
    "Gelu": lambda op, x: op(
        "Mul", op("Mul", x, 0.5), op("Add", op("Erf", op("Mul", x, math.sqrt(0.5))), 1.0)
    ),
    "Silu": lambda op, x: op("Mul", x, op("Sigmoid", x)),
    "Mish": lambda op, x: op("Mul", x, op("Tanh", op("Softplus", x))),
}


def _build_expression(name: str, apply_op: Callable[..., _T], x: _T) -> _T:
    """Compute the elementwise function `name` of `x` by calls of `apply_op`, and return the result.

    `apply_op(op_type, *operands)` emits or evaluates one operator; functions such as Gelu take
    several calls.
    """
    if name in _COMPOSED_FUNCTIONS:
        result: _T = _COMPOSED_FUNCTIONS[name](apply_op, x)
        return result
    return apply_op(name, x)


def _evaluate_op(op_type: str, *operands: np.ndarray) -> np.ndarray:
    """Return the unary or binary operator `op_type` of float64 operands, default attributes."""
    if op_type in float_ops.BINARY_FUNCTIONS:
        return float_ops.BINARY_FUNCTIONS[op_type](*operands)
    return float_ops.UNARY_FUNCTIONS[op_type](operands[0], lambda name, default: default)


def identify_table_function(
    table: np.ndarray, x: Affine, o: Affine, declared_name: str
) -> str | None:
    """Return the name of the function in a lookup table, or None if it is unknown.

    All entries must be within 0.51 of the exact scaled values, so that ties may round to either
    side. Values that are not finite count as 0 or the largest float.

    Parameters
    ----------
    table
        int8 [256] or int16 [65536]; the entry for integer i is at ``i + len / 2``.
    x, o
        Qparams of input and output.
    declared_name
        Name of the function in the attributes of the node. If it is known, it is the only
        candidate; otherwise those of `_COMPOSED_FUNCTIONS` are.
    """
    half_size, entries = table.size // 2, table.reshape(-1).astype(np.float64)
    inputs = x.real(np.arange(-half_size, half_size))
    low, high = np.iinfo(table.dtype).min, np.iinfo(table.dtype).max
    is_known = declared_name in _STANDARD_FUNCTIONS or declared_name in _COMPOSED_FUNCTIONS
    candidates = (declared_name,) if is_known else tuple(_COMPOSED_FUNCTIONS)
    for name in candidates:
        with np.errstate(all="ignore"):
            scaled = _build_expression(name, _evaluate_op, inputs) * o.scale
        expected = np.clip(np.nan_to_num(scaled) + o.zero_point, low, high)
        if np.all(np.abs(expected - entries) < 0.51):
            return name
    return None


def build_function_nodes(name: str, builder: FloatNodeBuilder) -> ir.Value:
    """Append the elementwise function `name` of the node's input in standard operators.

    `builder` gets the nodes; returns the output of the last one.
    """

    @cache
    def get_constant(value: float) -> ir.Value:
        """Return `value` as a float32 initializer, the same one for the same number."""
        return builder.add_constant(np.float32(value), "number")

    def emit_op(op_type: str, *operands: ir.Value | float) -> ir.Value:
        """Append a standard operator to the builder and return its output.

        Numbers become constants.
        """
        inputs = [get_constant(x) if isinstance(x, float) else x for x in operands]
        return builder(op_type, *inputs)

    return _build_expression(name, emit_op, builder.float_input())
