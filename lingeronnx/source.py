"""How the constants of an integer graph follow from those of the float one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Source", "View", "accumulator", "as_it_is"]

#: Rearranges an array.
View = Callable[[np.ndarray], np.ndarray]


def as_it_is(array: np.ndarray) -> np.ndarray:
    """Rearrange nothing."""
    return array


@dataclass(frozen=True)
class Source:
    """How an integer initializer follows from a float one: ``clamp(floor(view(float) * scale + 1/2), low, high)``.

    name : the float initializer. view : puts its elements elsewhere, repeats them or puts zeros between, nothing else.
    """

    name: str
    view: View
    scale: float
    low: float
    high: float
    dtype: Any

    def quantized(self, array: np.ndarray) -> np.ndarray:
        """Return the integers of `array`."""
        held = np.floor(self.view(array).astype(np.float64) * self.scale + 0.5)
        return np.clip(held, self.low, self.high).astype(self.dtype)


def accumulator(wide: bool) -> tuple[float, float, Any]:
    """Return the bounds and the type of a bias: saturated to 32 bits, or 61 where `wide`."""
    top = 2.0**60 if wide else 2.0**31 - 1
    return -top - 1, top, np.int64 if wide else np.int32
