"""A histogram of any number of values whose range is only known at the end, in constant memory.

Up to 4096 values are stored, and everything is exact. Beyond that, values are counted in bins whose
width is the smallest power of two for which at most 8192 bins cover the range. A growing range
merges neighbouring bins exactly, so the split of the data into batches does not matter. Such a bin
counts entirely at its middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BINS", "Histogram", "NonzeroBins"]

#: Points of the histograms compared by KL.
BINS = 128

_MAX_EXACT_VALUES = 4096  # values that are stored
_BIN_COUNT = 8192  # bins used beyond that
_MIN_EXPONENT = -1040  # exponent of the bin width if all values are 0


@dataclass(frozen=True)
class NonzeroBins:
    """The bins of a histogram that contain values.

    Bin k counts the values in [(first + k) * 2**exponent, (first + k + 1) * 2**exponent).

    Parameters
    ----------
    exponent
        Exponent of the bin width.
    first
        Index of bin 0.
    index
        The bins k that contain values, int64 [n].
    counts
        Number of values in each of them, int64 [n].
    """

    exponent: int
    first: int
    index: np.ndarray
    counts: np.ndarray


class Histogram:
    """Frequencies of values whose range is only known at the end."""

    def __init__(self) -> None:
        """Start empty; values are stored exactly at first, instead of being counted in bins."""
        self.low, self.high = math.inf, -math.inf
        self.count = 0
        self.zeros = 0  # number of values that are 0, such as those clipped by a Relu
        self._exact_batches: list[np.ndarray] | None = []
        self._exponent = _MIN_EXPONENT
        self._first = 0  # index of the first bin: bin k counts [k, k+1) * 2**exponent
        self._bins = np.zeros(_BIN_COUNT, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add finite values, float64 [n], and update count, zeros and range.

        While there are at most 4096 values in all, they are stored (the array itself, not a copy).
        With more, the stored and all later values are counted in bins instead.
        """
        if not values.size:
            return
        self.count += values.size
        self.zeros += int(values.size - np.count_nonzero(values))
        self.low, self.high = (
            min(self.low, float(values.min())),
            max(self.high, float(values.max())),
        )
        if self._exact_batches is not None and self.count <= _MAX_EXACT_VALUES:
            self._exact_batches.append(values)
            return
        self._extend_bins()
        self._bin_exact_values()
        self._count_in_bins(values)

    def merge(self, other: Histogram) -> None:
        """Add the values or the bins of another histogram to this one, in place.

        If the other one still stores its exact values, they are added like further values.
        Otherwise its bins are added to the bins here, after these were widened to the common range.
        """
        if not other.count:
            return
        if other._exact_batches is not None:
            for values in other._exact_batches:
                self.add(values)
            return
        self.count += other.count
        self.zeros += other.zeros
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._extend_bins()
        self._bin_exact_values()
        index = np.flatnonzero(other._bins)
        bins = ((index + other._first) >> (self._exponent - other._exponent)) - self._first
        np.add.at(self._bins, bins, other._bins[index])

    @property
    def state(self) -> list[object]:
        """The state as JSON-ready values, from which `from_state` creates an equal histogram.

        A flat list of all values while they are stored exactly; else [low, high, count, exponent,
        first, bin indices, bin counts, number of zeros].
        """
        if self._exact_batches is not None:
            return [value for values in self._exact_batches for value in values.tolist()]
        bins = self.nonzero_bins
        numbers = [self.low, self.high, self.count, bins.exponent, bins.first]
        return [*numbers, bins.index.tolist(), bins.counts.tolist(), self.zeros]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Histogram:
        """Create a histogram from a `state`: exact values, or range, count, bins and zeros.

        A state without an 8th element, from older files, has no number of zeros; it is then 0.
        """
        if len(state) < 7 or not isinstance(state[6], list):
            histogram = cls()
            histogram.add(np.array(state, np.float64))
            return histogram
        low, high, count, exponent, first, index, counts, *zeros = (
            state  # older files have no zeros
        )
        bins = NonzeroBins(exponent, first, *np.array([index, counts], np.int64))
        histogram = cls.from_bins(low, high, count, bins)
        histogram.zeros = zeros[0] if zeros else 0
        return histogram

    @classmethod
    def from_bins(cls, low: float, high: float, count: int, bins: NonzeroBins) -> Histogram:
        """Create a histogram of `count` values from `low` to `high` that were counted in `bins`.

        Its number of zeros is 0.
        """
        histogram = cls()
        histogram.low, histogram.high, histogram.count, histogram._exact_batches = (
            low,
            high,
            count,
            None,
        )
        histogram._exponent, histogram._first = bins.exponent, bins.first
        histogram._bins[bins.index] = bins.counts
        return histogram

    @property
    def exact_values(self) -> np.ndarray | None:
        """All values, float64 [n], in the order added; None if there are more than 4096."""
        if self._exact_batches is None:
            return None
        return np.concatenate(self._exact_batches) if self._exact_batches else np.zeros(0)

    @property
    def nonzero_bins(self) -> NonzeroBins:
        """The bins that contain values, with exponent, first index, indices and counts.

        There are none as long as all values are stored exactly instead of being counted.
        """
        index = np.flatnonzero(self._bins)
        return NonzeroBins(self._exponent, self._first, index, self._bins[index])

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return representative values and their frequencies.

        Returns
        -------
        values : float64 [n]
            All values in ascending order if they are kept exactly, else the middles of the nonzero
            bins, followed by 0.
        counts : int64 [n]
            How many values each of them represents; zeros count at the last one, not in their bin.
        """
        exact = self.exact_values
        if exact is not None:
            return np.sort(exact), np.ones(exact.size, np.int64)
        bins = self.nonzero_bins
        index = bins.index + bins.first
        middles = np.clip(np.ldexp(index + 0.5, bins.exponent), self.low, self.high)
        counts = bins.counts - self.zeros * (index == 0)
        return np.append(middles, 0.0), np.append(counts, self.zeros)

    def bins(self, low: float, high: float, bin_count: int = BINS) -> np.ndarray:
        """Count the values in `bin_count` equal bins over [low, high], which must hold all values.

        As in numpy.histogram, the last bin includes its upper edge, and if low = high the range is
        widened by 0.5 on both sides. A range with fewer floats than bins is widened as well.

        Returns
        -------
        int64 [bin_count]
        """
        value_range = _widen_range(low, high, bin_count)
        exact = self.exact_values
        if exact is not None:
            return np.histogram(exact, bin_count, value_range)[0].astype(np.int64)
        index = np.flatnonzero(self._bins)
        middles = np.clip(np.ldexp(index + self._first + 0.5, self._exponent), self.low, self.high)
        weights = self._bins[index].astype(np.float64)
        counts = np.histogram(middles, bin_count, value_range, weights=weights)[0]
        rounded: np.ndarray = np.rint(counts).astype(np.int64)
        return rounded

    def interpolated_counts(self, low: float, high: float, point_count: int = BINS) -> np.ndarray:
        """Count the values at `point_count` equally spaced points from `low` to `high`.

        A value between two points counts at both, in proportion to its distance from the other
        point. So neither the points nor the steps of integers cause gaps, and a value that changes
        a little moves a little of its count. The range is widened if low = high, or if it has fewer
        floats than points.

        Returns
        -------
        float64 [point_count]
        """
        values, weights = self.values()
        low, high = _widen_range(low, high, point_count)
        positions = np.clip((values - low) * ((point_count - 1) / (high - low)), 0, point_count - 1)
        below = np.minimum(np.floor(positions).astype(np.int64), point_count - 2)
        above = weights * (positions - below)
        lower_counts = np.bincount(below, weights - above, point_count)
        return lower_counts + np.bincount(below + 1, above, point_count)

    def quantile(self, fraction: float) -> float:
        """Return the value that the fraction `fraction` (0 to 1) of all values do not exceed.

        Exact up to 4096 values (interpolated as in numpy.quantile); beyond that interpolated within
        a bin and accurate to its width. NaN without values.
        """
        if not self.count:
            return math.nan
        if self._exact_batches is not None:
            return float(np.quantile(np.concatenate(self._exact_batches), fraction))
        cumulative = np.cumsum(self._bins)
        index = int(np.searchsorted(cumulative, fraction * self.count))
        count_below = cumulative[index - 1] if index else 0
        within_bin = (fraction * self.count - count_below) / max(int(self._bins[index]), 1)
        value = np.ldexp(self._first + index + within_bin, self._exponent)
        return float(np.clip(value, self.low, self.high))

    def _bin_exact_values(self) -> None:
        """Count the stored values in bins, and stop storing values from now on.

        Does nothing if values are counted in bins already. The bins must cover the range.
        """
        batches, self._exact_batches = self._exact_batches, None
        for values in batches or ():
            self._count_in_bins(values)

    def _count_in_bins(self, values: np.ndarray) -> None:
        """Add finite values, float64 [n], to the counts of their bins, which must cover them."""
        bins = np.floor(np.ldexp(values, -self._exponent)).astype(np.int64) - self._first
        self._bins += np.bincount(bins, minlength=_BIN_COUNT)

    def _extend_bins(self) -> None:
        """Choose bins that cover `low` to `high` and move the counts so far into them, in place.

        The width is a power of two and can only grow, so each old bin falls entirely into a new
        one.
        """
        exponent = _bin_exponent(self.low, self.high)
        first = _bin_index(self.low, exponent)
        if (exponent, first) == (self._exponent, self._first):
            return
        index = np.flatnonzero(self._bins)
        new_index = ((index + self._first) >> (exponent - self._exponent)) - first
        new_bins = np.zeros_like(self._bins)
        np.add.at(new_bins, new_index, self._bins[index])
        self._bins, self._first, self._exponent = new_bins, first, exponent


def _widen_range(low: float, high: float, bin_count: int) -> tuple[float, float]:
    """Return a range with low < high that spans at least twice as many floats as there are bins.

    A range with low = high is widened by 0.5 on both sides. A range that is still too narrow is
    then widened on both sides by 2 * bin_count units in the last place.
    """
    if high <= low:
        low, high = low - 0.5, high + 0.5
    min_width = 2 * bin_count * math.ulp(max(abs(low), abs(high)))
    return (low, high) if high - low >= min_width else (low - min_width, high + min_width)


def _bin_index(value: float, exponent: int) -> int:
    """Return the index k of the bin [k, k+1) * 2**exponent that contains a value."""
    return math.floor(math.ldexp(value, -exponent))


def _bin_exponent(low: float, high: float) -> int:
    """Return the smallest e for which 8192 bins of width 2**e cover [low, high].

    The exponent is large enough that indices of bins have at most 52 bits. Returns -1040 if both
    bounds are 0.
    """
    max_abs = max(abs(low), abs(high))
    if max_abs == 0:
        return _MIN_EXPONENT
    exponent = math.frexp(max_abs)[1] - 52
    if high > low:
        exponent = max(exponent, math.frexp(high - low)[1] - _BIN_COUNT.bit_length())
    while _bin_index(high, exponent) - _bin_index(low, exponent) >= _BIN_COUNT:
        exponent += 1
    return exponent
