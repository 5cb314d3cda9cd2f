"""The scale of a tensor of integers as a stream carries it: a number, which may know the integer that stands for 0."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Scale", "counted", "real", "zero_of"]


class Scale(float):
    """Counts per real unit of integers in which `zero_point` stands for 0: ``x = (q - zero_point) / scale``."""

    zero_point: int

    def __new__(cls, scale: float, zero_point: int) -> Scale:
        """Return `scale` with its zero point."""
        made = super().__new__(cls, scale)
        made.zero_point = zero_point
        return made

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]
        """What a copy in another process is made of."""
        return float(self), self.zero_point


def counted(scale: float, zero_point: int) -> float:
    """Return the scale: a plain number, or a `Scale` where the zero point is not 0."""
    return Scale(scale, zero_point) if zero_point else float(scale)


def zero_of(scale: Any) -> int:
    """Return the zero point that a scale knows of, else 0."""
    return scale.zero_point if isinstance(scale, Scale) else 0


def real(array: np.ndarray, scale: float) -> np.ndarray:
    """Return the real values of integers at `scale`, float64."""
    zero = zero_of(scale)
    return np.asarray((array.astype(np.float64) - zero if zero else array) / float(scale))
