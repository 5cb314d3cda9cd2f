"""Sums per channel of two streams, to find wrong, dead and dominating channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...common.arithmetic import convert_to_db

__all__ = ["CONSTANT_TOLERANCE", "ChannelSums", "channel_axis", "move_channel_axis"]

#: Relative range below which a channel counts as constant; 8 bits cannot resolve it.
CONSTANT_TOLERANCE = 1e-3


def channel_axis(rank: int) -> int | None:
    """Return the index of the channel axis for a tensor of `rank` axes.

    It is 1, or 2 for three axes (sequences [N, T, C]); None if there are fewer than two axes.
    """
    if rank < 2:
        return None
    return 2 if rank == 3 else 1


def move_channel_axis(array: np.ndarray, factor: Sequence[float]) -> np.ndarray:
    """Move axis 1 of a tensor with three axes to axis 2, if `factor` has one value per channel.

    Tensors with factors per channel always have their channels on axis 1, while the statistics of
    three axes expect them last. In every other case (one factor, another rank) the array is
    returned as it is.
    """
    return np.moveaxis(array, 1, 2) if array.ndim == 3 and len(factor) > 1 else array


class ChannelSums:
    """Sums per channel: range and power of x, mean and power of the error y - x.

    All arrays are float64 [C]. `is_constant`, `raw_min` and `raw_max` refer to x as computed;
    everything else refers to x and y as their consumers see them.
    """

    def __init__(self) -> None:
        """Start without batches: the count is 0 and the arrays per channel are empty."""
        self.count = 0
        self.raw_min = self.raw_max = np.zeros(0)
        self.low = self.high = self._power = self._sum = self._bias = self._error = np.zeros(0)

    def add(self, x: np.ndarray, y: np.ndarray, raw: np.ndarray | None = None) -> None:
        """Add a batch of both streams to the sums; NaN and infinite values count as zero.

        The channel axis is 1, or 2 for three axes. Nothing is added for arrays without a channel
        axis (fewer than two axes) or without elements.

        Parameters
        ----------
        x, y
            Batch of both streams, of the same shape, as their consumers see them.
        raw
            x as computed, from which the constant channels are determined; default `x`.
        """
        axis = channel_axis(x.ndim)
        if axis is None or not x.size:
            return
        a, b = (np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) for array in (x, y))
        reduced_axes = tuple(i for i in range(x.ndim) if i != axis)
        batch = ChannelSums()
        batch.count = x.size // x.shape[axis]
        batch.low, batch.high = a.min(axis=reduced_axes), a.max(axis=reduced_axes)
        batch._power, batch._sum = np.square(a).sum(axis=reduced_axes), a.sum(axis=reduced_axes)
        batch.raw_min, batch.raw_max = batch.low, batch.high
        if raw is not None:
            raw = np.nan_to_num(raw, posinf=0.0, neginf=0.0)
            batch.raw_min, batch.raw_max = raw.min(axis=reduced_axes), raw.max(axis=reduced_axes)
        error = b - a
        batch._bias = error.sum(axis=reduced_axes)
        batch._error = np.square(error).sum(axis=reduced_axes)
        self.merge(batch)

    def merge(self, other: ChannelSums) -> None:
        """Add the sums of further samples to these, in place.

        An `other` without values changes nothing. If `other` has another number of channels (such
        as a sequence of another length), the sums so far are dropped and replaced by those of
        `other`.
        """
        if not other.count:
            return
        if not self.count or len(self.low) != len(
            other.low
        ):  # such as a sequence of another length
            self.count = 0
            size = len(other.low)
            self.low, self.high = np.full(size, np.inf), np.full(size, -np.inf)
            self.raw_min, self.raw_max = self.low, self.high
            self._power, self._sum, self._bias, self._error = (np.zeros(size) for _ in range(4))
        self.count += other.count
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.raw_min = np.minimum(self.raw_min, other.raw_min)
        self.raw_max = np.maximum(self.raw_max, other.raw_max)
        self._power, self._sum = self._power + other._power, self._sum + other._sum
        self._bias, self._error = self._bias + other._bias, self._error + other._error

    @property
    def max_abs(self) -> np.ndarray:
        """The largest |x| of each channel over all batches, float64 [C].

        Empty before the first batch.
        """
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def mean(self) -> np.ndarray:
        """The mean of x of each channel over all batches, float64 [C]; empty before the first."""
        return self._sum / max(self.count, 1)

    @property
    def mean_square(self) -> np.ndarray:
        """The mean of x^2 of each channel, float64 [C]; empty before the first batch."""
        return self._power / max(self.count, 1)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of x of each channel (of the population), float64 [C]."""
        std: np.ndarray = np.sqrt(np.maximum(self.mean_square - np.square(self.mean), 0))
        return std

    @property
    def mean_squared_error(self) -> np.ndarray:
        """The mean of (y - x)^2 of each channel, float64 [C]; empty before the first batch."""
        return self._error / max(self.count, 1)

    @property
    def bias(self) -> np.ndarray:
        """The mean of y - x of each channel, float64 [C]; empty before the first batch."""
        return self._bias / max(self.count, 1)

    @property
    def is_constant(self) -> np.ndarray:
        """Which channels of x as computed never change; bool [C].

        True where the range of the channel is at most 0.001 of its largest magnitude, which 8 bits
        cannot resolve.
        """
        size = np.maximum(np.abs(self.raw_min), np.abs(self.raw_max))
        return np.asarray(self.raw_max - self.raw_min <= CONSTANT_TOLERANCE * size)

    @property
    def is_active(self) -> np.ndarray:
        """Which channels change and are not always 0 for their consumers; bool [C].

        Change is judged by x as computed (not `is_constant`), the other by the mean square of x.
        """
        return ~self.is_constant & (self.mean_square > 0)

    def sqnr_db(self) -> np.ndarray:
        """Return the SQNR of y against x in dB of each active channel, float64 [active channels].

        Constant channels and those that are always 0 are left out, so the array may be shorter than
        the number of channels. Values are clipped to [-60, 120] dB.
        """
        active = self.is_active
        with np.errstate(over="ignore"):
            ratio = self.mean_square[active] / np.maximum(self.mean_squared_error[active], 1e-300)
        clipped: np.ndarray = np.clip(convert_to_db(ratio, 1e-30), -60, 120)
        return clipped
