"""Looking at numbers once: a histogram of bins of one width with the sum of squares, and what is largest in channels.

Knows nothing of models.
"""

from __future__ import annotations

import math

import numpy as np

from simulator._jit import jit
from simulator.native import Loop

__all__ = ["channels", "count"]


@jit
def _count(
    x: np.ndarray, each: int, factors: np.ndarray, per_unit: float, bins: np.ndarray, squares: np.ndarray
) -> None:
    half = len(bins) // 2
    for start in range(0, len(x), 1024):  # sums of sums: what is rounded stays small
        part, stop, i = 0.0, min(start + 1024, len(x)), start
        while i < stop:
            row = i // each
            factor, end = factors[row % len(factors)], min((row + 1) * each, stop)
            for k in range(i, end):
                value = np.float64(x.dtype.type(np.float64(x[k]) * factor))
                part += value * value
                bins[half + int(math.floor(value * per_unit))] += 1
            i = end
        squares[0] += part


_ONE = np.ones(1)


def count(x: np.ndarray, per_unit: float, bins: np.ndarray, factors: np.ndarray = _ONE) -> float:
    """Add the number of all values with ``floor(value * per_unit) == k - len(bins) / 2`` to bins[k].

    x : float32 or float64 [N, C, ...], finite; a value is one of them times its channel's factor, in the type of x.
    factors : float64 [C], or [1] for an x of any shape. per_unit : a power of two, so that nothing is rounded. bins :
    int64, contiguous, which holds all of them. Returns the sum of squares in float64.
    """
    squares, flat = np.zeros(1), np.ascontiguousarray(x).reshape(-1)
    each = math.prod(x.shape[2:]) if len(factors) > 1 else max(flat.size, 1)
    Loop(_count, (flat, each, factors, float(per_unit), bins, squares))((), ())
    return float(squares[0])


@jit
def _channels(x: np.ndarray, bits: np.ndarray, largest: np.ndarray, squares: np.ndarray) -> None:
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            row, held = x[n, c], bits[n, c]
            for start in range(0, len(row), 1024):  # sums of sums: what is rounded stays small
                stop = min(start + 1024, len(row))
                most = largest[c]
                for i in range(start, stop):  # magnitudes are ordered as their bits are
                    most = max(most, held[i] & 0x7FFFFFFF)
                largest[c] = most
                even = start + (stop - start) // 4 * 4
                p0 = p1 = p2 = p3 = 0.0
                for i in range(start, even, 4):  # four sums, so that none waits for the last
                    v0, v1, v2, v3 = (
                        np.float64(row[i]),
                        np.float64(row[i + 1]),
                        np.float64(row[i + 2]),
                        np.float64(row[i + 3]),
                    )
                    p0 += v0 * v0
                    p1 += v1 * v1
                    p2 += v2 * v2
                    p3 += v3 * v3
                for i in range(even, stop):
                    value = np.float64(row[i])
                    p0 += value * value
                squares[c] += (p0 + p1) + (p2 + p3)


def channels(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest magnitude and the sum of squares of every channel, both float64 [C].

    x : float32 [N, C, ...]; a channel with NaN has NaN in both.
    """
    flat = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
    largest, squares = np.zeros(x.shape[1], np.int32), np.zeros(x.shape[1])
    Loop(_channels, (flat, flat.view(np.int32), largest, squares))((), ())
    return largest.view(np.float32).astype(np.float64), squares
