"""Statistics of tensors over calibration data: one streaming pass, constant memory, mergeable.

`TensorStats` contains the range, the power and a histogram. The width of the bins is a power of
two, and they start at multiples of it, so that halving the resolution and merging two histograms
are exact. Independent of scales and platforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ...common.errors import DataError
from ...runtime.data import Progress
from ...runtime.runners import FloatRunner

__all__ = [
    "HALF_BINS",
    "ConsumerFunction",
    "Curve",
    "Stats",
    "TensorStats",
    "collect_stats",
    "compute_row_errors",
]

#: An elementwise function, float64.
Curve = Callable[[np.ndarray], np.ndarray]


class ConsumerFunction(NamedTuple):
    """An elementwise function that is the only consumer of a tensor, and its quantization.

    Attributes
    ----------
    curve
        The function.
    scale
        Scale of the result, or None if it is not quantized.
    low, high
        Range of the result in integer steps.
    """

    curve: Curve
    scale: float | None = None
    low: float = -math.inf
    high: float = math.inf

    def quantized_result(self, x: np.ndarray) -> np.ndarray:
        """Return the function of `x`, rounded to steps of 1 / `scale` within `low`..`high` steps.

        If `scale` is None, the function itself is returned.
        """
        y = self.curve(x)
        if self.scale is None:
            return y
        with np.errstate(over="ignore"):  # infinite results are clipped
            return np.asarray(
                np.clip(np.floor(y * self.scale + 0.5), self.low, self.high) / self.scale
            )


#: Bins on each side of zero: at least 16 per step of an int8 scale that covers the range.
HALF_BINS = 4096

_ONE = np.ones(1)
_NEGLIGIBLE_LOGIT_GAP = 8.0  # logits that far below the largest of a row get 1 / e**8 together
# Logits up to this magnitude are always represented: with 8 bits in steps of 1/4, which gives
# probabilities of 40 dB.
_MIN_LOGIT_RANGE = 32.0
_MIN_BIN_EXPONENT = -140  # exponent of the bin width for an all-zero tensor


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Statistics of one tensor.

    Attributes
    ----------
    count, minimum, maximum, sum_of_squares
        Number of elements, range and sum of squares (float64), before `factor`.
    exponent
        Bins are 2**exponent wide, before `factor`.
    bins
        int64 [2 * HALF_BINS]; bin k counts values in [(k - HALF_BINS) * width, (k - HALF_BINS + 1)
        * width).
    factor
        The tensor's values are this times those of the other fields (see `scaled`).
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
        """Return the statistics of `array`, finite numbers with at least one element.

        Parameters
        ----------
        array
            float32 or float64.
        span
            Smallest and largest value after multiplication by `factors`, if known.
        factors
            float64 [channels of axis 1] or [1]; the array is multiplied by them first.
        """
        low, high = _value_range(_channel_bounds(array, factors), factors) if span is None else span
        empty = cls(0, low, high, 0.0, _bin_exponent(low, high), np.zeros(2 * HALF_BINS, np.int64))
        return empty.extend_with(array, (low, high), factors)

    def merge(self, other: TensorStats) -> TensorStats:
        """Return the statistics of the data of both; `other` must have the same `factor`.

        Neither is modified. Exact except for the rounding of `sum_of_squares`.
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
        """Return these statistics with `array` added; the bins are modified in place.

        This object must not be used afterwards. `span` is the range of the array times `factors`
        ([1] or per channel of axis 1).
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
        """Return the statistics of the tensor times `factor` (> 0).

        Exact, and without a copy of bins.
        """
        scaled = replace(self, factor=self.factor * factor)
        vars(scaled)["_nonzero_bin_positions"] = self._nonzero_bin_positions  # the cached property
        return scaled

    @property
    def low(self) -> float:
        """The smallest value of the tensor, with `factor`."""
        return self.minimum * self.factor

    @property
    def high(self) -> float:
        """The largest value of the tensor, with `factor`."""
        return self.maximum * self.factor

    @property
    def mean_square(self) -> float:
        """The mean of the squares of the tensor's values, with `factor`."""
        return self.sum_of_squares / self.count * self.factor**2

    def nonzero_bins(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the centers (float64, as values) and counts (int64) of bins that are not empty."""
        positions, counts = self._nonzero_bin_positions
        return positions * (np.ldexp(1.0, self.exponent) * self.factor), counts

    @cached_property
    def _nonzero_bin_positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The centers in bin widths, and the counts, of the histogram's bins that are not empty."""
        index = np.flatnonzero(self.bins)
        return index - HALF_BINS + 0.5, self.bins[index]

    def quantization_error(
        self, scale: float, low: int, high: int, consumer: ConsumerFunction | None = None
    ) -> float:
        """Return the mean squared error of ``clamp(round(x*scale), low, high) / scale``.

        Rounded half up. Computed at the centers of the histogram's bins, so accurate to about a
        hundredth of a step.

        Parameters
        ----------
        scale, low, high
            Integers per unit, and their range.
        consumer
            Function after which the error counts, with its result quantized; None for the error of
            x itself.
        """
        if consumer is None:
            return self.quantization_errors(np.array([scale]), low, high)[0]
        centers, counts = self.nonzero_bins()
        rounded = np.clip(np.floor(centers * scale + 0.5), low, high) / scale
        difference = consumer.quantized_result(rounded) - consumer.curve(centers)
        return float(np.dot(counts, difference**2)) / self.count

    def quantization_errors(
        self, scales: np.ndarray, low: np.ndarray | int, high: np.ndarray | int
    ) -> list[float]:
        """Return the `quantization_error` of each scale, without a consumer.

        Parameters
        ----------
        scales
            float64 [n], integers per unit.
        low, high
            Range of the integers, or int64 [n].
        """
        from simulator.histogram import compute_quantization_errors

        centers, counts = self.nonzero_bins()
        bounds = (np.broadcast_to(np.asarray(bound, float), scales.shape) for bound in (low, high))
        errors = compute_quantization_errors(centers, counts.astype(float), scales, *bounds)
        return [float(error) / self.count for error in errors]


def compute_row_errors(rows: np.ndarray, scales: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the mean squared errors of each row at its scales, float64 [R, K].

    They are those of `TensorStats.quantization_errors` for the statistics of the row.

    Parameters
    ----------
    rows
        float32 or float64 [R, n], finite, n > 0.
    scales
        float64 [R, K], integers per unit.
    low, high
        Range of the integers.
    """
    from simulator.histogram import compute_row_quantization_errors

    spans = zip(rows.min(axis=1).tolist(), rows.max(axis=1).tolist(), strict=True)
    per_unit = np.ldexp(1.0, [-_bin_exponent(*span) for span in spans])
    errors = compute_row_quantization_errors(rows, per_unit, HALF_BINS, scales, low, high)
    return np.asarray(errors / rows.shape[1])


def _clip_softmax_logits(array: np.ndarray, axis: int) -> np.ndarray:
    """Return logits clipped to the range in which they affect the result of a Softmax along `axis`.

    The largest of a row is limited to the value at which the next one still gets no probability,
    and the others are raised to where they just get none; of both, the limits nearer to 0 are
    chosen, so that neither a lead nor a mask widens the range. Values within 32 of 0 are not
    changed: steps finer than that allows are lost in the rounding of layers. Rows of one element
    and arrays that are not finite are returned as they are.
    """
    if array.shape[axis] < 2 or not np.isfinite(array).all():  # NaN must be reported
        return array
    rows = np.moveaxis(array, axis, -1)
    lead = _NEGLIGIBLE_LOGIT_GAP + math.log(rows.shape[-1])
    second, first = np.split(np.partition(rows, -2, axis=-1)[..., -2:], 2, axis=-1)
    top = np.clip(lead / 2, np.minimum(second + lead, first), first).astype(rows.dtype)
    lower = np.minimum(top - lead, -_MIN_LOGIT_RANGE)
    upper = np.maximum(top, _MIN_LOGIT_RANGE)
    return np.moveaxis(np.clip(rows, lower, upper), -1, axis)


def _channel_bounds(array: np.ndarray, factors: np.ndarray = _ONE) -> np.ndarray:
    """Return the smallest and the largest values of `array`, in its type.

    They are those of each channel (axis 1), [2, channels], if there is one of `factors` per
    channel, else of the array, [2].
    """
    if len(factors) == 1:
        return np.array([array.min(), array.max()])
    rows = array.reshape(*array.shape[:2], -1)
    return np.array([rows.min(axis=(0, 2)), rows.max(axis=(0, 2))])


def _value_range(bounds: np.ndarray, factors: np.ndarray) -> tuple[float, float]:
    """Return the smallest and largest value of an array with `bounds` times `factors`.

    There is one factor, or one per channel of the bounds. The products are rounded to the type of
    the bounds.
    """
    scaled = (bounds * factors).astype(bounds.dtype)
    return float(scaled.min()), float(scaled.max())


def _bin_exponent(low: float, high: float) -> int:
    """Return the smallest e such that 4096 bins of width 2^e on each side of 0 cover [low, high].

    At least -140, also for zeros only.
    """
    max_abs = max(high, -low)
    if max_abs == 0:
        return _MIN_BIN_EXPONENT
    exponent = math.frexp(max_abs)[1] - (HALF_BINS.bit_length() - 1)
    return max(exponent, _MIN_BIN_EXPONENT)


def _merge_bins(bins: np.ndarray, steps: int) -> np.ndarray:
    """Merge groups of 2^`steps` neighboring bins into one; zero stays a boundary.

    Returns a new array of the same length, whose outer bins are empty, or `bins` itself for 0
    steps.
    """
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
    unscaled_stats: dict[str, TensorStats] | None = None,
    progress: Progress | None = None,
) -> dict[str, TensorStats]:
    """Run the data once and return {tensor of `names`: statistics}.

    Arrays without elements are skipped, and a tensor that has only such ones is left out. Nothing
    is run if all statistics are known.

    Parameters
    ----------
    runner
        Runner of the float model.
    batches
        Pairs of feeds and labels.
    names
        Names of the tensors.
    factors
        {tensor: float64 [channels of axis 1] or [1]} that the tensors are multiplied by.
    known_stats
        Statistics of tensors on the same data, which are not computed again.
    softmax_axes
        {tensor: axis} of tensors whose only consumer is a Softmax along that axis. Their logits
        are clipped to the range that affects its result, unless they have factors.
    unscaled_stats
        If passed, statistics without factors of the tensors that have factors are added, in the
        same run; those that it contains are not computed again.
    progress
        Callback for progress messages, called after each batch.

    Raises
    ------
    DataError
        If a tensor contains NaN or infinity.
    """
    stats: dict[str, TensorStats] = {}
    unknown = {name for name in names if name not in known_stats}
    unscaled_names = set[str]()
    if unscaled_stats is not None:
        unscaled_names = unknown & factors.keys() - unscaled_stats.keys()
    if unknown:
        completed = 0
        for feeds, _ in batches:
            for name, array, _qparams in runner.run(feeds, unknown):
                if array.size == 0:
                    continue
                unscaled = unscaled_stats if name in unscaled_names else None
                _add_tensor(stats, unscaled, name, array, factors.get(name), softmax_axes.get(name))
            completed += max((len(array) for array in feeds.values() if array.ndim), default=1)
            if progress is not None:
                progress("calibrating", completed, None)
    return {**{name: known_stats[name] for name in names if name in known_stats}, **stats}


def _add_tensor(
    stats: dict[str, TensorStats],
    unscaled_stats: dict[str, TensorStats] | None,
    name: str,
    array: np.ndarray,
    factors: np.ndarray | None,
    softmax_axis: int | None,
) -> None:
    """Add the values of a tensor to its statistics, in place.

    Parameters
    ----------
    stats
        Statistics of the tensors, with their factors.
    unscaled_stats
        Statistics without factors, for a tensor that has factors; None if they are not collected.
    name, array
        The tensor.
    factors
        Factors of its channels, or None.
    softmax_axis
        Axis of the Softmax whose logits the tensor has, or None. They are clipped, but not where
        the tensor is multiplied by factors.

    Raises
    ------
    DataError
        If a value is NaN or infinite.
    """
    bounds = None
    if factors is not None:
        bounds = _channel_bounds(array, factors)
        _add_to_stats(stats, name, array, bounds, factors)
        if unscaled_stats is None:
            return
        stats = unscaled_stats
    if softmax_axis is not None:
        array, bounds = _clip_softmax_logits(array, softmax_axis), None
    _add_to_stats(stats, name, array, _channel_bounds(array) if bounds is None else bounds)


def _add_to_stats(
    stats: dict[str, TensorStats],
    name: str,
    array: np.ndarray,
    bounds: np.ndarray,
    factors: np.ndarray = _ONE,
) -> None:
    """Add `array` times `factors` to the statistics of tensor `name`, in place.

    `bounds` are those of the array before it is multiplied (`_channel_bounds`). Raises DataError if
    a value is NaN or infinite.
    """
    span = _value_range(bounds, factors)
    if not all(map(math.isfinite, span)):
        raise DataError(
            f"tensor '{name}' is NaN or infinite on the calibration data; check the model and its "
            "input scaling"
        )
    if name in stats:
        stats[name] = stats[name].extend_with(array, span, factors)
    else:
        stats[name] = TensorStats.from_array(array, span, factors)
