"""Looking at numbers once.

A histogram of bins of one width with the sum of squares, and what is largest in channels.
Knows nothing of models.
"""

from __future__ import annotations

import math

import numpy as np

from simulator._jit import jit, register_inline
from simulator.native import NativeLoop

__all__ = ["accumulate_histogram", "channel_statistics"]


_LANES = 64  # sums side by side, so that none waits for the last and whole vectors are added
_BLOCK_ELEMENTS = 4096  # numbers that are looked at twice while they are at hand


@register_inline
def _sum_squares(row: np.ndarray, factor: float, lanes: np.ndarray) -> float:
    total, whole = 0.0, len(row) // _LANES * _LANES
    if whole:
        lanes[:] = 0
        for start in range(0, whole, _LANES):
            part = row[start : start + _LANES]
            for i in range(_LANES):
                value = np.float64(row.dtype.type(np.float64(part[i]) * factor))
                lanes[i] += value * value
        for i in range(_LANES):
            total += lanes[i]
    rest = row[whole:]
    for i in range(len(rest)):
        value = np.float64(row.dtype.type(np.float64(rest[i]) * factor))
        total += value * value
    return total


@jit
def _count_bins(
    x: np.ndarray,
    channel_size: int,
    factors: np.ndarray,
    per_unit: float,
    bins: np.ndarray,
    more: np.ndarray,
    squares: np.ndarray,
    lanes: np.ndarray,
    at: np.ndarray,
) -> None:
    half = np.int32(len(bins) // 2)
    for row in range(len(x) // channel_size):
        factor = factors[row % len(factors)]
        for start in range(row * channel_size, (row + 1) * channel_size, _BLOCK_ELEMENTS):
            part = x[start : min(start + _BLOCK_ELEMENTS, (row + 1) * channel_size)]
            for i in range(len(part)):
                value = np.float64(x.dtype.type(np.float64(part[i]) * factor))
                at[i] = half + np.int32(math.floor(value * per_unit))
            for i in range(
                len(part) // 2
            ):  # in turn: a bin that is counted again at once waits for its last count
                bins[np.uint32(at[2 * i])] += 1
                more[np.uint32(at[2 * i + 1])] += 1
            if len(part) % 2:
                bins[np.uint32(at[len(part) - 1])] += 1
            squares[0] += _sum_squares(part, factor, lanes)


_ONE = np.ones(1)


def accumulate_histogram(
    x: np.ndarray, per_unit: float, bins: np.ndarray, factors: np.ndarray = _ONE
) -> float:
    """Add the number of all values with ``floor(value * per_unit) == k - len(bins) / 2`` to bins[k].

    x : float32 or float64 [N, C, ...], finite; a value is one of them times its channel's factor,
    in the type of x. factors : float64 [C], or [1] for an x of any shape. per_unit : a power of
    two, so that nothing is rounded. bins : int64, contiguous, which holds all of them. Returns the
    sum of squares in float64.
    """
    squares, flat = np.zeros(1), np.ascontiguousarray(x).reshape(-1)
    each = math.prod(x.shape[2:]) if len(factors) > 1 else max(flat.size, 1)
    more, lanes, at = np.zeros_like(bins), np.empty(_LANES), np.empty(_BLOCK_ELEMENTS, np.int32)
    NativeLoop(_count_bins, (flat, each, factors, float(per_unit), bins, more, squares, lanes, at))(
        (), ()
    )
    bins += more
    return float(squares[0])


@jit
def _channel_statistics(
    x: np.ndarray, bits: np.ndarray, largest: np.ndarray, squares: np.ndarray, lanes: np.ndarray
) -> None:
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            row, held = x[n, c], bits[n, c]
            for start in range(0, len(row), _BLOCK_ELEMENTS):
                part = held[start : start + _BLOCK_ELEMENTS]
                most = largest[c]
                for i in range(len(part)):  # magnitudes are ordered as their bits are
                    most = max(most, part[i] & np.int32(0x7FFFFFFF))
                largest[c] = most
                squares[c] += _sum_squares(row[start : start + _BLOCK_ELEMENTS], 1.0, lanes)


def channel_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest magnitude and the sum of squares of every channel, both float64 [C].

    x : float32 [N, C, ...]; a channel with NaN has NaN in both.
    """
    flat = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
    largest, squares = np.zeros(x.shape[1], np.int32), np.zeros(x.shape[1])
    NativeLoop(
        _channel_statistics, (flat, flat.view(np.int32), largest, squares, np.empty(_LANES))
    )((), ())
    return largest.view(np.float32).astype(np.float64), squares
