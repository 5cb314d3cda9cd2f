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
        """Start empty: range (inf, -inf), mean NaN, no skipped values."""
        self.count = self.skipped = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = math.nan
        self.absolute = 0.0  # the sum of |x|
        self._squares = 0.0  # the sum of (x - mean)^2
        self.histogram = Histogram()

    def add(self, array: np.ndarray) -> None:
        """Add a batch of any shape and numeric type; values that are not finite are only counted.

        Their number is `skipped`.
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
        """Merge the values of another distribution into this one."""
        self.histogram.merge(other.histogram)
        self._merge_moments(other)

    def state(self, histogram: bool) -> list[object]:
        """Return the state as a list of JSON-ready values for `from_state`.

        The last one is the histogram, or None without `histogram`.
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
        """Create a distribution from a `state`; its histogram is empty if the state has none."""
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
        """The largest |x|; NaN without values."""
        return max(abs(self.low), abs(self.high)) if self.count else math.nan

    def _add_finite(self, values: np.ndarray) -> None:
        """Add finite float64 values to everything but the histogram."""
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
        """Merge everything but the histogram in place (Chan, Golub, LeVeque 1979)."""
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
