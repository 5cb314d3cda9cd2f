"""Statistics of tensors over calibration data: one streaming pass, constant memory, mergeable.

`TensorStats` holds range, power and a histogram whose bins are a power of two wide and start at
multiples of their width, so that halving the resolution and merging two histograms are exact. Knows
nothing of scales and platforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ...errors import DataError
from ...run.runners import FloatRunner

__all__ = ["HALF_BINS", "Curve", "Stats", "TensorStats", "ConsumerFunction", "collect_stats"]

#: A function of single values, float64.
Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ConsumerFunction:
    """What alone reads a tensor: a function of single numbers, and how its result is rounded.

    scale : of the result, None where it is not rounded; low, high : its least and its largest
    value, in counts.
    """

    curve: Curve
    scale: float | None = None
    low: float = -math.inf
    high: float = math.inf

    def held(self, x: np.ndarray) -> np.ndarray:
        """Return what comes out for `x`."""
        y = self.curve(x)
        if self.scale is None:
            return y
        with np.errstate(over="ignore"):  # a curve of a large number may be infinite: it is clipped
            return np.asarray(
                np.clip(np.floor(y * self.scale + 0.5), self.low, self.high) / self.scale
            )


#: Bins on either side of zero: at least 16 per step of an int8 scale that covers the range.
HALF_BINS = 4096

_ONE = np.ones(1)
_NEGLIGIBLE_LOGIT_GAP = (
    8.0  # below the largest logit of a row: all others together get 1 / e**8 there
)
# logits up to this size are held anyway: 8 bits do so in steps of 1/4, and shares come out to 40 dB
# there
_MIN_LOGIT_RANGE = 32.0
_MIN_BIN_EXPONENT = -140  # exponent of the bin width for an all-zero tensor


@dataclass(frozen=True, eq=False)
class TensorStats:
    """What was seen of one tensor.

    count, minimum, maximum, sum_of_squares : number of elements, range and sum of squares (float64)
    exponent : bins are 2**exponent wide (before `factor`)
    bins : int64 [2 * HALF]; bin k counts values in [(k - HALF) * width, (k - HALF + 1) * width)
    factor : the tensor's values are this times what the other fields say (see `scaled`)
    """

    count: int
    minimum: float
    maximum: float
    sum_of_squares: float
    exponent: int
    bins: np.ndarray
    factor: float = 1.0

    @classmethod
    def from_array(
        cls, array: np.ndarray, span: tuple[float, float] | None = None, factors: np.ndarray = _ONE
    ) -> TensorStats:
        """Return the statistics of one array of finite numbers (float32 or float64), at least one element.

        factors : float64 [channels of axis 1] or [1], what the array is multiplied by before it is
        looked at. span : its smallest and its largest value then, where they are known.
        """
        low, high = _value_range(array, factors) if span is None else span
        nothing = cls(
            0, low, high, 0.0, _bin_exponent(low, high), np.zeros(2 * HALF_BINS, np.int64)
        )
        return nothing.extend_with(array, (low, high), factors)

    def merge(self, other: TensorStats) -> TensorStats:
        """Return the statistics of both together; exact but for the rounding of `sum_of_squares`.

        Both must have the same `factor`.
        """
        exponent = max(self.exponent, other.exponent)
        return replace(
            self,
            count=self.count + other.count,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            sum_of_squares=self.sum_of_squares + other.sum_of_squares,
            exponent=exponent,
            bins=_merge_bins(self.bins, exponent - self.exponent)
            + _merge_bins(other.bins, exponent - other.exponent),
        )

    def extend_with(
        self, array: np.ndarray, span: tuple[float, float], factors: np.ndarray = _ONE
    ) -> TensorStats:
        """Return the statistics of this and of one array more, as `merge` would.

        The bins are counted on in place.
        span, factors : as for `from_array`. This value must not be used any more.
        """
        from simulator.histogram import accumulate_histogram

        exponent = max(self.exponent, _bin_exponent(*span))
        bins = _merge_bins(self.bins, exponent - self.exponent)
        squares = accumulate_histogram(array, math.ldexp(1.0, -exponent), bins, factors)
        return replace(
            self,
            count=self.count + array.size,
            minimum=min(self.minimum, span[0]),
            maximum=max(self.maximum, span[1]),
            sum_of_squares=self.sum_of_squares + squares,
            exponent=exponent,
            bins=bins,
        )

    def scaled(self, factor: float) -> TensorStats:
        """Return the statistics of `factor` (> 0) times the tensor; exact."""
        scaled = replace(self, factor=self.factor * factor)
        vars(scaled)["_filled"] = self._nonzero_bin_positions
        return scaled

    @property
    def low(self) -> float:
        """Return the smallest value that was seen."""
        return self.minimum * self.factor

    @property
    def high(self) -> float:
        """Return the largest value that was seen."""
        return self.maximum * self.factor

    @property
    def mean_square(self) -> float:
        """Return the mean of the squares."""
        return self.sum_of_squares / self.count * self.factor**2

    def nonzero_bins(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (centres float64, counts int64) of the bins that hold anything."""
        places, counts = self._nonzero_bin_positions
        return places * (np.ldexp(1.0, self.exponent) * self.factor), counts

    @cached_property
    def _nonzero_bin_positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The centres of the bins that hold anything, in widths, and their counts.

        Looked for once, they are few.
        """
        index = np.flatnonzero(self.bins)
        return index - HALF_BINS + 0.5, self.bins[index]

    def quantization_error(
        self, scale: float, low: int, high: int, consumer: ConsumerFunction | None = None
    ) -> float:
        """Return the mean squared error of holding the tensor as ``clamp(round(x*scale), low, high) / scale``.

        Counted at the bins' centres, so to about a hundredth of a step. through : what the error
        counts behind.
        """
        centres, counts = self.nonzero_bins()
        rounded = np.clip(np.floor(centres * scale + 0.5), low, high) / scale
        if consumer is not None:
            rounded, centres = consumer.held(rounded), consumer.curve(centres)
        return float(np.dot(counts, (rounded - centres) ** 2)) / self.count


def _clip_softmax_logits(array: np.ndarray, axis: int) -> np.ndarray:
    """Return logits brought together to what a Softmax along `axis` can tell apart.

    The largest of a row leads the next by no more than leaves that no share, and the others are
    raised to where they just get none: whichever lies nearer to 0, so that neither a lead nor a
    mask makes room. What lies within `_MIN_LOGIT_RANGE` of 0 stays: steps finer than that leaves
    are lost in what layers round.
    """
    if array.shape[axis] < 2 or not np.isfinite(array).all():  # what is not finite shall be seen
        return array
    rows = np.moveaxis(array, axis, -1)
    lead = _NEGLIGIBLE_LOGIT_GAP + math.log(rows.shape[-1])
    second, first = np.split(np.partition(rows, -2, axis=-1)[..., -2:], 2, axis=-1)
    top = np.clip(lead / 2, np.minimum(second + lead, first), first).astype(rows.dtype)
    return np.moveaxis(
        np.clip(rows, np.minimum(top - lead, -_MIN_LOGIT_RANGE), np.maximum(top, _MIN_LOGIT_RANGE)),
        -1,
        axis,
    )


def _value_range(array: np.ndarray, factors: np.ndarray) -> tuple[float, float]:
    """Return the smallest and the largest value of an array times the factors of its channels, in its own type."""
    if len(factors) == 1:
        ends = np.array([array.min(), array.max()])
    else:
        rows = array.reshape(*array.shape[:2], -1)
        ends = np.array([rows.min(axis=(0, 2)), rows.max(axis=(0, 2))])
    ends = (ends * factors).astype(array.dtype)
    return float(ends.min()), float(ends.max())


def _bin_exponent(low: float, high: float) -> int:
    """Return the smallest e with all of [low, high] in the bins of width 2**e."""
    reach = max(high, -low)
    if reach == 0:
        return _MIN_BIN_EXPONENT
    exponent = int(np.frexp(reach)[1]) - int(np.log2(HALF_BINS))
    return max(exponent, _MIN_BIN_EXPONENT)


def _merge_bins(bins: np.ndarray, steps: int) -> np.ndarray:
    """Join 2**steps neighbouring bins; bin 0 stays where it is."""
    if steps == 0:
        return bins
    out = np.zeros_like(bins)
    index = np.flatnonzero(bins)
    np.add.at(out, ((index - HALF_BINS) >> min(steps, 30)) + HALF_BINS, bins[index])
    return out


Stats = Mapping[str, TensorStats]


def collect_stats(
    runner: FloatRunner,
    batches: Iterable[tuple[Mapping[str, np.ndarray], object]],
    names: Collection[str],
    *,
    factors: Mapping[str, np.ndarray] = MappingProxyType({}),
    known_stats: Stats = MappingProxyType({}),
    softmax_axes: Mapping[str, int] = MappingProxyType({}),
    on_batch: Callable[[int], None] | None = None,
) -> dict[str, TensorStats]:
    """Run the data once and return the statistics of the tensors `names`.

    factors : {tensor: float64 [channels of axis 1] or [1]}, what tensors are multiplied by before
    they are looked at. known_stats : statistics of tensors on the same data, which are not counted
    again. softmax_axes : {tensor: axis} where a Softmax along that axis alone reads it: the range
    counts that it can tell apart. on_batch is called with the number of samples after each batch.
    Raises DataError when a tensor turns out NaN or infinite, with its name.
    """
    stats: dict[str, TensorStats] = {}
    unknown = {name for name in names if name not in known_stats}
    for feeds, _ in batches if unknown else ():
        for name, array, _scale in runner.run(feeds, unknown):
            if array.size == 0:
                continue
            even = factors.get(name, _ONE)
            array = (
                _clip_softmax_logits(array, softmax_axes[name])
                if name in softmax_axes and even is _ONE
                else array
            )
            span = _value_range(array, even)
            if not all(map(math.isfinite, span)):
                raise DataError(
                    f"tensor '{name}' becomes NaN or infinite on the calibration data; "
                    "check the model and how its inputs are scaled"
                )
            old = stats.get(name)
            stats[name] = (
                TensorStats.from_array(array, span, even)
                if old is None
                else old.extend_with(array, span, even)
            )
        if on_batch is not None:
            on_batch(max((len(array) for array in feeds.values() if array.ndim), default=1))
    return {**{name: known_stats[name] for name in names if name in known_stats}, **stats}
