"""Rounding of scales to powers of two: for calibration, imports, legalization and lowering."""

from __future__ import annotations

import math

__all__ = ["floor_exponent", "floor_power_of_two", "nearest_power_of_two"]

#: Error of the exponent of a power of two that was written in decimal digits.
_EXPONENT_TOLERANCE = 1e-6


def floor_exponent(upper_bound: float, *, imported: bool = False) -> int:
    """Return the largest exponent whose power of two does not exceed `upper_bound`.

    Parameters
    ----------
    upper_bound
        A positive number.
    imported
        Whether `upper_bound` was read from a file with decimal digits. 1e-6 is then added to its
        logarithm, to reach a power of two that it misses by rounding.

    Raises
    ------
    ValueError
        If `upper_bound` is not positive, or infinite and not `imported`.
    """
    if imported:
        return math.floor(math.log2(upper_bound) + _EXPONENT_TOLERANCE)
    if not 0 < upper_bound < math.inf:
        raise ValueError(f"the upper bound must be positive and finite; got {upper_bound}")
    # Exact; a logarithm just below an integer would be rounded up to it.
    return math.frexp(upper_bound)[1] - 1


def floor_power_of_two(upper_bound: float, *, imported: bool = False) -> float:
    """Return the largest power of two that does not exceed the positive `upper_bound`.

    If `imported` (read from decimal digits), one that is larger by at most a relative 7e-7 is also
    taken. Raises ValueError for a bound that is not positive, or infinite and not imported.
    """
    return 2.0 ** floor_exponent(upper_bound, imported=imported)


def nearest_power_of_two(scale: float) -> float:
    """Return the power of two nearest to the positive `scale` by its logarithm."""
    return 2.0 ** round(math.log2(scale))
