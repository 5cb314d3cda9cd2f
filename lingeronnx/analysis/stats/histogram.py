"""A histogram of any number of values over a range that is known at the end only.

One pass, constant memory.
Up to 4096 values are kept, and everything is exact. Beyond, they are counted in bins whose width is
the least power of two of which at most 8192 cover the range, so that a growing range joins
neighbouring bins exactly and no split of the data into batches matters; such a bin goes whole where
its middle belongs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BINS", "Histogram", "NonzeroBins"]

#: Points of the histograms that KL compares.
BINS = 128

_MAX_EXACT_VALUES = 4096  # values up to which it is exact
_BIN_COUNT = 8192  # bins that are counted in beyond that
_MIN_EXPONENT = -1040  # the exponent of their width for values that are all 0


@dataclass(frozen=True)
class NonzeroBins:
    """Bins that hold values.

    Bin k counts those in [(first + k) * 2**exponent, (first + k + 1) * 2**exponent).
    index : the bins k, int64 [n]. counts : of values in each, int64 [n].
    """

    exponent: int
    first: int
    index: np.ndarray
    counts: np.ndarray


class Histogram:
    """How often values occur, for a range that is known at the end only."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.count = 0
        self.zeros = 0  # how many are 0: what a Relu cuts off
        self._kept: list[np.ndarray] | None = []
        self._exponent = _MIN_EXPONENT
        self._first = 0  # the number of the first bin: bin k counts [k, k+1) * 2**exponent
        self._bins = np.zeros(_BIN_COUNT, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Take in finite values, float64 [n]."""
        if not values.size:
            return
        self.count += values.size
        self.zeros += int(values.size - np.count_nonzero(values))
        self.low, self.high = (
            min(self.low, float(values.min())),
            max(self.high, float(values.max())),
        )
        if self._kept is not None and self.count <= _MAX_EXACT_VALUES:
            self._kept.append(values)
            return
        self._extend_bins()
        self._bin_kept_values()
        self._count(values)

    def merge(self, other: Histogram) -> None:
        """Take in what another has counted."""
        if not other.count:
            return
        if other._kept is not None:
            for values in other._kept:
                self.add(values)
            return
        self.count += other.count
        self.zeros += other.zeros
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._extend_bins()
        self._bin_kept_values()
        index = np.flatnonzero(other._bins)
        places = ((index + other._first) >> (self._exponent - other._exponent)) - self._first
        np.add.at(self._bins, places, other._bins[index])

    @property
    def state(self) -> list[object]:
        """All it holds, in types that JSON has; `from_state` makes an equal one of it."""
        if self._kept is not None:
            return [value for values in self._kept for value in values.tolist()]
        bins = self.nonzero_bins
        numbers = [self.low, self.high, self.count, bins.exponent, bins.first]
        return [*numbers, bins.index.tolist(), bins.counts.tolist(), self.zeros]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Histogram:
        """Return what had the `state`."""
        if len(state) < 7 or not isinstance(state[6], list):
            histogram = cls()
            histogram.add(np.array(state, np.float64))
            return histogram
        low, high, count, exponent, first, index, counts, *zeros = (
            state  # the last is missing in older files
        )
        histogram = cls.from_bins(
            low, high, count, NonzeroBins(exponent, first, *np.array([index, counts], np.int64))
        )
        histogram.zeros = zeros[0] if zeros else 0
        return histogram

    @classmethod
    def from_bins(cls, low: float, high: float, count: int, bins: NonzeroBins) -> Histogram:
        """Return a histogram of `count` values from `low` to `high` that were counted in `bins`."""
        histogram = cls()
        histogram.low, histogram.high, histogram.count, histogram._kept = low, high, count, None
        histogram._exponent, histogram._first = bins.exponent, bins.first
        histogram._bins[bins.index] = bins.counts
        return histogram

    @property
    def kept(self) -> np.ndarray | None:
        """All values, float64 [n], where there are no more than are kept.

        Else None: see `nonzero_bins`.
        """
        if self._kept is None:
            return None
        return np.concatenate(self._kept) if self._kept else np.zeros(0)

    @property
    def nonzero_bins(self) -> NonzeroBins:
        """The bins that hold any value; none as long as all values are kept."""
        index = np.flatnonzero(self._bins)
        return NonzeroBins(self._exponent, self._first, index, self._bins[index])

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values in order, or 0 and the middles of the bins that hold some, and how many each stands for.

        float64 [n], int64 [n].
        """
        if (kept := self.kept) is not None:
            return np.sort(kept), np.ones(kept.size, np.int64)
        bins = self.nonzero_bins
        places = np.clip(
            np.ldexp(bins.index + bins.first + 0.5, bins.exponent), self.low, self.high
        )
        return np.append(places, 0.0), np.append(
            bins.counts - self.zeros * (bins.index + bins.first == 0), self.zeros
        )

    def bins(self, low: float, high: float, number: int = BINS) -> np.ndarray:
        """Return int64 [number].

        How many values lie in each of `number` equal bins over [low, high].
        As numpy.histogram: the last bin holds its upper end too; low = high is widened by 0.5 on
        either side, and what has fewer floats than bins to that number. [low, high] must hold all
        values.
        """
        if (values := self.kept) is not None:
            return np.histogram(values, number, _widen_range(low, high, number))[0].astype(np.int64)
        index = np.flatnonzero(self._bins)
        middles = np.clip(np.ldexp(index + self._first + 0.5, self._exponent), self.low, self.high)
        counted = np.histogram(
            middles,
            number,
            _widen_range(low, high, number),
            weights=self._bins[index].astype(np.float64),
        )[0]
        return np.rint(counted).astype(np.int64)

    def interpolated_counts(self, low: float, high: float, number: int = BINS) -> np.ndarray:
        """Return float64 [number].

        The values counted at `number` equally spaced points from `low` to `high`.
        A value between two points counts at both, at each by how near it is; so neither the points
        nor the steps of integers make gaps of their own, and a value that moves a little moves a
        little of its count. Widened as `bins`.
        """
        places, weights = self.values()
        low, high = _widen_range(low, high, number)
        at = np.clip((places - low) * ((number - 1) / (high - low)), 0, number - 1)
        below = np.minimum(np.floor(at).astype(np.int64), number - 2)
        above = weights * (at - below)
        return np.bincount(below, weights - above, number) + np.bincount(below + 1, above, number)

    def quantile(self, share: float) -> float:
        """Return the value that `share` of all values do not exceed, exact up to 4096 values, then to a bin's width."""
        if not self.count:
            return math.nan
        if self._kept is not None:
            return float(np.quantile(np.concatenate(self._kept), share))
        reached = np.cumsum(self._bins)
        at = int(np.searchsorted(reached, share * self.count))
        before = reached[at - 1] if at else 0
        inside = (share * self.count - before) / max(int(self._bins[at]), 1)
        return float(
            np.clip(np.ldexp(self._first + at + inside, self._exponent), self.low, self.high)
        )

    def _bin_kept_values(self) -> None:
        """Count what was kept so far."""
        kept, self._kept = self._kept, None
        for values in kept or ():
            self._count(values)

    def _count(self, values: np.ndarray) -> None:
        places = np.floor(np.ldexp(values, -self._exponent)).astype(np.int64) - self._first
        self._bins += np.bincount(places, minlength=_BIN_COUNT)

    def _extend_bins(self) -> None:
        """Make the bins those that the range asks for; a range that grows joins neighbours."""
        exponent = _bin_exponent(self.low, self.high)
        first = _bin_index(self.low, exponent)
        if (exponent, first) == (self._exponent, self._first):
            return
        index = np.flatnonzero(self._bins)
        moved = np.zeros_like(self._bins)
        np.add.at(
            moved, ((index + self._first) >> (exponent - self._exponent)) - first, self._bins[index]
        )
        self._bins, self._first, self._exponent = moved, first, exponent


def _widen_range(low: float, high: float, number: int) -> tuple[float, float]:
    """Return the range, or one around it where it is nothing, or has fewer floats than bins."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    finest = 2 * number * math.ulp(max(abs(low), abs(high)))
    return (low, high) if high - low >= finest else (low - finest, high + finest)


def _bin_index(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def _bin_exponent(low: float, high: float) -> int:
    """Return the least e for which bins of width 2**e cover [low, high], with numbers of 52 bits."""
    reach = max(abs(low), abs(high))
    if reach == 0:
        return _MIN_EXPONENT
    exponent = math.frexp(reach)[1] - 52
    if high > low:
        exponent = max(exponent, math.frexp(high - low)[1] - _BIN_COUNT.bit_length())
    while _bin_index(high, exponent) - _bin_index(low, exponent) >= _BIN_COUNT:
        exponent += 1
    return exponent
