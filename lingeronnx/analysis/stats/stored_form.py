"""How a tensor of the user is stored: as integers, times factors per channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ir.plan import Affine

__all__ = ["StoredForm", "matching_factors"]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class StoredForm:
    """Mapping between a tensor of the user and its stored integers.

    Parameters
    ----------
    q
        Quantization parameters of the stored tensor, which is `factor` times the user's tensor.
    factor
        Factor of the stored tensor: one value, or one per channel (axis 1).
    """

    q: Affine
    factor: tuple[float, ...] = (1.0,)

    def broadcast_factors(self, rank: int) -> np.ndarray:
        """Return the factor as a float64 array that broadcasts against an array of `rank` axes.

        A single factor becomes a scalar; factors per channel are on axis 1.
        """
        factors = np.array(self.factor)
        if factors.size == 1:
            return factors.reshape(())
        return factors.reshape(1, -1, *[1] * (rank - 2))

    def real(self, array: np.ndarray) -> np.ndarray:
        """Convert stored integers, or reals in stored units, to the user's tensor, float32.

        Integers are dequantized first; then the result is divided by the factor, or by that of each
        channel (axis 1). Finite results are clipped to the range of float32.

        Raises
        ------
        ValueError
            If there is a factor per channel and axis 1 has another length.
        """
        if array.dtype.kind in "iu":
            stored = _to_finite_float32(self.q.real(array))
        else:
            stored = array.astype(np.float32)
        if self.factor == (1.0,):
            return stored
        return _to_finite_float32(stored / self.broadcast_factors(array.ndim))

    def to_steps(self, real: np.ndarray) -> np.ndarray:
        """Convert the user's tensor to integer steps, neither rounded nor clipped, float64.

        That is real * factor * scale + zero point.
        """
        return np.asarray(
            real.astype(np.float64) * (self.broadcast_factors(real.ndim) * self.q.scale)
            + self.q.zero_point
        )

    def representable_range(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and highest representable values of the user's tensor, per channel.

        Both arrays broadcast against a tensor of `rank` axes.
        """
        steps = self.broadcast_factors(rank) * self.q.scale
        return (self.q.low - self.q.zero_point) / steps, (self.q.high - self.q.zero_point) / steps

    def clip_stored(self, array: np.ndarray, high: float) -> np.ndarray:
        """Clip a stored tensor to [0, high] in the user's units; return it in its type.

        `array` is integers or reals in stored units. Integers are clipped below at the zero point
        and above at `high` quantized. An infinite `high` clips below only.
        """
        is_integer = array.dtype.kind in "iu"
        array = np.maximum(array, array.dtype.type(self.q.zero_point if is_integer else 0))
        if not np.isfinite(high):
            return array
        bound = np.full((1,) * array.ndim, high)
        if is_integer:
            stored_bound = self.quantize(bound, array.dtype)
        else:
            stored_bound = (bound * self.broadcast_factors(array.ndim)).astype(array.dtype)
        limited: np.ndarray = np.minimum(array, stored_bound)
        return limited

    def quantize(self, real: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Convert values of the user's tensor to stored integers of type `dtype`.

        Multiplied by the factor and the scale, rounded half up, and clipped to the integer range.
        """
        return self.q.integers(real.astype(np.float64) * self.broadcast_factors(real.ndim)).astype(
            dtype
        )


def matching_factors(factor: Sequence[float], array: np.ndarray) -> tuple[float, ...]:
    """Return `factor`, the factors of a stored tensor's channels, if they match axis 1 of `array`.

    A single factor always matches. Otherwise returns (1.0,): an array with another number of
    channels was not rescaled.
    """
    fits = len(factor) == 1 or (array.ndim > 1 and array.shape[1] == len(factor))
    return tuple(factor) if fits else (1.0,)


def _to_finite_float32(array: np.ndarray) -> np.ndarray:
    """Convert `array` to float32, with finite values clipped to the finite range.

    An integer may represent a value slightly below the lowest float32.
    """
    finite = np.isfinite(array)
    return np.where(finite, np.clip(array, -_LARGEST, _LARGEST), array).astype(np.float32)
