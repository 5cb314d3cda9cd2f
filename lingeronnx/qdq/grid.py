"""How a quantized tensor's integers stand for real numbers: ``x = (q - zero) / scale``, q in low..high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """The integers of one tensor.

    scale : counts per unit, as many as there are channels along `axis`, else one. zero : the integer that stands for 0,
    of each. low, high : the ends of the type.
    """

    scale: tuple[float, ...]
    zero: tuple[int, ...]
    low: int
    high: int
    axis: int | None = None

    @classmethod
    def of(cls, scale: np.ndarray, zero: np.ndarray | None, low: int, high: int, axis: int) -> Grid:
        """Return the grid of a node's constants; one scale for all where they are of one element."""
        scales = tuple(map(float, np.ravel(scale)))
        zeros = (0,) * len(scales) if zero is None else tuple(map(int, np.ravel(zero).astype(np.int64)))
        if len(zeros) < len(scales):
            zeros = zeros * len(scales)
        return cls(scales, zeros, low, high, axis if len(scales) > 1 else None)

    @property
    def bits(self) -> int:
        """The width of the integers."""
        return (self.high - self.low).bit_length()

    @property
    def shifted(self) -> int:
        """The zero point of the same grid in signed integers."""
        return self.zero[0] - self.low - (1 << (self.bits - 1))

    @property
    def coarsest(self) -> Grid:
        """One grid for all: that of the channel with the fewest counts per unit."""
        index = min(range(len(self.scale)), key=self.scale.__getitem__)
        return Grid(self.scale[index : index + 1], self.zero[index : index + 1], self.low, self.high)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest real number that some channel holds."""
        ends = [((self.low - z) / s, (self.high - z) / s) for s, z in zip(self.scale, self.zero, strict=True)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Return real numbers as integers of the grid, ties to even, as QuantizeLinear rounds."""
        held = np.rint(array.astype(np.float64) * self._along(self.scale, array.ndim)) + self._along(
            self.zero, array.ndim
        )
        return np.asarray(np.clip(held, self.low, self.high).astype(np.int64))

    def real(self, integers: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return what DequantizeLinear gives for integers, float32; step : the y_scale that stands in the file."""
        off = integers.astype(np.int64) - self._along(self.zero, integers.ndim).astype(np.int64)
        steps = self._along(np.ravel(step).astype(np.float32), integers.ndim)
        return np.asarray(off.astype(np.float32) * steps)

    def _along(self, values: Sequence[float] | np.ndarray, rank: int) -> np.ndarray:
        array = np.asarray(values)
        if self.axis is None:
            return array.reshape(())
        return array.reshape([-1 if i == self.axis % rank else 1 for i in range(rank)])
