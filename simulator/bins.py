"""Counting numbers in bins of one width: a histogram and the sum of squares in one pass. Knows nothing of tensors."""

from __future__ import annotations

import math

import numpy as np

from simulator._jit import jit

__all__ = ["count"]


@jit
def count(x: np.ndarray, per_unit: float, bins: np.ndarray) -> float:
    """Add the number of all x[i] with ``floor(x[i] * per_unit) == k - len(bins) / 2`` to bins[k].

    x : float32 or float64 [n], finite. per_unit : a power of two, so that nothing is rounded. bins : int64, which holds
    all of them. Returns the sum of squares in float64.
    """
    half = len(bins) // 2
    total = 0.0
    for start in range(0, len(x), 1024):  # sums of sums: what is rounded stays small
        part = 0.0
        for i in range(start, min(start + 1024, len(x))):
            value = np.float64(x[i])
            part += value * value
            bins[half + int(math.floor(value * per_unit))] += 1
        total += part
    return total
