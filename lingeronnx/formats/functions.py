"""Functions of one number that a table may hold, as expressions of standard operators: written, or worked out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from ..graph import ir
from ..plan import Affine
from .real import Reals

__all__ = ["function_of", "written"]

Do = Callable[..., Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])

#: Name -> the expression; `do(op_type, ...)` writes or computes an operator, a number is a constant.
_EXPRESSIONS: Mapping[str, Callable[[Do, Any], Any]] = {
    "Abs": lambda do, x: do("Abs", x),
    "Erf": lambda do, x: do("Erf", x),
    "Exp": lambda do, x: do("Exp", x),
    "Log": lambda do, x: do("Log", x),
    "Neg": lambda do, x: do("Neg", x),
    "Reciprocal": lambda do, x: do("Reciprocal", x),
    "Sigmoid": lambda do, x: do("Sigmoid", x),
    "Softplus": lambda do, x: do("Softplus", x),
    "Softsign": lambda do, x: do("Softsign", x),
    "Sqrt": lambda do, x: do("Sqrt", x),
    "Tanh": lambda do, x: do("Tanh", x),
    "Gelu": lambda do, x: do("Mul", do("Mul", x, 0.5), do("Add", do("Erf", do("Mul", x, math.sqrt(0.5))), 1.0)),
    "Silu": lambda do, x: do("Mul", x, do("Sigmoid", x)),
    "Mish": lambda do, x: do("Mul", x, do("Tanh", do("Softplus", x))),
}

_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Erf": _erf,
    "Exp": np.exp,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    "Softplus": lambda x: np.logaddexp(0.0, x),
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}

#: What a table is tried for whose node names no standard function.
_COMPOSED = ("Gelu", "Silu", "Mish")


def function_of(table: np.ndarray, x: Affine, o: Affine, told: str) -> str | None:
    """Return which function ``table[i]`` is, or None for one that is not known here.

    table : int8 [256] or int16 [65536], its entry for the integer i at ``i + len/2``. x, o : how input and output are
    held. told : what its node says. All entries must be the function's nearest integers, ties to either side.
    """
    size, held = table.size // 2, table.reshape(-1).astype(np.float64)
    reals = x.real(np.arange(-size, size))
    low, high = np.iinfo(table.dtype).min, np.iinfo(table.dtype).max
    for name in (told,) if told in _EXPRESSIONS else _COMPOSED:
        with np.errstate(all="ignore"):
            want = _EXPRESSIONS[name](lambda kind, *given: _OPERATORS[kind](*given), reals) * o.scale
        if np.all(np.abs(np.clip(np.nan_to_num(want) + o.zero_point, low, high) - held) < 0.51):
            return name
    return None


def written(name: str, real: Reals) -> ir.Value:
    """Return the function `name` of the node's input in standard operators."""

    @cache
    def number(value: float) -> ir.Value:
        return real.constant(np.float32(value), "number")

    def do(op_type: str, *given: Any) -> Any:
        return real(op_type, *(number(value) if isinstance(value, float) else value for value in given))

    return _EXPRESSIONS[name](do, real.input())
