"""Small formulas that many modules need: sizes rounded up to a multiple, decibels of power ratios.

No other module takes a logarithm of a power. The scalar function computes with `math.log10` and the
array function with `np.log10`: their last bits may differ, and decisions of trials compare the
results with thresholds.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "round_up",
    "compute_sqnr_db",
    "convert_to_db",
    "ratio_db",
]


def round_up(size: int, multiple: int) -> int:
    """Return `size` rounded up to a multiple of `multiple`, which is positive."""
    return -(-size // multiple) * multiple


def ratio_db(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise) of two sums of squares.

    It is infinite if the noise is 0, minus infinity if only the signal is 0, and NaN if either is
    not finite.
    """
    if not (math.isfinite(signal) and math.isfinite(noise)):
        return math.nan
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    ratio = signal / noise
    if 0 < ratio < math.inf:
        return 10 * math.log10(ratio)
    return 10 * (math.log10(signal) - math.log10(noise))


def convert_to_db(power: np.ndarray, floor: np.ndarray | float) -> np.ndarray:
    """Return 10 log10 of each element of `power`, where elements below `floor` count as `floor`.

    `floor` is positive, and a scalar or an array that broadcasts with `power`.
    """
    return np.asarray(10 * np.log10(np.maximum(power, floor)))


def compute_sqnr_db(signal: np.ndarray, noise: np.ndarray, floor: float) -> np.ndarray:
    """Return 10 log10(signal / noise) by element, where either counts as at least `floor`."""
    return np.asarray(10 * np.log10(np.maximum(signal, floor) / np.maximum(noise, floor)))
