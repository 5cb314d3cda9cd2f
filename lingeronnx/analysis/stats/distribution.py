"""Number, range, mean, variance and histogram of one stream of arrays: one pass, constant memory.

Sums are float64. Parts can be counted apart and merged: merging the parts of a run in order gives
the bits that adding them in order gives. An element that is infinite or not a number is left out
and counted in `skipped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .histogram import Histogram

__all__ = ["Distribution"]

_CHUNK = 1 << 16  # elements worked on at a time: what a core's cache holds


class Distribution:
    """Number, range, mean, variance and histogram of one stream of values."""

    def __init__(self) -> None:
        self.count = self.skipped = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = math.nan
        self.absolute = 0.0  # the sum of |x|
        self._squares = 0.0  # the sum of (x - mean)^2
        self.histogram = Histogram()

    def add(self, array: np.ndarray) -> None:
        """Take in a batch of any shape and any numeric type."""
        part = Distribution()
        for start in range(0, array.size, _CHUNK):
            values = array.reshape(-1)[start : start + _CHUNK].astype(np.float64)
            sound = np.isfinite(values)
            part.skipped += int(values.size - np.count_nonzero(sound))
            values = values[sound]
            part._add_finite(values)
            self.histogram.add(values)
        self._merge_moments(part)

    def merge(self, other: Distribution) -> None:
        """Take in what another has counted."""
        self.histogram.merge(other.histogram)
        self._merge_moments(other)

    def state(self, histogram: bool) -> list[object]:
        """Return all it holds, in types that JSON has, with the histogram or without.

        `from_state` makes an equal one of it.
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
        """Return what had the `state`."""
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
        """The population's variance; nan without values."""
        return self._squares / self.count if self.count else math.nan

    @property
    def mean_absolute(self) -> float:
        """Mean |x|; nan without values."""
        return self.absolute / self.count if self.count else math.nan

    @property
    def largest(self) -> float:
        """Max |x|; nan without values."""
        return max(abs(self.low), abs(self.high)) if self.count else math.nan

    def _add_finite(self, values: np.ndarray) -> None:
        """Take in finite float64 values, but for the histogram."""
        if not values.size:
            return
        part = Distribution.__new__(Distribution)
        part.count, part.skipped = values.size, 0
        part.low, part.high = float(values.min()), float(values.max())
        part.mean = float(values.mean())
        part.absolute = float(np.abs(values).sum())
        part._squares = float(np.square(values - part.mean).sum())
        self._merge_moments(part)

    def _merge_moments(self, other: Distribution) -> None:
        """Take in all but the histogram of another (Chan, Golub, LeVeque 1979)."""
        self.skipped += other.skipped
        if not other.count:
            return
        count = self.count + other.count
        if self.count:
            gap = other.mean - self.mean
            self._squares += other._squares + gap * gap * (self.count * other.count / count)
            self.mean += gap * (other.count / count)
        else:
            self.mean, self._squares = other.mean, other._squares
        self.count = count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.absolute += other.absolute
