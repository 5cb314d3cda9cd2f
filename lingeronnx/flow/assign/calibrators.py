"""Calibrators: from the statistics of a tensor to the scale that holds it best.

Candidate scales go from the one that holds the whole range upwards: powers of two, or twenty-four
per octave for free scales. All know the sign: [-1, 127/128] fits scale 2^7 exactly, 0..255 fits
2^-1.

With a zero point (`choose_affine_qparams`) the range is that of the values and 0, and its ends are
held apart: the candidates of a scale s hold a window of (2^b - 1) / s that begins at the least
value, ends at the largest, or lies between, in quarters of what is cut off. Zero is in every
window, so it is exact.

max         the whole range.
percentile  the largest scale that still holds the share p of all values (p = 99.99 %): the range is
cut at the
            threshold T with ``count(|x| <= T) = p * count``, read off the histogram and
            interpolated within its bin.
mse         the least mean squared error ``E (clamp(round(x*s), low, high)/s - x)^2``; rare large
values are traded for
            resolution. Above 8 bits the least error on what was seen is not the aim: rounding costs
            next to nothing and a larger value later on costs much, so twice the range is held. Of a
            logit, which only a sigmoid or a tangent f reads, the error counts behind it: ``E
            (f(held) - f(x))^2``; what saturates f anyway is cut. So it does where a table or a
            LeakyRelu alone reads a tensor; there f(held) is rounded to the scale of the result, and
            of LeakyRelu's negative side, which counts for little, more is cut.
kl          the least relative entropy between what is there and what the integers keep of it
(Migacz, "8-bit inference
            with TensorRT", 2017), for signed data. With the histogram's bins i and the integers j
            they round to, at the scale s:

                P_i = n_i inside the range, and what lies outside added to the outermost bin inside
                on its side Q_i = the mean of n over the bins of integer j(i)
                KL  = sum_i P_i/|P| * log((P_i/|P|) / (Q_i/|Q|)) - (bins - integers) / (2 |P|)

            Only bins that hold something count. The last term is what the sum would be by chance if
            the density were even within each integer; without it scarce data would look like a loss
            of resolution. The bin that begins at zero is left out: zero is exact at any scale, and
            after a Relu it would outweigh the rest.
"""

from __future__ import annotations

import math

import numpy as np

from ...plan.power_of_two import floor_power_of_two
from ..observe.statistics import HALF_BINS, ConsumerFunction, TensorStats

__all__ = [
    "PERCENTILE",
    "candidate_scales",
    "choose_affine_qparams",
    "choose_symmetric_scale",
    "full_range_scale",
    "kl_divergence",
    "percentile_threshold",
]

#: The share of values, in percent, that the calibrator "percentile" holds.
PERCENTILE = 99.99

_POWER_OF_TWO_STEPS = 4  # candidates above the full-range exponent
_FREE_SCALE_STEPS = 48  # candidates of a free scale, up to four times the full-range scale
_MIN_COVERED_PERCENT = 99.0  # percent of the values that any candidate holds
_WINDOW_SPLITS = (
    0.5,
    0.0,
    0.25,
    0.75,
    1.0,
)  # of what is cut off, how much below the least value of a window


def full_range_scale(stats: TensorStats, bits: int) -> float:
    """Return the largest scale at which no value is off by more than half a step.

    The top value may round to one past the largest integer and saturate: that costs half a step, no
    more.
    """
    return _scale_for_range(stats.low, stats.high, bits)


def _scale_for_range(low: float, high: float, bits: int) -> float:
    top, bottom = (1 << (bits - 1)) - 0.5, (1 << (bits - 1)) + 0.5
    limits = [top / high] if high > 0 else []
    limits += [bottom / -low] if low < 0 else []
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
    """Return the scale for a tensor of signed `bits`.

    power_of_two : only powers of two. calibrator : "max", "percentile", "mse" or "kl". percentile :
    the share in percent that "percentile" holds. through : the curve that alone reads the tensor,
    for "mse". An all-zero tensor gets 2**(bits-1).
    """
    if stats.sum_of_squares == 0:
        return float(1 << (bits - 1))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if calibrator == "percentile":
        reach = percentile_threshold(stats, percentile)
        least, most = max(stats.low, -reach), min(stats.high, reach)
        if power_of_two:
            return floor_power_of_two(_scale_for_range(least, most, bits))
        return high / max(most, -least)
    tried = candidate_scales(stats, bits, power_of_two=power_of_two)
    if calibrator == "max":
        return tried[0]
    if calibrator == "kl":
        tried = candidate_scales(stats, bits, power_of_two=power_of_two, extend_to_percentile=True)
        return min(tried, key=lambda scale: kl_divergence(stats, scale, low, high))
    if bits > 8:
        return tried[0] / 2
    if consumer is not None:
        tried = candidate_scales(stats, bits, power_of_two=power_of_two, extend_to_percentile=True)
        if (
            consumer.scale is not None
            and not power_of_two
            and tried[0] < consumer.scale < tried[-1]
        ):
            tried.append(consumer.scale)  # at which a half-line passes without another rounding
    return min(tried, key=lambda scale: stats.quantization_error(scale, low, high, consumer))


def choose_affine_qparams(
    stats: TensorStats,
    bits: int,
    *,
    power_of_two: bool,
    calibrator: str,
    percentile: float = PERCENTILE,
    consumer: ConsumerFunction | None = None,
) -> tuple[float, int]:
    """Return (scale, zero point) for a tensor of signed `bits`, arguments as for `choose_symmetric_scale`.

    The integer ``q = clamp(floor(x * scale + 1/2) + zero point)`` stands for x; 0 is always held
    exactly.
    """
    least, most = min(stats.low, 0.0), max(stats.high, 0.0)
    if stats.sum_of_squares == 0:
        return float(1 << (bits - 1)), 0
    if calibrator == "percentile":
        reach = percentile_threshold(stats, percentile)
        least, most = max(least, -reach), min(most, reach)
    full = ((1 << bits) - 1) / (most - least)
    base = floor_power_of_two(full) if power_of_two else full
    if calibrator in ("max", "percentile"):
        return base, _window_zero_point(base, least, most, _WINDOW_SPLITS[0], bits)
    far = calibrator == "kl" or consumer is not None
    over = max(most, -least) / percentile_threshold(stats, _MIN_COVERED_PERCENT) if far else 1.0
    scales = [base * step for step in _candidate_multipliers(power_of_two, over)]
    tried = list(
        dict.fromkeys(
            (s, _window_zero_point(s, least, most, share, bits))
            for s in scales
            for share in _WINDOW_SPLITS
        )
    )
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def cost(window: tuple[float, int]) -> float:
        scale, zero = window
        if calibrator == "kl":
            return kl_divergence(stats, scale, low - zero, high - zero)
        return stats.quantization_error(scale, low - zero, high - zero, consumer)

    return min(tried, key=cost)


def _window_zero_point(scale: float, least: float, most: float, share: float, bits: int) -> int:
    """Return the zero point of a window at `scale` in [least, most], `share` of what it leaves out lying below it."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    out = (most - least) - (high - low) / scale
    return min(max(math.floor(low - (least + share * out) * scale + 0.5), low), high)


def candidate_scales(
    stats: TensorStats, bits: int, *, power_of_two: bool, extend_to_percentile: bool = False
) -> list[float]:
    """Return the scales to choose from, from the one that holds the whole range upwards.

    extend_to_percentile : go on until only `_MIN_COVERED_PERCENT` percent of the values are held,
    if that is further.
    """
    over = (
        max(stats.high, -stats.low) / percentile_threshold(stats, _MIN_COVERED_PERCENT)
        if extend_to_percentile
        else 1.0
    )
    if power_of_two:
        base = floor_power_of_two(full_range_scale(stats, bits))
    else:
        base = ((1 << (bits - 1)) - 1) / max(stats.high, -stats.low)  # MaxValue
    return [base * step for step in _candidate_multipliers(power_of_two, over)]


def _candidate_multipliers(power: bool, min_ratio: float) -> list[float]:
    """Return what the scale of the whole range is multiplied by, up to `min_ratio` at least."""
    if power:
        return [
            2.0**step
            for step in range(max(_POWER_OF_TWO_STEPS, math.ceil(math.log2(min_ratio))) + 1)
        ]
    steps = max(_FREE_SCALE_STEPS, math.ceil(_FREE_SCALE_STEPS * math.log(min_ratio, 4.0)))
    return [4.0 ** (step / _FREE_SCALE_STEPS) for step in range(steps + 1)]


def percentile_threshold(stats: TensorStats, percentile: float) -> float:
    """Return T > 0 such that `percentile` percent of the values have |x| <= T.

    At most the largest |x| seen.
    """
    sizes = stats.bins[HALF_BINS:] + stats.bins[HALF_BINS - 1 :: -1]  # by |x|, in bins of one width
    counted = np.cumsum(sizes)
    wanted = min(percentile / 100.0, 1.0) * stats.count
    index = int(np.searchsorted(counted, wanted))
    width = math.ldexp(1.0, stats.exponent) * stats.factor
    largest = max(stats.high, -stats.low)
    if index >= len(sizes):
        return largest
    inside = (wanted - (counted[index] - sizes[index])) / sizes[index] if sizes[index] else 1.0
    return min((index + max(float(inside), 1e-3)) * width, largest)


def kl_divergence(stats: TensorStats, scale: float, low: int, high: int) -> float:
    """Return KL of the module's docstring for integers low..high at `scale`.

    Infinite where no value is inside.
    """
    centres, counts = stats.nonzero_bins()
    other = (
        centres * 2 != math.ldexp(1.0, stats.exponent) * stats.factor
    )  # all but the bin that begins at zero
    centres, counts = centres[other], counts[other].astype(np.float64)
    integers = np.floor(centres * scale + 0.5)
    inside = np.flatnonzero((integers >= low) & (integers <= high))
    if not len(inside):
        return math.inf if len(counts) else 0.0
    first, last = inside[0], inside[-1] + 1
    there = counts[first:last].copy()
    there[0] += counts[:first].sum()
    there[-1] += counts[last:].sum()
    kept = counts[first:last]
    starts = np.flatnonzero(
        np.diff(integers[first:last], prepend=low - 1)
    )  # where the next integer begins
    sizes = np.diff(starts, append=len(kept))
    even = np.repeat(np.add.reduceat(kept, starts) / sizes, sizes)
    p, q = there / there.sum(), even / even.sum()
    return float(np.dot(p, np.log(p / q))) - (len(kept) - len(starts)) / (2 * float(there.sum()))
