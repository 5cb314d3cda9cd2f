"""Count, range, mean, variance and histogram of a stream of arrays, in constant memory.

Sums are float64. Results for parts of a run can be computed separately and merged; merging them in
order gives the same bits as adding the parts in order. An element that is infinite or NaN is
ignored and counted in `skipped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .histogram import Histogram

__all__ = ["Distribution"]

_CHUNK = 1 << 16  # elements processed at a time, to fit a core's cache


class Distribution:
    """Count, range, mean, variance and histogram of one stream of values."""

    def __init__(self) -> None:
        """Start empty: count 0, range (inf, -inf), mean NaN, nothing skipped."""
        self.count = self.skipped = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = math.nan
        self.absolute = 0.0  # the sum of |x|
        self._squares = 0.0  # the sum of (x - mean)^2
        self.histogram = Histogram()

    def add(self, array: np.ndarray) -> None:
        """Add a batch of any shape and numeric type to the moments and the histogram.

        NaN and infinite values are left out and only counted in `skipped`.
        """
        batch = Distribution()
        for start in range(0, array.size, _CHUNK):
            values = array.reshape(-1)[start : start + _CHUNK].astype(np.float64)
            finite = np.isfinite(values)
            batch.skipped += int(values.size - np.count_nonzero(finite))
            values = values[finite]
            batch._add_finite(values)
            self.histogram.add(values)
        self._merge_moments(batch)

    def merge(self, other: Distribution) -> None:
        """Merge histogram, count, range and moments of another distribution in place."""
        self.histogram.merge(other.histogram)
        self._merge_moments(other)

    def state(self, histogram: bool) -> list[object]:
        """Return the state as a list of eight JSON-ready values, which `from_state` reads.

        These are count, skipped, low, high, mean, sum of |x|, sum of (x - mean)^2, and the state of
        the histogram, or None without `histogram`.
        """
        numbers = [
            self.count,
            self.skipped,
            self.low,
            self.high,
            self.mean,
            self.absolute,
            self._squares,
        ]
        return [*numbers, self.histogram.state if histogram else None]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Distribution:
        """Create a distribution from the eight values that the method `state` returns.

        They are count, skipped, low, high, mean, sum of |x|, sum of (x - mean)^2, and the state of
        the histogram or None, which gives an empty histogram.
        """
        values = cls()
        (
            values.count,
            values.skipped,
            values.low,
            values.high,
            values.mean,
            values.absolute,
            values._squares,
        ) = state[:7]
        values.histogram = Histogram() if state[7] is None else Histogram.from_state(state[7])
        return values

    @property
    def variance(self) -> float:
        """The variance of the population; NaN without values."""
        return self._squares / self.count if self.count else math.nan

    @property
    def mean_absolute(self) -> float:
        """The mean of |x|; NaN without values."""
        return self.absolute / self.count if self.count else math.nan

    @property
    def max_abs(self) -> float:
        """The largest |x| of all finite values; NaN without values."""
        return max(abs(self.low), abs(self.high)) if self.count else math.nan

    def _add_finite(self, values: np.ndarray) -> None:
        """Add finite float64 values to count, range and moments, but not to the histogram."""
        if not values.size:
            return
        batch = Distribution.__new__(Distribution)
        batch.count, batch.skipped = values.size, 0
        batch.low, batch.high = float(values.min()), float(values.max())
        batch.mean = float(values.mean())
        batch.absolute = float(np.abs(values).sum())
        batch._squares = float(np.square(values - batch.mean).sum())
        self._merge_moments(batch)

    def _merge_moments(self, other: Distribution) -> None:
        """Merge count, range, mean, variance, sum of |x| and skipped of `other` in place.

        Mean and squares are combined pairwise (Chan, Golub, LeVeque 1979). The histogram is not
        changed.
        """
        self.skipped += other.skipped
        if not other.count:
            return
        count = self.count + other.count
        if self.count:
            delta = other.mean - self.mean
            self._squares += other._squares + delta * delta * (self.count * other.count / count)
            self.mean += delta * (other.count / count)
        else:
            self.mean, self._squares = other.mean, other._squares
        self.count = count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.absolute += other.absolute
