"""Unary functions of standard operators, in float64, with ONNX's default attributes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "AttributeGetter",
    "UnaryFunction",
    "celu",
    "elu",
    "erf",
    "gelu",
    "hard_sigmoid",
    "sigmoid",
    "softplus",
]

#: ``attr(name, default)`` returns an attribute of the node.
AttributeGetter = Callable[..., Any]
UnaryFunction = Callable[[np.ndarray, AttributeGetter], np.ndarray]

erf = np.vectorize(math.erf, otypes=[np.float64])


def softplus(x: np.ndarray) -> np.ndarray:
    """Return log(1 + e^x)."""
    return np.asarray(np.logaddexp(0.0, x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x)."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def gelu(x: np.ndarray, attr: AttributeGetter) -> np.ndarray:
    """Return x * Phi(x), with Phi the standard normal CDF.

    If the attribute `approximate` is "tanh", Phi is replaced by its tanh approximation, 0.5 (1 +
    tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
    """
    if attr("approximate", "none") == "tanh":
        return np.asarray(
            0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        )
    return np.asarray(0.5 * x * (1.0 + erf(x / math.sqrt(2.0))))


def hard_sigmoid(x: np.ndarray, slope: float, offset: float) -> np.ndarray:
    """Return slope * x + offset, clipped to [0, 1]."""
    return np.clip(slope * x + offset, 0.0, 1.0)


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    """Return x for x > 0, else alpha * (e^x - 1)."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def celu(x: np.ndarray, alpha: float) -> np.ndarray:
    """Return x for x > 0, else alpha * (e^(x / alpha) - 1)."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha))
