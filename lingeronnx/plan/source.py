"""How the constants of an integer graph follow from those of the float one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Source", "View", "accumulator", "along", "as_it_is"]

#: Rearranges an array.
View = Callable[[np.ndarray], np.ndarray]


def as_it_is(array: np.ndarray) -> np.ndarray:
    """Return the array unchanged: the view that rearranges nothing."""
    return array


def along(scale: Any, axis: int | None, rank: int) -> Any:
    """Return `scale`, one number or a sequence along `axis`, so that it multiplies an array of `rank` axes."""
    if axis is None:
        return scale
    return np.asarray(scale, np.float64).reshape(tuple(-1 if i == axis else 1 for i in range(rank)))


@dataclass(frozen=True)
class Source:
    """How an integer initializer follows from a float one: ``clamp(floor(view(float * scale) + 1/2), low, high)``.

    name : the float initializer. view : puts its elements elsewhere, repeats them or puts zeros between, nothing else.
    scale : one, or a tuple with one for each element along `axis` of the float initializer.
    """

    name: str
    view: View
    scale: Any
    low: float
    high: float
    dtype: Any
    axis: int | None = None

    def factor(self, rank: int) -> Any:
        """Return the scale so that it multiplies the float initializer of `rank` axes."""
        return along(self.scale, self.axis, rank)

    def quantized(self, array: np.ndarray) -> np.ndarray:
        """Return the integers of `array`."""
        held = np.floor(self.view(array.astype(np.float64) * self.factor(array.ndim)) + 0.5)
        return np.clip(held, self.low, self.high).astype(self.dtype)


def accumulator(wide: bool) -> tuple[float, float, Any]:
    """Return the bounds and the type of a bias: saturated to 32 bits, or 61 where `wide`."""
    top = 2.0**60 if wide else 2.0**31 - 1
    return -top - 1, top, np.int64 if wide else np.int32
