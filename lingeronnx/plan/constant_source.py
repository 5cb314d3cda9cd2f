"""How the constants of an integer graph follow from those of the float one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .affine import Affine, PerAxis, PerTensor

__all__ = ["ArrayTransform", "ConstantSource", "identity_transform", "make_bias_qparams"]

#: Rearranges an array.
ArrayTransform = Callable[[np.ndarray], np.ndarray]


def identity_transform(array: np.ndarray) -> np.ndarray:
    """Return the array unchanged: the view that rearranges nothing."""
    return array


@dataclass(frozen=True)
class ConstantSource:
    """How an integer initializer follows from a float one.

    ``view(held.integers(float))``, of type `dtype`.
    name : the float initializer. view : puts its elements elsewhere, repeats them or puts zeros
    between, nothing else. held : how the float initializer is held.
    """

    name: str
    view: ArrayTransform
    held: Affine
    dtype: np.dtype

    def quantize(self, array: np.ndarray) -> np.ndarray:
        """Return the integers of `array`."""
        return self.view(self.held.integers(array)).astype(self.dtype, copy=False)


def make_bias_qparams(scale: npt.ArrayLike, wide: bool) -> Affine:
    """Return how a bias is held at `scale`, one or one for each element.

    In 32 bits, or in 61 where `wide`.
    """
    return Affine(scale, 61 if wide else 32, PerAxis(0) if np.ndim(scale) else PerTensor())
