"""Measures of agreement between two streams of arrays, in one pass and constant memory.

`PairMeasures` follows two streams of equal shapes: x, the baseline, and y, the analysed tensor,
each with a `Distribution`. Sums are float64. Results for parts of a run can be computed separately
and merged; merging them in order gives the same bits as adding the parts in order.

Formulas, over all elements of all samples: L1 = mean |x-y|; MSE = mean (x-y)^2; Cosine = sum xy /
sqrt(sum x^2 sum y^2); SQNR = 10 log10(sum x^2 / sum (x-y)^2) dB; Atol = max |x-y|; Rtol = max
|x-y| / |x|, or the largest float32 where x is 0 and y is not; variances are those of the
population; KL = sum p log(p/q) over the two histograms.

**Bins of KL**: 128 points, equally spaced over the union of both ranges. A value between two
points counts at both, in proportion to its distance from the other point, and every probability is
at least 1e-12. So integers of few bits have no artificial gaps, and KL rises with the noise on a
tensor. KL compares which values occur, not where; tensors are therefore ordered by SQNR. It is
exact up to 4096 elements and approximate beyond: see `histogram`.

**KL_softmax**: sum p log(p/q) with p = softmax(x) and q = softmax(y) along axis 1, divided by the
number of elements: ``F.kl_div(log_softmax(y, 1), softmax(x, 1), reduction="mean")`` of PyTorch. It
compares outputs as probabilities, and is NaN for tensors of rank 1.

An element that is infinite or NaN on either side is ignored and counted in `skipped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.arithmetic import ratio_db
from ...runtime.metrics import sum_softmax_divergence
from .distribution import Distribution
from .stored_form import StoredForm

__all__ = [
    "LOWER_IS_BETTER",
    "METRICS",
    "MIN_PROBABILITY",
    "PairMeasures",
    "TABLE_METRICS",
    "kl_divergence",
]

#: Lower bound of a bin's probability.
MIN_PROBABILITY = 1e-12

#: Name of a measure in tables, in their order -> attribute of `PairMeasures`.
TABLE_METRICS = {
    "Cosine": "cosine",
    "MSE": "mse",
    "L1": "l1",
    "KL": "kl",
    "SQNR": "sqnr",
    "Atol": "atol",
    "Rtol": "rtol",
}

#: All measures: those of tables, and the KL divergence of tensors as logits.
METRICS = {**TABLE_METRICS, "KL_softmax": "kl_softmax"}

#: Measures of error, which fall with agreement; the others rise.
LOWER_IS_BETTER = frozenset({"MSE", "L1", "KL", "Atol", "Rtol", "KL_softmax"})

_CHUNK = 1 << 16  # elements processed at a time, to fit a core's cache
_LARGEST = float(np.finfo(np.float32).max)


class PairMeasures:
    """All measures of two streams of arrays.

    Attributes
    ----------
    x, y : Distribution
        Distributions of both streams, over the elements that are finite in both.
    stored_form : StoredForm or None
        How y is stored as integers, from the last batch; None for float tensors.
    skipped : int
        Elements that are infinite or NaN on either side.
    atol, rtol : float
        Largest absolute and relative error.
    """

    def __init__(self) -> None:
        """Start without values: all sums and extremes are 0, and `stored_form` is None."""
        self.x, self.y = Distribution(), Distribution()
        self.stored_form: StoredForm | None = None
        self.skipped = 0
        self.atol = self.rtol = 0.0
        self._sums = np.zeros(5)  # of x^2, y^2, xy, (x-y)^2, |x-y|
        self._softmax_sums = np.zeros(2)  # of p log(p/q) of softmax, and its elements
        self._used_fraction = 0.0
        self._saturated = 0  # elements of y at the lowest or highest integer
        self._out_of_range = 0  # elements of x more than a step outside the range of y

    def add(
        self,
        x: np.ndarray,
        y: np.ndarray,
        stored_form: StoredForm | None = None,
        unclipped: np.ndarray | None = None,
    ) -> None:
        """Add a batch of both streams.

        Parameters
        ----------
        x
            Batch of the baseline.
        y
            Batch of the analysed tensor, of the same shape. With a `stored_form` it is integers or
            reals in stored units (a float run of a plan), and is converted to the user's units
            before it is compared.
        stored_form
            How y is stored, or None for float values.
        unclipped
            x as it would be if no input of the layer were clipped, of the same shape, for the check
            whether x is within the range of y; default `x`. Elements that are not finite in x or y
            are skipped and counted.

        Raises
        ------
        ValueError
            If the shapes differ.
        """
        if x.shape != y.shape:
            raise ValueError(f"arrays of shape {x.shape} and {y.shape} cannot be compared")
        batch = PairMeasures()
        # counts of histograms are exact in any order, so that the batch can share them
        batch.x.histogram, batch.y.histogram = self.x.histogram, self.y.histogram
        batch.stored_form = stored_form
        y_float = y if stored_form is None else stored_form.real(y)
        steps = None if stored_form is None else _StoredSteps.of(x, y, stored_form, unclipped)
        for start in range(0, x.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            a, b = (array.reshape(-1)[chunk].astype(np.float64) for array in (x, y_float))
            finite = np.isfinite(a) & np.isfinite(b)
            mask = slice(None) if finite.all() else finite
            batch._add_finite(a[mask], b[mask])
            batch.skipped += int(finite.size - np.count_nonzero(finite))
            if steps is not None:
                batch._count_saturation(steps.expected[chunk][mask], steps.actual[chunk][mask])
        if x.ndim >= 2:
            batch._softmax_sums += sum_softmax_divergence(x, y_float), x.size
        self._merge_sums(batch)

    def merge(self, other: PairMeasures) -> None:
        """Merge histograms, sums and extremes of further samples into these measures, in place."""
        self.x.histogram.merge(other.x.histogram)
        self.y.histogram.merge(other.y.histogram)
        self._merge_sums(other)

    def state(self, histograms: bool) -> list[object]:
        """Return the state of measures of float tensors as JSON-ready values, read by `from_state`.

        With `histograms` it includes the histograms, which only KL needs and which are most of the
        state. What was counted for integer tensors (saturation, clipped and used range) is not
        included.
        """
        distributions = [self.x.state(histograms), self.y.state(histograms)]
        return [
            *distributions,
            self.skipped,
            self.atol,
            self.rtol,
            [float(total) for total in (*self._sums, *self._softmax_sums)],
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> PairMeasures:
        """Create measures from the list that the method `state` returns.

        It has distributions, sums and largest errors of float tensors: saturation, clipping and
        used range are unknown (None). States of version 0.2 and older have no sums of softmax.
        Raises ValueError if a sum of squares or of magnitudes is negative.
        """
        measures = cls()
        measures.x, measures.y = (Distribution.from_state(side) for side in state[:2])
        measures.skipped, measures.atol, measures.rtol = state[2:5]
        measures._sums = np.array(state[5][:5], np.float64)
        if (measures._sums[[0, 1, 3, 4]] < 0).any():
            raise ValueError("a sum of squares or magnitudes is negative")
        measures._softmax_sums = np.array(state[5][5:] or [0.0, 0.0], np.float64)
        return measures

    def _add_finite(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add finite float64 values [n] of both streams to distributions, histograms and sums.

        Also updates the largest absolute error `atol` and relative error `rtol`.
        """
        if not a.size:
            return
        for distribution, values in ((self.x, a), (self.y, b)):
            distribution._add_finite(values)
            distribution.histogram.add(values)
        difference = a - b
        error = np.abs(difference)
        self._sums += (
            np.square(a).sum(),
            np.square(b).sum(),
            (a * b).sum(),
            np.square(difference).sum(),
            error.sum(),
        )
        self.atol = max(self.atol, float(error.max()))
        self.rtol = max(self.rtol, _max_relative_error(a, error))

    def _count_saturation(self, expected: np.ndarray, actual: np.ndarray) -> None:
        """Count how y uses its integer range, and how often x is outside of it.

        `expected` is x and `actual` is y in integer steps of the stored tensor, [n] each. Counts y
        at the lowest or highest integer, and x more than a step outside of that range; updates the
        largest fraction of the range that y reaches. Does nothing if y is not stored as integers.
        """
        if self.stored_form is None or not actual.size:
            return
        low, high = self.stored_form.q.low, self.stored_form.q.high
        min_step, max_step = float(actual.min()), float(actual.max())
        self._used_fraction = max(self._used_fraction, max_step / high, min_step / low)
        self._saturated += int(np.count_nonzero((actual <= low) | (actual >= high)))
        self._out_of_range += int(np.count_nonzero((expected < low - 1) | (expected > high + 1)))

    def _merge_sums(self, other: PairMeasures) -> None:
        """Merge sums and extremes of `other` in place, but not the histograms.

        `stored_form` is replaced by that of `other` unless that is None.
        """
        self.x._merge_moments(other.x)
        self.y._merge_moments(other.y)
        if other.stored_form is not None:
            self.stored_form = other.stored_form
        self.skipped += other.skipped
        self.atol, self.rtol = max(self.atol, other.atol), max(self.rtol, other.rtol)
        self._sums += other._sums
        self._softmax_sums += other._softmax_sums
        self._used_fraction = max(self._used_fraction, other._used_fraction)
        self._saturated += other._saturated
        self._out_of_range += other._out_of_range

    # ---- results ----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of compared elements, which are finite in both streams."""
        return self.x.count

    @property
    def total_count(self) -> int:
        """The number of elements of each stream, including those that are not finite."""
        return self.count + self.skipped

    @property
    def cosine(self) -> float:
        """The cosine similarity of x and y, -1 to 1.

        1 if all elements are equal, 0 if only one stream is all zero.
        """
        xx, yy, xy, error, _ = self._sums
        if error == 0:
            return 1.0
        norm = math.sqrt(xx) * math.sqrt(yy)
        return float(np.clip(xy / norm, -1, 1)) if norm else 0.0

    @property
    def mse(self) -> float:
        """The mean of (x - y)^2 over the compared elements; 0 without values."""
        return float(self._sums[3]) / max(self.count, 1)

    @property
    def l1(self) -> float:
        """The mean of |x - y| over the compared elements; 0 without values."""
        return float(self._sums[4]) / max(self.count, 1)

    @property
    def sqnr(self) -> float:
        """The SQNR of y against x in dB: 10 log10(sum x^2 / sum (x - y)^2).

        Infinite if both are equal, minus infinity if only x is all zero.
        """
        return ratio_db(float(self._sums[0]), float(self._sums[3]))

    @property
    def kl(self) -> float:
        """KL divergence sum p log(p/q) of the histograms of x (p) and y (q); 0 without values.

        Both are counted at 128 points over the union of both ranges.
        """
        if not self.count:
            return 0.0
        low, high = min(self.x.low, self.y.low), max(self.x.high, self.y.high)
        return kl_divergence(
            self.x.histogram.interpolated_counts(low, high),
            self.y.histogram.interpolated_counts(low, high),
        )

    @property
    def kl_softmax(self) -> float:
        """Mean of p log(p/q) over all elements, p and q being the softmax of x and y along axis 1.

        NaN for tensors of rank 1, and if an element is not finite.
        """
        total, count = self._softmax_sums
        return float(total / count) if count else math.nan

    def histograms(self, bin_count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return histograms of x and y, int64 [bin_count] each, over the union of both ranges.

        All counts are 0 without values.
        """
        if not self.count:
            return np.zeros(bin_count, np.int64), np.zeros(bin_count, np.int64)
        low, high = min(self.x.low, self.y.low), max(self.x.high, self.y.high)
        x_counts = self.x.histogram.bins(low, high, bin_count)
        return x_counts, self.y.histogram.bins(low, high, bin_count)

    @property
    def saturation(self) -> float | None:
        """Fraction of elements of y at the lowest or highest integer; None if y is not integers."""
        return None if self.stored_form is None else self._saturated / max(self.count, 1)

    @property
    def clipped_fraction(self) -> float | None:
        """Fraction of elements of x more than a step outside the range of y's integers.

        None if y is not stored as integers.
        """
        return None if self.stored_form is None else self._out_of_range / max(self.count, 1)

    @property
    def used_fraction(self) -> float | None:
        """Largest fraction of the positive or negative integer range that y reaches, 0 to 1.

        None if y is not stored as integers, or without values.
        """
        return None if self.stored_form is None or not self.count else self._used_fraction

    def to_dict(self) -> dict[str, object]:
        """Return all measures by the column names of the table that `compare` writes.

        Each of Cosine, MSE, L1, KL, SQNR, Atol, Rtol and KL_softmax; min, max, mean and var of x
        (`base_model_...`) and y (`analy_model_...`); `saturation`, `clipped` and `used_range`,
        which are None unless y is stored as integers.
        """
        values: dict[str, Any] = {name: getattr(self, key) for name, key in METRICS.items()}
        for name, key in (("min", "low"), ("max", "high"), ("mean", "mean"), ("var", "variance")):
            values[f"base_model_{name}"] = float(getattr(self.x, key))
            values[f"analy_model_{name}"] = float(getattr(self.y, key))
        return {
            **values,
            "saturation": self.saturation,
            "clipped": self.clipped_fraction,
            "used_range": self.used_fraction,
        }


@dataclass(frozen=True)
class _StoredSteps:
    """A batch in integer steps of the stored tensor, flattened: x (`expected`) and y (`actual`)."""

    expected: np.ndarray
    actual: np.ndarray

    @classmethod
    def of(
        cls, x: np.ndarray, y: np.ndarray, stored_form: StoredForm, unclipped: np.ndarray | None
    ) -> _StoredSteps:
        """Convert x and y to integer steps of the stored tensor, flattened to [n].

        `y` is integers, which are taken as they are, or reals in stored units, which are rounded.
        If `unclipped` is not None, it is converted instead of `x`. Steps of x are not rounded.
        """
        actual = y.reshape(-1)
        if y.dtype.kind not in "iu":
            actual = np.rint(stored_form.q.counts(actual)) + stored_form.q.zero_point
        return cls(stored_form.to_steps(x if unclipped is None else unclipped).reshape(-1), actual)


def _max_relative_error(x: np.ndarray, error: np.ndarray) -> float:
    """Return the largest error / |x| of all elements, limited to the largest float32.

    `error` is |x - y|. 0 / 0 counts as 0; returns 0 for empty arrays.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(error == 0, 0.0, error / np.abs(x))
    return float(min(ratio.max(initial=0.0), _LARGEST))


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Compute KL = sum p log(p/q) of two histograms of one shape, with p, q at least 1e-12.

    Counts are normalized first; never negative, and 0 if a histogram is empty.
    """
    if not p.any() or not q.any():
        return 0.0
    probabilities = [np.maximum(h / h.sum(), MIN_PROBABILITY) for h in (p, q)]
    return max(float(np.sum(probabilities[0] * np.log(probabilities[0] / probabilities[1]))), 0.0)
