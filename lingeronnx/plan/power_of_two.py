"""Which power of two stands for a scale.

Decided here, for calibration, imported scales, legalization and lowering.
"""

from __future__ import annotations

import math

__all__ = ["floor_exponent", "floor_power_of_two", "nearest_power_of_two"]

_EXPONENT_TOLERANCE = (
    1e-6  # of an exponent: what a scale written in decimal digits may be short of a power of two
)


def floor_exponent(upper_bound: float, *, imported: bool = False) -> int:
    """Return the largest exponent whose power of two is `upper_bound` at most, a positive number.

    imported : `upper_bound` comes from a file in decimal digits; a power that it misses by their
    rounding counts as reached.
    """
    if imported:
        return math.floor(math.log2(upper_bound) + _EXPONENT_TOLERANCE)
    if not 0 < upper_bound < math.inf:
        raise ValueError(f"no power of two stands for {upper_bound}")
    return (
        math.frexp(upper_bound)[1] - 1
    )  # exact, where a logarithm just below a whole number is rounded up to it


def floor_power_of_two(upper_bound: float, *, imported: bool = False) -> float:
    """Return the largest power of two that is `upper_bound` at most.

    Arguments as for `floor_exponent`.
    """
    return 2.0 ** floor_exponent(upper_bound, imported=imported)


def nearest_power_of_two(scale: float) -> float:
    """Return the power of two next to `scale`, in octaves."""
    return 2.0 ** round(math.log2(scale))
