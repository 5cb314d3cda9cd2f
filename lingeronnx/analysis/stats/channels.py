"""Sums per channel of two streams.

Which channel is wrong, dead, or so large that the others have no bits left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["CONSTANT_TOLERANCE", "ChannelSums", "channel_axis", "move_channel_axis"]

#: Of its size: by how much a channel may change and yet be called a constant; 8 bits show nothing of it.
CONSTANT_TOLERANCE = 1e-3


def channel_axis(rank: int) -> int | None:
    """Return the axis of the channels: 1, of sequences [N, T, C] the last.

    None where there is none.
    """
    return None if rank < 2 else 2 if rank == 3 else 1


def move_channel_axis(array: np.ndarray, factor: Sequence[float]) -> np.ndarray:
    """Return a tensor with its channels where `channel_axis` says.

    Those that have a factor each are always on axis 1.
    """
    return np.moveaxis(array, 1, 2) if array.ndim == 3 and len(factor) > 1 else array


class ChannelSums:
    """Of every channel: range of x, power of x, mean and power of the error y - x.

    Arrays of float64 [C].
    `is_constant`, `raw_min` and `raw_max` speak of x as it is, everything else of x and y as what
    reads them sees them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.raw_min = self.raw_max = np.zeros(0)
        self.low = self.high = self._power = self._sum = self._bias = self._error = np.zeros(0)

    def add(self, x: np.ndarray, y: np.ndarray, raw: np.ndarray | None = None) -> None:
        """Take in a batch of both, of one shape, and of x as it is.

        What is not finite counts as zero.
        """
        axis = channel_axis(x.ndim)
        if axis is None or not x.size:
            return
        a, b = (np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) for array in (x, y))
        over = tuple(i for i in range(x.ndim) if i != axis)
        part = ChannelSums()
        part.count = x.size // x.shape[axis]
        part.low, part.high = a.min(axis=over), a.max(axis=over)
        part._power, part._sum = np.square(a).sum(axis=over), a.sum(axis=over)
        whole = part.low, part.high
        if raw is not None:
            raw = np.nan_to_num(raw, posinf=0.0, neginf=0.0)
            whole = raw.min(axis=over), raw.max(axis=over)
        part.raw_min, part.raw_max = whole
        gap = b - a
        part._bias, part._error = gap.sum(axis=over), np.square(gap).sum(axis=over)
        self.merge(part)

    def merge(self, other: ChannelSums) -> None:
        """Take in what another has counted."""
        if not other.count:
            return
        if not self.count or len(self.low) != len(
            other.low
        ):  # a sequence of another length: begin anew
            self.count = 0
            size = len(other.low)
            self.low, self.high = np.full(size, np.inf), np.full(size, -np.inf)
            self.raw_min, self.raw_max = self.low, self.high
            self._power, self._sum, self._bias, self._error = (np.zeros(size) for _ in range(4))
        self.count += other.count
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.raw_min, self.raw_max = (
            np.minimum(self.raw_min, other.raw_min),
            np.maximum(self.raw_max, other.raw_max),
        )
        self._power, self._sum = self._power + other._power, self._sum + other._sum
        self._bias, self._error = self._bias + other._bias, self._error + other._error

    @property
    def max_abs(self) -> np.ndarray:
        """Return the largest |x|."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def mean(self) -> np.ndarray:
        """The mean of x."""
        return self._sum / max(self.count, 1)

    @property
    def mean_square(self) -> np.ndarray:
        """The mean square of x."""
        return self._power / max(self.count, 1)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of x."""
        return np.sqrt(np.maximum(self.mean_square - np.square(self.mean), 0))

    @property
    def mean_squared_error(self) -> np.ndarray:
        """The mean square of the error."""
        return self._error / max(self.count, 1)

    @property
    def bias(self) -> np.ndarray:
        """Return the mean error."""
        return self._bias / max(self.count, 1)

    @property
    def is_constant(self) -> np.ndarray:
        """Which channels never change, or by less than 8 bits can show."""
        size = np.maximum(np.abs(self.raw_min), np.abs(self.raw_max))
        return np.asarray(self.raw_max - self.raw_min <= CONSTANT_TOLERANCE * size)

    @property
    def is_active(self) -> np.ndarray:
        """Which channels change, and are not 0 all the time to what reads them."""
        return ~self.is_constant & (self.mean_square > 0)

    def sqnr_db(self) -> np.ndarray:
        """In dB, of the channels that speak; between -60 and 120."""
        speaking = self.is_active
        with np.errstate(over="ignore"):
            ratio = self.mean_square[speaking] / np.maximum(
                self.mean_squared_error[speaking], 1e-300
            )
        return np.clip(10 * np.log10(np.maximum(ratio, 1e-30)), -60, 120)
