"""Measures of two streams of arrays that ought to be equal, over any number of batches.

One pass, constant memory.
`PairMeasures` follows two streams of equal shapes: x, the baseline, and y, what is analysed, each a
`Distribution`. Sums are float64. Parts can be counted apart and merged: merging the parts of a run
in order gives the bits that adding them in order gives. Knows arrays only.

Formulas, over all elements of all samples: L1 = mean |x-y|; MSE = mean (x-y)^2; Cosine = sum xy /
sqrt(sum x^2 sum y^2); SQNR = 10 log10(sum x^2 / sum (x-y)^2) dB; Atol = max |x-y|; Rtol = max |x-y|
/ |x|, where x is 0 and y is not the largest float32; variances are the population's; KL = sum p
log(p/q) over the two histograms.

**KL's bins**: 128 points, equally spaced over the union of both ranges; a value counts at the two around it, at each by
how near it is, and every share is at least 1e-12. Integers of few bits have no gaps then that are
not theirs, and KL rises with the noise on a tensor. It compares which values occur, not where:
tensors are ordered by SQNR, not by KL. Exact up to 4096 elements and close to that beyond: see
`histogram`.

An element that is infinite or not a number on either side is left out of everything and counted in
`skipped`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...run.metrics import ratio_db
from .distribution import Distribution
from .stored_form import StoredForm

__all__ = ["LOWER_IS_BETTER", "METRICS", "MIN_PROBABILITY", "PairMeasures", "kl_divergence"]

#: The least share that a bin counts as.
MIN_PROBABILITY = 1e-12

#: The measures of agreement, as tables call them -> the attribute of `PairMeasures`.
METRICS = {
    "Cosine": "cosine",
    "MSE": "mse",
    "L1": "l1",
    "KL": "kl",
    "SQNR": "sqnr",
    "Atol": "atol",
    "Rtol": "rtol",
}

#: Those of them that are the larger the worse; the others rise with agreement.
LOWER_IS_BETTER = frozenset({"MSE", "L1", "KL", "Atol", "Rtol"})

_CHUNK = 1 << 16  # elements worked on at a time: what a core's cache holds
_LARGEST = float(np.finfo(np.float32).max)


class PairMeasures:
    """All measures of two streams.

    `x` and `y` are the `Distribution` of each over the elements that both have finite.
    held : how y is held where it is held in integers, from the last batch; None for float tensors.
    """

    def __init__(self) -> None:
        self.x, self.y = Distribution(), Distribution()
        self.held: StoredForm | None = None
        self.skipped = 0
        self.atol = self.rtol = 0.0
        self._sums = np.zeros(5)  # of x^2, y^2, xy, (x-y)^2, |x-y|
        self._used = 0.0
        self._full = 0  # elements of y at an end of what it can hold
        self._beyond = 0  # elements of x that y cannot hold, by more than a step

    def add(
        self,
        x: np.ndarray,
        y: np.ndarray,
        stored_form: StoredForm | None = None,
        unclipped: np.ndarray | None = None,
    ) -> None:
        """Take in a batch of both, of one shape.

        unclipped : what x is where it is not computed from values that were cut off; it is asked
        whether y can hold it. stored_form : how y is held. It is integers or reals as they are
        stored (a float run of a plan), and compared as the user's tensor that they stand for.
        ValueError where the shapes differ.
        """
        if x.shape != y.shape:
            raise ValueError(f"arrays of shape {x.shape} and {y.shape} cannot be compared")
        part = PairMeasures()
        part.x.histogram, part.y.histogram = (
            self.x.histogram,
            self.y.histogram,
        )  # counts are exact in any order
        part.held = stored_form
        real, counts, wanted = y, None, None
        if stored_form is not None:
            real, wanted = (
                stored_form.real(y),
                stored_form.to_steps(x if unclipped is None else unclipped).reshape(-1),
            )
            counts = y.reshape(-1)
            if y.dtype.kind not in "iu":
                counts = np.rint(stored_form.q.counts(counts)) + stored_form.q.zero_point
        for start in range(0, x.size, _CHUNK):
            piece = slice(start, start + _CHUNK)
            a, b = (array.reshape(-1)[piece].astype(np.float64) for array in (x, real))
            sound = np.isfinite(a) & np.isfinite(b)
            every = bool(sound.all())
            part._add_finite(*((a, b) if every else (a[sound], b[sound])))
            part.skipped += int(sound.size - np.count_nonzero(sound))
            if counts is not None and wanted is not None:
                part._count_saturation(
                    *((v[piece] if every else v[piece][sound]) for v in (wanted, counts))
                )
        self._merge_sums(part)

    def merge(self, other: PairMeasures) -> None:
        """Take in what another has counted."""
        self.x.histogram.merge(other.x.histogram)
        self.y.histogram.merge(other.y.histogram)
        self._merge_sums(other)

    def state(self, histograms: bool) -> list[object]:
        """Return what it has seen of float tensors, in types that JSON has.

        `from_state` makes an equal one of it.
        histograms : also what KL needs, which is most of it.
        """
        sides = [self.x.state(histograms), self.y.state(histograms)]
        return [*sides, self.skipped, self.atol, self.rtol, [float(total) for total in self._sums]]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> PairMeasures:
        """Return what had the `state`."""
        measures = cls()
        measures.x, measures.y = (Distribution.from_state(side) for side in state[:2])
        measures.skipped, measures.atol, measures.rtol = state[2:5]
        measures._sums = np.array(state[5], np.float64)
        return measures

    def _add_finite(self, a: np.ndarray, b: np.ndarray) -> None:
        """Take in finite float64 values [n] of both."""
        if not a.size:
            return
        for side, values in ((self.x, a), (self.y, b)):
            side._add_finite(values)
            side.histogram.add(values)
        gap = a - b
        off = np.abs(gap)
        self._sums += (
            np.square(a).sum(),
            np.square(b).sum(),
            (a * b).sum(),
            np.square(gap).sum(),
            off.sum(),
        )
        self.atol = max(self.atol, float(off.max()))
        self.rtol = max(self.rtol, _max_relative_error(a, off))

    def _count_saturation(self, wanted: np.ndarray, counts: np.ndarray) -> None:
        """Look where in the integers' range y lies, in counts, and where x ought to."""
        if self.held is None or not counts.size:
            return
        low, high = self.held.q.low, self.held.q.high
        least, most = float(counts.min()), float(counts.max())
        self._used = max(self._used, most / high, least / low)
        self._full += int(np.count_nonzero((counts <= low) | (counts >= high)))
        self._beyond += int(np.count_nonzero((wanted < low - 1) | (wanted > high + 1)))

    def _merge_sums(self, other: PairMeasures) -> None:
        self.x._merge_moments(other.x)
        self.y._merge_moments(other.y)
        self.held = self.held if other.held is None else other.held
        self.skipped += other.skipped
        self.atol, self.rtol = max(self.atol, other.atol), max(self.rtol, other.rtol)
        self._sums += other._sums
        self._used = max(self._used, other._used)
        self._full += other._full
        self._beyond += other._beyond

    # ---- what was found ------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Return how many elements were compared."""
        return self.x.count

    @property
    def seen(self) -> int:
        """Return how many elements there were, those that are not finite too."""
        return self.count + self.skipped

    @property
    def cosine(self) -> float:
        """1 where both are all zero, 0 where one is."""
        xx, yy, xy, error, _ = self._sums
        if error == 0:
            return 1.0
        norm = math.sqrt(xx) * math.sqrt(yy)
        return float(np.clip(xy / norm, -1, 1)) if norm else 0.0

    @property
    def mse(self) -> float:
        """Return the mean squared error."""
        return float(self._sums[3]) / max(self.count, 1)

    @property
    def l1(self) -> float:
        """Return the mean absolute error."""
        return float(self._sums[4]) / max(self.count, 1)

    @property
    def sqnr(self) -> float:
        """In dB; infinite where both are equal, minus infinity where x alone is all zero."""
        return ratio_db(float(self._sums[0]), float(self._sums[3]))

    @property
    def kl(self) -> float:
        """Of the histograms, not of the elements.

        0 for two that hold the same values in another order.
        """
        if not self.count:
            return 0.0
        low, high = min(self.x.low, self.y.low), max(self.x.high, self.y.high)
        return kl_divergence(
            self.x.histogram.interpolated_counts(low, high),
            self.y.histogram.interpolated_counts(low, high),
        )

    def histograms(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts of x and y, int64 [number] each, over the union of both ranges."""
        if not self.count:
            return np.zeros(number, np.int64), np.zeros(number, np.int64)
        low, high = min(self.x.low, self.y.low), max(self.x.high, self.y.high)
        return self.x.histogram.bins(low, high, number), self.y.histogram.bins(low, high, number)

    @property
    def saturation(self) -> float | None:
        """Share of y's elements that are the least or the largest integer.

        None where y is not held in integers.
        """
        return None if self.held is None else self._full / max(self.count, 1)

    @property
    def clipped(self) -> float | None:
        """Share of x's elements that lie outside what y can hold, by more than a step.

        None as above.
        """
        return None if self.held is None else self._beyond / max(self.count, 1)

    @property
    def used(self) -> float | None:
        """Largest share of the positive or the negative integers that y reaches, 0 to 1.

        None as above.
        """
        return None if self.held is None or not self.count else self._used

    def to_dict(self) -> dict[str, object]:
        """Return all measures and both spreads, by the names of the tables of `compare`."""
        values: dict[str, Any] = {name: getattr(self, key) for name, key in METRICS.items()}
        for name, key in (("min", "low"), ("max", "high"), ("mean", "mean"), ("var", "variance")):
            values[f"base_model_{name}"] = float(getattr(self.x, key))
            values[f"analy_model_{name}"] = float(getattr(self.y, key))
        return {
            **values,
            "saturation": self.saturation,
            "clipped": self.clipped,
            "used_range": self.used,
        }


def _max_relative_error(a: np.ndarray, off: np.ndarray) -> float:
    """Return max off / |a|; the largest float32 where a is 0 and off is not, and for anything above it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(off == 0, 0.0, off / np.abs(a))
    return float(min(ratio.max(initial=0.0), _LARGEST))


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Return KL = sum p log(p/q) of two histograms of one shape; a share of 0 counts as 1e-12."""
    if not p.any() or not q.any():
        return 0.0
    shares = [np.maximum(h / h.sum(), MIN_PROBABILITY) for h in (p, q)]
    return max(float(np.sum(shares[0] * np.log(shares[0] / shares[1]))), 0.0)
