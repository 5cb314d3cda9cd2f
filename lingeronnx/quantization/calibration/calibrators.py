"""Calibrators: choose the best scale of a tensor from its statistics.

Candidate scales start at the one that represents the full range and increase: powers of two, or
twenty-four per octave for free scales. All respect the sign: [-1, 127/128] fits scale 2^7 exactly,
0..255 fits 2^-1.

With a zero point (`choose_affine_qparams`) the range is that of the values and 0, and its bounds
are independent. The candidates of a scale s represent a window of (2^b - 1) / s that begins at the
smallest value, ends at the largest, or lies between, in quarters of the clipped length. Every
window contains zero, so it is exact.

max
    The full range.
percentile
    The largest scale that represents the fraction p of all values (p = 99.99 %). The range is
    clipped at the threshold T with ``count(|x| <= T) = p * count``, read off the histogram and
    interpolated within its bin.
mse
    The least mean squared error ``E (clamp(round(x*s), low, high)/s - x)^2``; rare large values are
    traded for resolution. Above 8 bits the least error on the observed values is not the goal:
    rounding costs next to nothing and a larger value later on costs much, so twice the range is
    represented. For a logit that only a sigmoid or tanh f reads, the error is measured after it:
    ``E (f(quantized) - f(x))^2``; values that saturate f anyway are clipped. The same holds if a
    table or a LeakyRelu is the only consumer; there f(quantized) is rounded to the scale of the
    result, and the negative side of a LeakyRelu, which has little weight, is clipped more.
kl
    The least relative entropy between the distribution and its quantization (Migacz, "8-bit
    inference with TensorRT", 2017), for signed data. With the histogram's bins i and the integers j
    that they round to at the scale s:

        P_i = n_i inside the range; the count outside is added to the outermost bin on its side
        Q_i = the mean of n over the bins of integer j(i)
        KL  = sum_i P_i/|P| * log((P_i/|P|) / (Q_i/|Q|)) - (bins - integers) / (2 |P|)

    Only nonempty bins count. The last term is the expected sum if the density were uniform within
    each integer; without it sparse data would look like a loss of resolution. The bin that begins
    at zero is excluded: zero is exact at any scale, and after a Relu it would outweigh all others.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.plan.power_of_two import floor_power_of_two
from .statistics import HALF_BINS, ConsumerFunction, TensorStats, compute_row_errors

__all__ = [
    "PERCENTILE",
    "candidate_scales",
    "choose_affine_qparams",
    "choose_row_scales",
    "choose_symmetric_scale",
    "full_range_scale",
    "kl_divergence",
    "percentile_threshold",
]

#: Percentage of values that the calibrator "percentile" represents.
PERCENTILE = 99.99

_POWER_OF_TWO_STEPS = 4  # candidates above the full-range exponent
_FREE_SCALE_STEPS = 48  # candidates of a free scale, up to four times the full-range scale
_MIN_COVERED_PERCENT = 99.0  # percentage of the values that every candidate represents
_WINDOW_SPLITS = (0.5, 0.0, 0.25, 0.75, 1.0)  # fraction of the clipped length below a window


def full_range_scale(low: float, high: float, bits: int) -> float:
    """Return the largest scale at which no value in [`low`, `high`] is off by over half a step.

    It is in steps per unit and not limited to powers of two; the integers are signed, of `bits`
    bits. `high` may round to one above the largest integer and saturate, which costs half a step. A
    negative `low` and a positive `high` each limit the scale; ValueError if there is neither.
    """
    half = 1 << (bits - 1)
    limits = []
    if high > 0:
        limits.append((half - 0.5) / high)
    if low < 0:
        limits.append((half + 0.5) / -low)
    return min(limits)


def choose_symmetric_scale(
    stats: TensorStats,
    bits: int,
    *,
    power_of_two: bool,
    calibrator: str,
    percentile: float = PERCENTILE,
    consumer: ConsumerFunction | None = None,
) -> float:
    """Choose the scale of a tensor of signed integers without zero point, in steps per unit.

    "max" gives the scale of the full range, "percentile" that of the percentile; "mse" and "kl"
    give the candidate with the least squared error or KL divergence. Above 8 bits, "mse" gives half
    the full-range scale.

    Parameters
    ----------
    stats
        Statistics of the tensor. An all-zero tensor gets 2**(bits-1).
    bits
        Bit width.
    power_of_two
        Whether only powers of two are allowed.
    calibrator
        "max", "percentile", "mse" or "kl"; any other name counts as "mse".
    percentile
        Percentage of the values that "percentile" represents.
    consumer
        Function that is the only consumer of the tensor, whose result's error counts instead, for
        "mse" up to 8 bits.
    """
    if stats.sum_of_squares == 0:
        return float(1 << (bits - 1))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if calibrator == "percentile":
        threshold = percentile_threshold(stats, percentile)
        range_low, range_high = max(stats.low, -threshold), min(stats.high, threshold)
        if power_of_two:
            return floor_power_of_two(full_range_scale(range_low, range_high, bits))
        return high / max(range_high, -range_low)
    scales = candidate_scales(stats.low, stats.high, bits, power_of_two=power_of_two)
    if calibrator == "max":
        return scales[0]
    if calibrator == "kl":
        scales = _candidate_scales_to_percentile(stats, bits, power_of_two)
        return min(scales, key=lambda scale: kl_divergence(stats, scale, low, high))
    if bits > 8:
        return scales[0] / 2
    if consumer is not None:
        scales = _candidate_scales_to_percentile(stats, bits, power_of_two)
        result_scale = None if power_of_two else consumer.scale
        if result_scale is not None and scales[0] < result_scale < scales[-1]:
            scales.append(result_scale)  # the identity then needs no additional rounding
        return min(scales, key=lambda scale: stats.quantization_error(scale, low, high, consumer))
    errors = stats.quantization_errors(np.array(scales), low, high)
    return scales[errors.index(min(errors))]


def choose_row_scales(
    rows: np.ndarray,
    bits: int,
    *,
    power_of_two: bool,
    calibrator: str,
    percentile: float = PERCENTILE,
) -> list[float]:
    """Choose a scale for each of `rows` [R, n], which contain a value other than 0 each.

    They are those that `choose_symmetric_scale` chooses for the statistics of each row; its
    parameters are described there. Squared errors of all rows are computed at once.
    """
    if bits > 8 or calibrator in ("max", "percentile", "kl"):
        return [
            choose_symmetric_scale(
                TensorStats.from_array(row),
                bits,
                power_of_two=power_of_two,
                calibrator=calibrator,
                percentile=percentile,
            )
            for row in rows
        ]
    bounds = zip(rows.min(axis=1).tolist(), rows.max(axis=1).tolist(), strict=True)
    scales = np.array([candidate_scales(*b, bits, power_of_two=power_of_two) for b in bounds])
    errors = compute_row_errors(rows, scales, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    chosen: list[float] = scales[np.arange(len(rows)), errors.argmin(axis=1)].tolist()
    return chosen


def choose_affine_qparams(
    stats: TensorStats,
    bits: int,
    *,
    power_of_two: bool,
    calibrator: str,
    percentile: float = PERCENTILE,
    consumer: ConsumerFunction | None = None,
) -> tuple[float, int]:
    """Choose scale (steps per unit) and zero point of a tensor of signed integers.

    The integer ``q = clamp(floor(x * scale + 1/2) + zero point)`` represents x, and 0 exactly. An
    all-zero tensor gets scale 2**(bits-1) and zero point 0. "max" and "percentile" place the range
    in the middle of the integers; the other calibrators try scales and positions and take the pair
    of the least error or KL divergence.

    Parameters
    ----------
    stats
        Statistics of the tensor.
    bits
        Bit width.
    power_of_two
        Whether only powers of two are allowed as scales.
    calibrator
        "max", "percentile", "kl", or another name for the least squared error.
    percentile
        Percentage of the values that "percentile" represents.
    consumer
        Function that is the only consumer of the tensor, whose result's squared error counts.
    """
    range_low, range_high = min(stats.low, 0.0), max(stats.high, 0.0)
    if stats.sum_of_squares == 0:
        return float(1 << (bits - 1)), 0
    if calibrator == "percentile":
        threshold = percentile_threshold(stats, percentile)
        range_low, range_high = max(range_low, -threshold), min(range_high, threshold)
    full_scale = ((1 << bits) - 1) / (range_high - range_low)
    base = floor_power_of_two(full_scale) if power_of_two else full_scale
    if calibrator in ("max", "percentile"):
        return base, _window_zero_point(base, range_low, range_high, _WINDOW_SPLITS[0], bits)
    min_ratio = 1.0
    if calibrator == "kl" or consumer is not None:
        max_abs = max(range_high, -range_low)
        min_ratio = max_abs / percentile_threshold(stats, _MIN_COVERED_PERCENT)
    windows = []
    for multiplier in _candidate_multipliers(power_of_two, min_ratio):
        scale = base * multiplier
        for split in _WINDOW_SPLITS:
            zero = _window_zero_point(scale, range_low, range_high, split, bits)
            windows.append((scale, zero))
    windows = list(dict.fromkeys(windows))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if calibrator != "kl" and consumer is None:
        scales, zeros = np.array([scale for scale, _ in windows]), np.array([z for _, z in windows])
        errors = stats.quantization_errors(scales, low - zeros, high - zeros)
        return windows[errors.index(min(errors))]

    def cost(window: tuple[float, int]) -> float:
        """Return the KL divergence or the squared error of a `window` (scale, zero point)."""
        scale, zero = window
        if calibrator == "kl":
            return kl_divergence(stats, scale, low - zero, high - zero)
        return stats.quantization_error(scale, low - zero, high - zero, consumer)

    return min(windows, key=cost)


def _window_zero_point(
    scale: float, range_low: float, range_high: float, split: float, bits: int
) -> int:
    """Return the zero point at which integers of `scale` cover part of [range_low, range_high].

    It is limited to the integers of `bits` bits, so that 0 is represented.

    Parameters
    ----------
    split
        Fraction of the clipped length that lies below the covered part: with 0 that begins at
        `range_low`, with 1 it ends at `range_high`.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    clipped = (range_high - range_low) - (high - low) / scale
    zero = math.floor(low - (range_low + split * clipped) * scale + 0.5)
    return min(max(zero, low), high)


def candidate_scales(
    low: float, high: float, bits: int, *, power_of_two: bool, min_ratio: float = 1.0
) -> list[float]:
    """Return the scales that calibrators try, ascending from that of the full range.

    They are in steps per unit. Powers of two begin with the largest at which no value is off by
    more than half a step; free scales begin with the one that maps the largest magnitude to the
    largest integer of `bits` bits. They end at 16 or 4 times the first, or at `min_ratio` times it
    if that is larger.

    Parameters
    ----------
    low, high
        Smallest and largest value, not both 0.
    """
    if power_of_two:
        base = floor_power_of_two(full_range_scale(low, high, bits))
    else:
        base = ((1 << (bits - 1)) - 1) / max(high, -low)  # MaxValue
    return [base * multiplier for multiplier in _candidate_multipliers(power_of_two, min_ratio)]


def _candidate_scales_to_percentile(
    stats: TensorStats, bits: int, power_of_two: bool
) -> list[float]:
    """Return `candidate_scales` up to the one that represents only 99 percent of the values."""
    low, high = stats.low, stats.high
    min_ratio = max(high, -low) / percentile_threshold(stats, _MIN_COVERED_PERCENT)
    return candidate_scales(low, high, bits, power_of_two=power_of_two, min_ratio=min_ratio)


def _candidate_multipliers(power_of_two: bool, min_ratio: float) -> list[float]:
    """Return the multipliers of the full-range scale, ascending from 1 to at least `min_ratio`.

    They are powers of two up to at least 16, or else 48 geometric steps per factor of 4, up to at
    least 4.
    """
    if power_of_two:
        max_exponent = max(_POWER_OF_TWO_STEPS, math.ceil(math.log2(min_ratio)))
        return [2.0**exponent for exponent in range(max_exponent + 1)]
    steps = max(_FREE_SCALE_STEPS, math.ceil(_FREE_SCALE_STEPS * math.log(min_ratio, 4.0)))
    return [4.0 ** (step / _FREE_SCALE_STEPS) for step in range(steps + 1)]


def percentile_threshold(stats: TensorStats, percentile: float) -> float:
    """Return T > 0 such that `percentile` percent of the values in `stats` have |x| <= T.

    It is read off the histogram and interpolated within its bin; it is never above the largest |x|.
    """
    counts = stats.bins[HALF_BINS:] + stats.bins[HALF_BINS - 1 :: -1]  # by |x|
    cumulative = np.cumsum(counts)
    target_count = min(percentile / 100.0, 1.0) * stats.count
    index = int(np.searchsorted(cumulative, target_count))
    width = math.ldexp(1.0, stats.exponent) * stats.factor
    max_abs = max(stats.high, -stats.low)
    if index >= len(counts):
        return max_abs
    fraction = 1.0
    if counts[index]:
        fraction = (target_count - (cumulative[index] - counts[index])) / counts[index]
    return min((index + max(float(fraction), 1e-3)) * width, max_abs)


def kl_divergence(stats: TensorStats, scale: float, low: int, high: int) -> float:
    """Return the KL divergence of values in `stats` from their integers `low`..`high` at `scale`.

    It compares the histogram, with clipped values added to its outermost bins inside, and the one
    in which the bins of each integer are averaged; a bias for the number of bins is subtracted. The
    bin that begins at zero is excluded. Infinite if no other value is inside; 0 if there is none.
    """
    centers, counts = stats.nonzero_bins()
    first_positive_bin = math.ldexp(1.0, stats.exponent) * stats.factor  # twice its center
    is_included = centers * 2 != first_positive_bin
    centers, counts = centers[is_included], counts[is_included].astype(np.float64)
    integers = np.floor(centers * scale + 0.5)
    inside = np.flatnonzero((integers >= low) & (integers <= high))
    if not len(inside):
        return math.inf if len(counts) else 0.0
    first, end = inside[0], inside[-1] + 1
    inside_counts = counts[first:end]
    reference = inside_counts.copy()
    reference[0] += counts[:first].sum()
    reference[-1] += counts[end:].sum()
    starts = np.flatnonzero(np.diff(integers[first:end], prepend=low - 1))  # of each integer
    bins_per_integer = np.diff(starts, append=len(inside_counts))
    means = np.add.reduceat(inside_counts, starts) / bins_per_integer
    quantized = np.repeat(means, bins_per_integer)
    p, q = reference / reference.sum(), quantized / quantized.sum()
    bias = (len(inside_counts) - len(starts)) / (2 * float(reference.sum()))
    return float(np.dot(p, np.log(p / q))) - bias
