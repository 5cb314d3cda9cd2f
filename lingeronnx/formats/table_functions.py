"""Functions of one number that a table may hold, as expressions of standard operators.

Written, or worked out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ..graph import ir, operators
from ..plan import Affine
from .float_model import FloatNodeBuilder

__all__ = ["build_function_nodes", "identify_table_function"]

_T = TypeVar("_T", np.ndarray, ir.Value)

#: Functions that the least opset of a written file (13) has; what depends on attributes is tried with their defaults.
_STANDARD_FUNCTIONS = frozenset(
    name for name in operators.UNARY_FUNCTIONS if operators.OPERATORS[name].since_opset <= 13
)

#: What is written as an expression, and tried for a table whose node names no standard function.
#: `do(op_type, ...)` writes or computes an operator, a number is a constant.
_COMPOSED_FUNCTIONS: Mapping[str, Callable[[Callable[..., Any], Any], Any]] = {
    "Gelu": lambda do, x: do(
        "Mul", do("Mul", x, 0.5), do("Add", do("Erf", do("Mul", x, math.sqrt(0.5))), 1.0)
    ),
    "Silu": lambda do, x: do("Mul", x, do("Sigmoid", x)),
    "Mish": lambda do, x: do("Mul", x, do("Tanh", do("Softplus", x))),
}


def _build_expression(name: str, apply_op: Callable[..., _T], x: _T) -> _T:
    return (
        _COMPOSED_FUNCTIONS[name](apply_op, x) if name in _COMPOSED_FUNCTIONS else apply_op(name, x)
    )


def _evaluate_op(kind: str, *given: np.ndarray) -> np.ndarray:
    if kind in operators.BINARY_FUNCTIONS:
        return operators.BINARY_FUNCTIONS[kind](*given)
    return operators.UNARY_FUNCTIONS[kind](given[0], lambda name, default: default)


def identify_table_function(
    table: np.ndarray, x: Affine, o: Affine, declared_name: str
) -> str | None:
    """Return which function ``table[i]`` is, or None for one that is not known here.

    table : int8 [256] or int16 [65536], its entry for the integer i at ``i + len/2``. x, o : how
    input and output are held. told : what its node says. All entries must be the function's nearest
    integers, ties to either side.
    """
    size, entries = table.size // 2, table.reshape(-1).astype(np.float64)
    reals = x.real(np.arange(-size, size))
    low, high = np.iinfo(table.dtype).min, np.iinfo(table.dtype).max
    for name in (
        (declared_name,)
        if declared_name in _STANDARD_FUNCTIONS or declared_name in _COMPOSED_FUNCTIONS
        else _COMPOSED_FUNCTIONS
    ):
        with np.errstate(all="ignore"):
            want = _build_expression(name, _evaluate_op, reals) * o.scale
        if np.all(np.abs(np.clip(np.nan_to_num(want) + o.zero_point, low, high) - entries) < 0.51):
            return name
    return None


def build_function_nodes(name: str, real: FloatNodeBuilder) -> ir.Value:
    """Return the function `name` of the node's input in standard operators."""

    @cache
    def number(value: float) -> ir.Value:
        return real.add_constant(np.float32(value), "number")

    def do(op_type: str, *given: ir.Value | float) -> ir.Value:
        return real(
            op_type, *(number(value) if isinstance(value, float) else value for value in given)
        )

    return _build_expression(name, do, real.float_input())
