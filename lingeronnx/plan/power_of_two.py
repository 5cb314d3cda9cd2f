"""Which power of two stands for a scale: decided here, for calibration, imported scales, legalization and lowering."""

from __future__ import annotations

import math

__all__ = ["floor_exponent", "floor_power_of_two", "nearest_power_of_two"]

_EXPONENT_TOLERANCE = 1e-6  # of an exponent: what a scale written in decimal digits may be short of a power of two


def floor_exponent(most: float, *, imported: bool = False) -> int:
    """Return the largest exponent whose power of two is `most` at most, a positive number.

    imported : `most` comes from a file in decimal digits; a power that it misses by their rounding counts as reached.
    """
    if imported:
        return math.floor(math.log2(most) + _EXPONENT_TOLERANCE)
    if not 0 < most < math.inf:
        raise ValueError(f"no power of two stands for {most}")
    return math.frexp(most)[1] - 1  # exact, where a logarithm just below a whole number is rounded up to it


def floor_power_of_two(most: float, *, imported: bool = False) -> float:
    """Return the largest power of two that is `most` at most; arguments as for `floor_exponent`."""
    return 2.0 ** floor_exponent(most, imported=imported)


def nearest_power_of_two(scale: float) -> float:
    """Return the power of two next to `scale`, in octaves."""
    return 2.0 ** round(math.log2(scale))
