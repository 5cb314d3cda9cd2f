"""Rounding and saturation, by rational numbers and by the letter of the specification."""

import math
from fractions import Fraction

HALF = Fraction(1, 2)


def rsh(v, s):
    """floor(v / 2^s + 1/2)."""
    return math.floor(Fraction(int(v)) / Fraction(2) ** s + HALF)


def sat(v, bits):
    """Clamp to signed integers of `bits` bits."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if v < low:
        return low
    if v > high:
        return high
    return v


def rounded(value, rounding):
    """Return a Fraction as an integer by the name of a rounding."""
    below = math.floor(value)
    rest = value - below
    if rounding in ("DOWN", "UP") or rest != HALF:
        return below + (rest > 0 if rounding == "UP" else rest > HALF and rounding != "DOWN")
    return below + {"HALF_UP": True, "HALF_EVEN": below % 2 == 1, "HALF_AWAY": value > 0}[rounding]


def rescale_by(acc, triple, rounding):
    """sat(round(acc * M / 2^s) + zero, bits), likewise, by the name of a rounding."""
    multiplier, shift, bits, *zero = triple
    return sat(rounded(Fraction(int(acc) * multiplier, 2**shift), rounding) + sum(zero), bits)


def rescale(acc, triple):
    """sat(floor(acc * M / 2^s + 1/2) + zero, bits); zero, if any, is a fourth number of
    `triple`.
    """
    multiplier, shift, bits, *zero = triple
    return sat(math.floor(Fraction(int(acc) * multiplier, 2**shift) + HALF) + sum(zero), bits)
