"""Counting numbers in bins of one width: a histogram and the sum of squares in one pass. Knows nothing of tensors."""

from __future__ import annotations

import math

import numpy as np

from simulator._jit import jit
from simulator.native import Loop

__all__ = ["count"]


@jit
def _count(x: np.ndarray, per_unit: float, bins: np.ndarray, squares: np.ndarray) -> None:
    half = len(bins) // 2
    for start in range(0, len(x), 1024):  # sums of sums: what is rounded stays small
        part = 0.0
        for i in range(start, min(start + 1024, len(x))):
            value = np.float64(x[i])
            part += value * value
            bins[half + int(math.floor(value * per_unit))] += 1
        squares[0] += part


def count(x: np.ndarray, per_unit: float, bins: np.ndarray) -> float:
    """Add the number of all x[i] with ``floor(x[i] * per_unit) == k - len(bins) / 2`` to bins[k].

    x : float32 or float64 [n], finite. per_unit : a power of two, so that nothing is rounded. bins : int64, contiguous,
    which holds all of them. Returns the sum of squares in float64.
    """
    squares = np.zeros(1)
    Loop(_count, (np.ascontiguousarray(x), float(per_unit), bins, squares))((), ())
    return float(squares[0])
