"""How the constants of an integer graph are derived from those of the float graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .affine import Affine, PerAxis, PerTensor

__all__ = ["ArrayTransform", "ConstantSource", "identity_transform", "make_bias_qparams"]

#: Rearranges the elements of an array.
ArrayTransform = Callable[[np.ndarray], np.ndarray]


def identity_transform(array: np.ndarray) -> np.ndarray:
    """Return `array` unchanged."""
    return array


class ConstantSource(NamedTuple):
    """How an integer initializer is derived: ``view(qparams.integers(float)).astype(dtype)``.

    name : the float initializer.
    view : moves or repeats its elements, or inserts zeros; it does not change values.
    qparams : quantization parameters of the float initializer.
    dtype : type of the integer initializer.
    """

    name: str
    view: ArrayTransform
    qparams: Affine
    dtype: np.dtype

    def quantize(self, array: np.ndarray) -> np.ndarray:
        """Return the integer initializer for `array`, the values of the float initializer.

        They are quantized with `qparams`, then rearranged by `view` and cast to `dtype`.
        """
        return self.view(self.qparams.integers(array)).astype(self.dtype, copy=False)


def make_bias_qparams(scale: npt.ArrayLike, wide: bool) -> Affine:
    """Return the parameters of a bias with the scale, or one scale per element, `scale`.

    The width is 32 bits, or 61 bits if `wide` (for products that exceed 32 bits).
    """
    granularity = PerAxis(0) if np.ndim(scale) else PerTensor()
    return Affine(scale, 61 if wide else 32, granularity)
