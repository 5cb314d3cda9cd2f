"""Functions of one number that a table may hold, as expressions of standard operators: written, or worked out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np

from ..graph import ir, operators
from ..plan import Affine
from .real import Reals

__all__ = ["function_of", "written"]

_T = TypeVar("_T", np.ndarray, ir.Value)

#: Functions that the least opset of a written file (13) has; what depends on attributes is tried with their defaults.
_PLAIN = frozenset(name for name in operators.FUNCTIONS if operators.OPERATORS[name].since <= 13)

#: What is written as an expression, and tried for a table whose node names no standard function.
#: `do(op_type, ...)` writes or computes an operator, a number is a constant.
_COMPOSED: Mapping[str, Callable[[Callable[..., Any], Any], Any]] = {
    "Gelu": lambda do, x: do("Mul", do("Mul", x, 0.5), do("Add", do("Erf", do("Mul", x, math.sqrt(0.5))), 1.0)),
    "Silu": lambda do, x: do("Mul", x, do("Sigmoid", x)),
    "Mish": lambda do, x: do("Mul", x, do("Tanh", do("Softplus", x))),
}


def _expressed(name: str, do: Callable[..., _T], x: _T) -> _T:
    return _COMPOSED[name](do, x) if name in _COMPOSED else do(name, x)


def _value(kind: str, *given: np.ndarray) -> np.ndarray:
    if kind in operators.ARITHMETIC:
        return operators.ARITHMETIC[kind](*given)
    return operators.FUNCTIONS[kind](given[0], lambda name, default: default)


def function_of(table: np.ndarray, x: Affine, o: Affine, told: str) -> str | None:
    """Return which function ``table[i]`` is, or None for one that is not known here.

    table : int8 [256] or int16 [65536], its entry for the integer i at ``i + len/2``. x, o : how input and output are
    held. told : what its node says. All entries must be the function's nearest integers, ties to either side.
    """
    size, entries = table.size // 2, table.reshape(-1).astype(np.float64)
    reals = x.real(np.arange(-size, size))
    low, high = np.iinfo(table.dtype).min, np.iinfo(table.dtype).max
    for name in (told,) if told in _PLAIN or told in _COMPOSED else _COMPOSED:
        with np.errstate(all="ignore"):
            want = _expressed(name, _value, reals) * o.scale
        if np.all(np.abs(np.clip(np.nan_to_num(want) + o.zero_point, low, high) - entries) < 0.51):
            return name
    return None


def written(name: str, real: Reals) -> ir.Value:
    """Return the function `name` of the node's input in standard operators."""

    @cache
    def number(value: float) -> ir.Value:
        return real.constant(np.float32(value), "number")

    def do(op_type: str, *given: ir.Value | float) -> ir.Value:
        return real(op_type, *(number(value) if isinstance(value, float) else value for value in given))

    return _expressed(name, do, real.input())
