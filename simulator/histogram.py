"""Statistics of arrays in one pass: histograms with sums of squares, and maxima per channel.

Must not know: models.
"""

from __future__ import annotations

import math

import numpy as np

from simulator._jit import jit, register_inline
from simulator.native import NativeLoop

__all__ = [
    "accumulate_histogram",
    "channel_statistics",
    "compute_quantization_errors",
    "compute_row_quantization_errors",
]


_LANES = 64  # independent partial sums, which are added as vectors without waiting for each other
_BLOCK_ELEMENTS = 4096  # elements that stay in the cache while they are read twice


@register_inline
def _sum_squares(row: np.ndarray, factor: float, lanes: np.ndarray) -> float:
    """Return the sum of squares of row * factor, with `lanes` [_LANES] as scratch memory.

    Each product is rounded to the type of `row` before it is squared in float64.
    """
    total, vector_size = 0.0, len(row) // _LANES * _LANES
    if vector_size:
        lanes[:] = 0
        for start in range(0, vector_size, _LANES):
            part = row[start : start + _LANES]
            for i in range(_LANES):
                value = np.float64(row.dtype.type(np.float64(part[i]) * factor))
                lanes[i] += value * value
        for i in range(_LANES):
            total += lanes[i]
    remainder = row[vector_size:]
    for i in range(len(remainder)):
        value = np.float64(row.dtype.type(np.float64(remainder[i]) * factor))
        total += value * value
    return total


@jit
def _count_bins(
    x: np.ndarray,
    channel_size: int,
    factors: np.ndarray,
    per_unit: float,
    bins: np.ndarray,
    odd_bins: np.ndarray,
    squares: np.ndarray,
    lanes: np.ndarray,
    indices: np.ndarray,
) -> None:
    """Add the histogram of flat x to `bins` and `odd_bins`, and its sum of squares to squares[0].

    A value v counts in bin floor(v * per_unit) + len(bins) / 2. Elements at odd positions of a
    block count in `odd_bins`, of the type and size of `bins`, so that two increments are
    independent; the caller adds both. It may be `bins` itself. Each run of `channel_size` elements
    of x is multiplied by the next of `factors` (float64, repeated) first. `lanes` and `indices` are
    scratch memory.
    """
    half = np.int32(len(bins) // 2)
    for row in range(len(x) // channel_size):
        factor = factors[row % len(factors)]
        for start in range(row * channel_size, (row + 1) * channel_size, _BLOCK_ELEMENTS):
            part = x[start : min(start + _BLOCK_ELEMENTS, (row + 1) * channel_size)]
            for i in range(len(part)):
                value = np.float64(x.dtype.type(np.float64(part[i]) * factor))
                indices[i] = half + np.int32(np.floor(value * per_unit))  # a vector operation
            # alternate two histograms: incrementing the same bin twice in a row would stall
            for i in range(len(part) // 2):
                bins[np.uint32(indices[2 * i])] += 1
                odd_bins[np.uint32(indices[2 * i + 1])] += 1
            if len(part) % 2:
                bins[np.uint32(indices[len(part) - 1])] += 1
            squares[0] += _sum_squares(part, factor, lanes)


_ONE = np.ones(1)


def accumulate_histogram(
    x: np.ndarray, per_unit: float, bins: np.ndarray, factors: np.ndarray = _ONE
) -> float:
    """Add the histogram of x, scaled channel by channel, to `bins`.

    A value v is counted in bins[k] with ``floor(v * per_unit) == k - len(bins) / 2``.

    Parameters
    ----------
    x
        float32 or float64 [N, C, ...], finite. Each element is multiplied by its channel's factor,
        in the type of x.
    per_unit
        Bins per unit, a power of two, so that the product is exact.
    bins
        int64, contiguous, large enough for all values; updated.
    factors
        float64 [C], or [1] for an x of any shape.

    Returns
    -------
    float
        Sum of squares of the values.
    """
    squares, flat = np.zeros(1), np.ascontiguousarray(x).reshape(-1)
    channel_size = math.prod(x.shape[2:]) if len(factors) > 1 else max(flat.size, 1)
    # For few values, clearing and adding a second histogram takes longer than increments that wait.
    odd_bins = bins if x.size <= len(bins) else np.zeros_like(bins)
    lanes = np.empty(_LANES)
    indices = np.empty(_BLOCK_ELEMENTS, np.int32)
    arguments = (flat, channel_size, factors, float(per_unit), bins, odd_bins)
    NativeLoop(_count_bins, (*arguments, squares, lanes, indices))((), ())
    if odd_bins is not bins:
        bins += odd_bins
    return float(squares[0])


@jit
def _channel_statistics(
    x: np.ndarray, bits: np.ndarray, largest: np.ndarray, squares: np.ndarray, lanes: np.ndarray
) -> None:
    """Update largest magnitudes and sums of squares per channel, in place, for float32 x [N, C, S].

    `bits` is x viewed as int32. `largest` is int32 [C], the bits of the largest magnitude as
    float32; `squares` is float64 [C]; `lanes` [_LANES] is scratch memory.
    """
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            row, row_bits = x[n, c], bits[n, c]
            for start in range(0, len(row), _BLOCK_ELEMENTS):
                part = row_bits[start : start + _BLOCK_ELEMENTS]
                block_largest = largest[c]
                for i in range(len(part)):  # the bits of magnitudes have the order of the values
                    block_largest = max(block_largest, part[i] & np.int32(0x7FFFFFFF))
                largest[c] = block_largest
                squares[c] += _sum_squares(row[start : start + _BLOCK_ELEMENTS], 1.0, lanes)


def channel_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (largest magnitude, sum of squares) of each channel of x, both float64 [C].

    `x` is float32 [N, C, ...]. Both results are NaN for a channel that contains NaN.
    """
    flat = np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
    largest, squares = np.zeros(x.shape[1], np.int32), np.zeros(x.shape[1])
    NativeLoop(
        _channel_statistics, (flat, flat.view(np.int32), largest, squares, np.empty(_LANES))
    )((), ())
    return largest.view(np.float32).astype(np.float64), squares


@jit
def _sum_quantization_errors(
    values: np.ndarray,
    weights: np.ndarray,
    scales: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    errors: np.ndarray,
    lanes: np.ndarray,
) -> None:
    """Set errors[k] to the weighted sum of squared errors of `values` at scales[k].

    All arrays are float64; `values`, `weights` and `lanes` ([_LANES], scratch memory) are padded to
    a multiple of _LANES.
    """
    for k in range(len(scales)):
        scale, lowest, highest = scales[k], low[k], high[k]
        lanes[:] = 0
        for start in range(0, len(values), _LANES):
            part, part_weights = values[start : start + _LANES], weights[start : start + _LANES]
            for i in range(_LANES):
                count = min(max(np.floor(part[i] * scale + 0.5), lowest), highest)
                error = count / scale - part[i]
                lanes[i] += part_weights[i] * (error * error)
        total = 0.0
        for i in range(_LANES):
            total += lanes[i]
        errors[k] = total


def compute_quantization_errors(
    values: np.ndarray, weights: np.ndarray, scales: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the sum of ``weights * (clamp(floor(x * s + 1/2), low, high) / s - x)**2`` per scale.

    Parameters
    ----------
    values, weights
        float64 [n], the values x and how often each of them counts.
    scales, low, high
        float64 [k], the scales s in integers per unit, and the range of the integers of each.

    Returns
    -------
    numpy.ndarray
        float64 [k].
    """
    table = np.zeros((2, -(-len(values) // _LANES) * _LANES))
    table[:, : len(values)] = values, weights
    candidates = np.array([scales, low, high], np.float64)
    errors, lanes = np.empty(len(scales)), np.empty(_LANES)
    NativeLoop(_sum_quantization_errors, (*table, *candidates, errors, lanes))((), ())
    return errors


@jit
def _sum_row_quantization_errors(
    rows: np.ndarray,
    per_unit: np.ndarray,
    factor: np.ndarray,
    scales: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    errors: np.ndarray,
    bins: np.ndarray,
    centers: np.ndarray,
    counts: np.ndarray,
    squares: np.ndarray,
    lanes: np.ndarray,
    indices: np.ndarray,
) -> None:
    """Set errors[r, k] to the sum of squared errors of row r at scales[r, k], by its histogram.

    `errors` and `scales` are float64 [R, K], `low` and `high` [K]. `factor`, [1], is 1.
    `bins` (int64), `centers` and `counts` (float64 [n rounded up to a multiple of _LANES]),
    `squares`, `lanes` and `indices` are scratch memory.
    """
    half, columns = len(bins) // 2, rows.shape[1]
    for row in range(len(rows)):
        bins[:] = 0
        _count_bins(rows[row], columns, factor, per_unit[row], bins, bins, squares, lanes, indices)
        size = 0
        for k in range(len(bins)):
            if bins[k]:
                centers[size] = (k - half + 0.5) / per_unit[row]
                counts[size] = bins[k]
                size += 1
        end = -(-size // _LANES) * _LANES
        centers[size:end] = 0
        counts[size:end] = 0
        _sum_quantization_errors(
            centers[:end], counts[:end], scales[row], low, high, errors[row], lanes
        )


def compute_row_quantization_errors(
    rows: np.ndarray, per_unit: np.ndarray, half_bins: int, scales: np.ndarray, low: int, high: int
) -> np.ndarray:
    """Return the sum of ``(clamp(floor(x * s + 1/2), low, high) / s - x)**2`` per row and scale.

    The values x are the centers of the bins of the row's values. For rows of equal length, it is
    the result of `accumulate_histogram` and `compute_quantization_errors` for each row.

    Parameters
    ----------
    rows
        float32 or float64 [R, n], finite.
    per_unit
        float64 [R], bins per unit of each row, powers of two.
    half_bins
        Number of bins on each side of 0, enough for all rows.
    scales
        float64 [R, K], scales of each row in integers per unit.
    low, high
        Range of the integers.

    Returns
    -------
    numpy.ndarray
        float64 [R, K].
    """
    padded = -(-min(rows.shape[1], 2 * half_bins) // _LANES) * _LANES
    bounds = np.full((2, scales.shape[1]), [[low], [high]], np.float64)
    errors, bins = np.empty(scales.shape), np.empty(2 * half_bins, np.int64)
    scratch = (bins, *np.empty((2, padded)), np.zeros(1), np.empty(_LANES))
    arguments = (np.ascontiguousarray(rows), per_unit, _ONE, np.ascontiguousarray(scales), *bounds)
    indices = np.empty(_BLOCK_ELEMENTS, np.int32)
    NativeLoop(_sum_row_quantization_errors, (*arguments, errors, *scratch, indices))((), ())
    return errors
