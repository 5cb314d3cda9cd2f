"""Rounding, saturation, requantization and division in Python integers.

These functions are written from docs/reference/numerics.md alone and share no code with the
simulator, since they verify it.

    round_shift(v, s) = floor(v / 2^s + 1/2)
    saturate(v, b)    = v clamped to signed integers of b bits
    requantize(v, r)  = saturate(floor(v * r + 1/2) + z), where r is a power of two on chips, and
                        M * 2^-s with a 31-bit M elsewhere

Arrays are int64 or contain Python integers (dtype object); results have the narrowest type of at
least their bit width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ..targets.arithmetic import LeftShiftBehavior, Requantization, RoundingMode

__all__ = [
    "cast_to_width",
    "divide",
    "exact_log2",
    "fixed_point_multiplier",
    "requantize",
    "round_shift",
    "round_shift_half_up",
    "saturate",
]

#: One integer, or an array of Python integers.
_IntOrArray = TypeVar("_IntOrArray", int, np.ndarray)

INT32 = (-(2**31), 2**31 - 1)


def to_python_ints(values: ArrayLike) -> np.ndarray:
    """Return `values` as an object array of Python integers, whose sums and products are exact."""
    return np.asarray(values).astype(object)


def round_shift_half_up(values: _IntOrArray, shift: int) -> _IntOrArray:
    """Return floor(v / 2^shift + 1/2) of Python integers; a negative `shift` shifts left."""
    if shift > 0:
        rounded: _IntOrArray = (2 * values + 2**shift) // (2 * 2**shift)
        return rounded
    shifted: _IntOrArray = values * 2**-shift
    return shifted


def saturate(values: ArrayLike, bits: int) -> np.ndarray:
    """Clamp Python integers to the range of signed integers of `bits` bits.

    The result is an array, of rank 0 for a single integer.
    """
    return np.asarray(np.maximum(-(2 ** (bits - 1)), np.minimum(2 ** (bits - 1) - 1, values)))


def cast_to_width(values: ArrayLike, bits: int) -> np.ndarray:
    """Cast `values` to the narrowest of int8, int16 and int32 that has `bits` bits.

    They must be in range: nothing is clamped.
    """
    if bits <= 8:
        return np.asarray(values).astype(np.int8)
    return np.asarray(values).astype(np.int16 if bits <= 16 else np.int32)


def exact_log2(scale: float) -> int:
    """Return q such that `scale` = 2^q.

    Raises
    ------
    ValueError
        If the scale is not a power of two.
    """
    q = round(math.log2(scale))
    if Fraction(2) ** q != Fraction(scale):
        raise ValueError(f"scale {scale:g} is not a power of two, which this target requires")
    return q


def fixed_point_multiplier(ratio: float) -> tuple[int, int]:
    """Return (M, s) with M = floor(ratio * 2^s + 1/2) and 2^30 <= M < 2^31.

    `ratio` must be positive. M * 2^-s approximates it; the largest possible s is taken. Raises
    ValueError if there is none.
    """
    exact, s = Fraction(ratio), 30 - math.floor(math.log2(ratio))
    for candidate in (s + 1, s, s - 1):
        m = math.floor(exact * Fraction(2) ** candidate + Fraction(1, 2))
        if 2**30 <= m < 2**31:
            return m, candidate
    raise ValueError(f"no multiplier for the ratio {ratio:g}")


def requantize(
    acc: ArrayLike, ratio: float, bits: int, mode: Requantization, zero_point: int = 0
) -> np.ndarray:
    """Return saturate(round(acc * ratio) + zero_point), at `bits`, in the arithmetic of the target.

    The target multiplies by an integer M * 2^-s, or shifts, and rounds as `mode` says; half up is
    usual. A left shift may be left out or give 0 on targets that do not support it. The result is
    int8, int16 or int32.

    Raises
    ------
    ValueError
        If the target does not support the ratio: it only shifts and the ratio is no power of two,
        or it refuses left shifts.
    """
    acc = to_python_ints(acc)
    if not mode.shifts:
        m, s = fixed_point_multiplier(ratio)
        return cast_to_width(
            saturate(round_shift(acc * m, s, mode.rounding) + zero_point, bits), bits
        )
    shift = -exact_log2(ratio)
    if shift < 0 and mode.left is not LeftShiftBehavior.SHIFTED:
        if mode.left is LeftShiftBehavior.REFUSED:
            raise ValueError(
                f"the scales need a left shift by {-shift}, which the executor does not support"
            )
        shift = 0
        if mode.left is LeftShiftBehavior.ZERO:
            acc = acc * 0
    return cast_to_width(saturate(round_shift(acc, shift, mode.rounding) + zero_point, bits), bits)


def round_shift(values: np.ndarray, shift: int, rounding: RoundingMode | None) -> np.ndarray:
    """Return v / 2^shift of Python integers, rounded to integers in the given mode.

    Raises
    ------
    ValueError
        If the mode is None: it depends on an attribute for the training software.
    """
    if rounding is RoundingMode.HALF_UP:
        return round_shift_half_up(values, shift)
    if rounding is None:
        raise ValueError(
            "the rounding mode depends on attributes for the training software, which the "
            "reference evaluator does not support"
        )
    rounding_functions: dict[RoundingMode, Callable[[Fraction], int]] = {
        RoundingMode.DOWN: math.floor,
        RoundingMode.UP: math.ceil,
        RoundingMode.HALF_EVEN: round,
        RoundingMode.HALF_AWAY: _round_half_away,
    }
    round_fraction = rounding_functions[rounding]
    divisor = Fraction(2) ** shift

    def round_value(value: int) -> int:
        """Return `value` / 2^shift, rounded in the given mode."""
        return round_fraction(Fraction(int(value)) / divisor)

    rounded: np.ndarray = np.vectorize(round_value, otypes=[object])(values)
    return rounded


def _round_half_away(value: Fraction) -> int:
    """Round `value` to the nearest integer, ties away from 0."""
    nearest = math.floor(abs(value) + Fraction(1, 2))
    return nearest if value > 0 else -nearest


def divide(n: int, d: int, shift: int) -> int:
    """Return n * 2^shift / d in the arithmetic of the NPU, rounded and saturated to int32.

    The NPU multiplies by a reciprocal computed with Newton's method in double precision. The
    divisor is scaled into (1/2, 1]; the reciprocal starts from its five leading bits and is refined
    three times, each time rounded half up to 29 binary places. The quotient is rounded half up. `d`
    must not be 0.
    """
    e = 31 - int(np.ceil(np.float32(math.log2(abs(d)))))
    m = float(Fraction(d) * Fraction(2) ** (e - 31))
    reciprocal = _round_to_binary_places(1 / (math.floor(m * 32) / 32), 29)
    for _ in range(3):
        reciprocal = _round_to_binary_places(
            _round_to_binary_places(2 - m * reciprocal, 30) * reciprocal, 29
        )
    quotient = math.floor(reciprocal * n * 2.0 ** (e - 31) * 2.0**shift + 0.5)
    return min(max(quotient, INT32[0]), INT32[1])


def _round_to_binary_places(value: float, places: int) -> float:
    """Round `value` half up to a multiple of 2^-`places`."""
    return math.floor(value * 2.0**places + 0.5) / 2.0**places
