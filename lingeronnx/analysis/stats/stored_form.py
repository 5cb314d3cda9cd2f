"""How a tensor of the user's is stored: as which integers, times which factors of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...plan import Affine

__all__ = ["StoredForm", "matching_factors"]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class StoredForm:
    """What integers say of the user's tensor: they hold, as `q`, `factor` times that tensor.

    factor : what the stored tensor is multiplied by against the user's: one value, or one per
    channel (axis 1).
    """

    q: Affine
    factor: tuple[float, ...] = (1.0,)

    def broadcast_factors(self, rank: int) -> np.ndarray:
        """Return the factor, float64, so that it multiplies an array of `rank` axes."""
        factors = np.array(self.factor)
        return (
            factors.reshape(()) if factors.size == 1 else factors.reshape(1, -1, *[1] * (rank - 2))
        )

    def real(self, array: np.ndarray) -> np.ndarray:
        """Return the user's tensor that integers, or reals as they are stored, stand for, float32.

        ValueError where a factor per channel does not fit.
        """
        stored = (
            _to_finite_float32(self.q.real(array))
            if array.dtype.kind in "iu"
            else array.astype(np.float32)
        )
        return (
            stored
            if self.factor == (1.0,)
            else _to_finite_float32(stored / self.broadcast_factors(array.ndim))
        )

    def to_steps(self, real: np.ndarray) -> np.ndarray:
        """Return what the user's tensor is in counts, neither rounded nor cut; float64."""
        return np.asarray(
            real.astype(np.float64) * (self.broadcast_factors(real.ndim) * self.q.scale)
            + self.q.zero_point
        )

    def representable_range(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest that the integers hold of the user's tensor, to go with `rank` axes."""
        steps = self.broadcast_factors(rank) * self.q.scale
        return (self.q.low - self.q.zero_point) / steps, (self.q.high - self.q.zero_point) / steps

    def clip_stored(self, array: np.ndarray, high: float) -> np.ndarray:
        """Return integers, or reals as they are stored, cut at what 0 and `high` of the user's tensor are there."""
        whole = array.dtype.kind in "iu"
        array = np.maximum(array, array.dtype.type(self.q.zero_point if whole else 0))
        if not np.isfinite(high):
            return array
        end = np.full((1,) * array.ndim, high)
        stored = (
            self.quantize(end, array.dtype)
            if whole
            else (end * self.broadcast_factors(array.ndim)).astype(array.dtype)
        )
        return np.minimum(array, stored)

    def quantize(self, real: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the user's tensor as it would be held, rounded half up."""
        return self.q.integers(real.astype(np.float64) * self.broadcast_factors(real.ndim)).astype(
            dtype
        )


def matching_factors(factor: Sequence[float], array: np.ndarray) -> tuple[float, ...]:
    """Return the factors of channels where `array` has as many on axis 1, else (1.0,).

    It was not multiplied.
    """
    fits = len(factor) == 1 or (array.ndim > 1 and array.shape[1] == len(factor))
    return tuple(factor) if fits else (1.0,)


def _to_finite_float32(array: np.ndarray) -> np.ndarray:
    """Return `array` in float32.

    What is finite stays finite: an integer may stand for the lowest number and a bit.
    """
    sound = np.isfinite(array)
    return np.where(sound, np.clip(array, -_LARGEST, _LARGEST), array).astype(np.float32)
