"""All rounding, shifting and saturation of the simulator.

Owns: `round_shift_right` and `saturate`, the requantization `Rescale` and its compiled forms, the
reciprocal division `luna_divide`. Kernels compute exact accumulators and call these functions;
nothing else in the package rounds. Must not know: tensors, operators, platforms.

    rsh(v, s) = floor(v / 2^s + 1/2)              ties (half-way values) go up, towards +infinity
    sat(v, b) = clamp(v, -2^(b-1), 2^(b-1) - 1)
    Rescale   : y = sat(floor(acc * M / 2^s + 1/2) + z, b)
                M in [2^30, 2^31), so M / 2^s is a ratio with 31 significant bits; z is the zero
                point of the output, usually 0

A ratio that is a power of two has M = 2^30 and is the plain shift by s - 30. The product acc * M
can need 95 bits. Given a bound of |acc|, `Rescale.compile_for_bound` selects the cheapest form that
is still exact; `apply_rescale` computes it inside a kernel:

    ShiftForm         int32 lanes    a right shift, and acc plus its rounding term fits 32 bits
    ScaleForm         int64          the product fits 63 bits
    WideScaleForm     two halves     all other ratios
    RoundedScaleForm  two halves     a ratio with a rounding mode other than half up

ScaleForm and WideScaleForm first clamp acc to +-L with L = 2^(b+s-30). This does not change the
result, because |acc| >= L already gives |y| >= 2^b, but it keeps the product below 2^(b+s+1), so
large accumulators need no wider arithmetic than small ones. ShiftForm and ScaleForm contain z in
their rounding term, as z * 2^s.

The NPU always rounds half up. Other targets, and training libraries, may round differently
(`RoundingMode`): a `Rescale` may have another rounding mode, `RoundedShift` is a power-of-two ratio
with such a mode, `divide_rounded` a division by any integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from simulator._jit import overload, register_inline
from simulator.rounding import RoundingMode

__all__ = [
    "ChainedRescale",
    "LunaDivide",
    "NarrowScaleForm",
    "Rescale",
    "RescaleForm",
    "RoundedScaleForm",
    "RoundedShift",
    "RoundingMode",
    "ScaleForm",
    "ShiftForm",
    "WideScaleForm",
    "apply_rescale",
    "divide_rounded",
    "integer_dtype",
    "luna_divide",
    "luna_multiply_reciprocal",
    "luna_reciprocal",
    "narrow_to_int32",
    "round_shift_right",
    "saturate",
]

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)


@register_inline
def round_shift_right(v: Any, s: Any) -> Any:
    """Return `v` shifted right by `s` bits, rounded half up; a negative `s` shifts left (exact)."""
    if s > 0:
        return (v + (1 << (s - 1))) >> s
    return v << -s


@register_inline
def saturate(v: Any, bits: Any) -> Any:
    """Return `v` clamped to the signed integers of `bits` bits."""
    top = 1 << (bits - 1)
    return min(max(v, -top), top - 1)


def integer_dtype(bits: int) -> np.dtype:
    """Return the narrowest of int8, int16, int32 and int64 with at least `bits` bits.

    Raises ValueError above 64.
    """
    for width in (8, 16, 32, 64):
        if bits <= width:
            return np.dtype(f"int{width}")
    raise ValueError(f"no integer type has {bits} bits")


class ShiftForm(NamedTuple):
    """A right shift in int32 lanes: `clamp((acc + half) >> shift, low, high)`.

    All fields int32, 0 <= shift <= 31.
    """

    half: np.int32
    shift: np.int32
    low: np.int32
    high: np.int32


class ScaleForm(NamedTuple):
    """A multiplication in int64.

    `clamp((clamp(acc, +-limit) * multiplier + half) >> shift)`, 0 <= shift <= 62.
    """

    limit: int
    multiplier: int
    half: int
    shift: int
    low: int
    high: int


class WideScaleForm(NamedTuple):
    """A multiplication whose product needs up to 95 bits; 1 <= shift <= 94.

    `zero_point` is added to the rounded result.
    """

    limit: int
    multiplier: int
    shift: int
    low: int
    high: int
    zero_point: int


class NarrowScaleForm(NamedTuple):
    """A `ScaleForm` whose operands are int32: the product is one widening multiplication."""

    negative_limit: np.int32
    limit: np.int32
    multiplier: np.int32
    half: int
    shift: int
    low: int
    high: int


class ReciprocalForm(NamedTuple):
    """A division by a constant: shift left, multiply by reciprocal * 2^(exponent-31), round."""

    reciprocal: float
    exponent: int
    shift: int
    low: int
    high: int


class RoundedScaleForm(NamedTuple):
    """A multiplication whose product needs up to 95 bits, with any `RoundingMode` as its integer.

    1 <= shift <= 94. `zero_point` is added to the rounded result.
    """

    limit: int
    multiplier: int
    shift: int
    low: int
    high: int
    zero_point: int
    rounding: int


class HalfEvenShiftForm(NamedTuple):
    """A right shift that rounds to the nearest integer, ties to even; 1 <= shift <= 62."""

    limit: int
    shift: int
    low: int
    high: int


class ChainedForm(NamedTuple):
    """Two forms applied one after the other."""

    first: Any
    second: Any


RescaleForm: TypeAlias = (
    ShiftForm
    | ScaleForm
    | NarrowScaleForm
    | WideScaleForm
    | RoundedScaleForm
    | ReciprocalForm
    | HalfEvenShiftForm
    | ChainedForm
)


@dataclass(frozen=True)
class Rescale:
    """Requantization `y = sat(round(acc * multiplier / 2^shift) + zero_point, bits)`.

    Parameters
    ----------
    multiplier
        Integer in [2^30, 2^31).
    shift
        Integer >= 1; ratio = multiplier / 2^shift.
    bits
        Width of the signed result, 1 to 62; `dtype` is the narrowest integer type that holds it.
    zero_point
        Zero point of the result, a signed integer of `bits` bits.
    rounding
        Rounding mode of acc * multiplier / 2^shift, half up by default.

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    multiplier: int
    shift: int
    bits: int
    zero_point: int = 0
    rounding: RoundingMode = RoundingMode.HALF_UP

    def __post_init__(self) -> None:
        """Raise ValueError if multiplier, shift, bits or zero point are out of range.

        Allowed: 2^30 <= multiplier < 2^31, shift >= 1, 1 <= bits <= 62, a zero point of that width.
        """
        if not (1 << 30 <= self.multiplier < 1 << 31 and self.shift >= 1 and 1 <= self.bits <= 62):
            raise ValueError(
                f"invalid rescale: multiplier {self.multiplier}, shift {self.shift}, {self.bits} "
                "bits"
            )
        if saturate(self.zero_point, self.bits) != self.zero_point:
            raise ValueError(f"zero point {self.zero_point} does not fit {self.bits} bits")

    @classmethod
    def from_ratio(
        cls,
        ratio: float,
        bits: int,
        zero_point: int = 0,
        rounding: RoundingMode = RoundingMode.HALF_UP,
    ) -> Rescale:
        """Make a rescale by `ratio`, rounded half up to 31 significant bits.

        Exact for powers of two. Raises ValueError unless 0 < ratio < 2^30, or for an invalid width
        or zero point.
        """
        if not 0 < ratio < math.inf:
            raise ValueError(f"a rescale ratio must be positive and finite, not {ratio}")
        # ratio = mantissa * 2^exponent, mantissa in [1/2, 1)
        mantissa, exponent = math.frexp(ratio)
        multiplier, shift = math.floor(math.ldexp(mantissa, 31) + 0.5), 31 - exponent
        if multiplier == 1 << 31:
            multiplier, shift = 1 << 30, shift - 1
        if shift < 1:
            raise ValueError(f"a rescale ratio must be below 2^30, not {ratio}")
        return cls(multiplier, shift, bits, zero_point, rounding)

    @classmethod
    def from_shift(cls, shift: int, bits: int, zero_point: int = 0) -> Rescale:
        """Make a rescale that shifts right by `shift` bits, rounded half up.

        Down to -29 it shifts left. Raises ValueError for invalid bits or zero point.
        """
        return cls(1 << 30, 30 + shift, bits, zero_point)

    @property
    def pow2_shift(self) -> int | None:
        """The right shift in bits (negative: left) if the rescale is a plain shift; else None.

        Plain means a power-of-two multiplier, zero point 0, and rounding half up.
        """
        is_plain_shift = (
            self.multiplier == 1 << 30
            and not self.zero_point
            and self.rounding is RoundingMode.HALF_UP
        )
        return self.shift - 30 if is_plain_shift else None

    @property
    def dtype(self) -> np.dtype:
        """The narrowest integer type that holds the result."""
        return integer_dtype(self.bits)

    def __call__(self, acc: Any) -> np.ndarray:
        """Rescale integers of any shape and magnitude with Python integers; int64 result.

        y = saturate((acc * multiplier >> shift, rounded by `rounding`) + zero_point, bits). Exact
        but slow; for setup and tests.
        """
        product = np.asarray(acc).astype(object) * self.multiplier
        if self.rounding is RoundingMode.HALF_UP:
            rounded = round_shift_right(product, self.shift)
        else:
            divisor = 1 << self.shift
            divide = np.frompyfunc(lambda v: divide_rounded(v, divisor, self.rounding), 1, 1)
            rounded = divide(product)
        return np.asarray(saturate_array(rounded + self.zero_point, self.bits)).astype(np.int64)

    def output_bound(self, acc: int) -> int:
        """Return a bound of |result| for accumulators of magnitude up to `acc`."""
        return min(
            round_shift_right(acc * self.multiplier, self.shift) + 1 + abs(self.zero_point),
            1 << (self.bits - 1),
        )

    def compile_for_bound(
        self, bound: int, clip: tuple[int, int] | None = None
    ) -> ShiftForm | ScaleForm | WideScaleForm | RoundedScaleForm:
        """Return the cheapest form that is exact for accumulators of |acc| <= `bound`.

        Parameters
        ----------
        bound
            Largest magnitude of an accumulator.
        clip
            Bounds (low, high) of a following Relu or Clip, which narrow the saturation.
        """
        low, high = _output_limits(self.bits, clip)
        limit = min(bound, 1 << max(self.bits + self.shift - 30, 0))
        if self.rounding is not RoundingMode.HALF_UP:
            multiplier, shift = self.multiplier, self.shift
            if shift > 94:  # every result is less than a half
                multiplier, shift = 1, 94
            return RoundedScaleForm(
                limit, multiplier, shift, low, high, self.zero_point, int(self.rounding)
            )
        shift_form = self._compile_shift(bound, low, high)
        if shift_form is not None:
            return shift_form
        half = 1 << (self.shift - 1)
        if bound * self.multiplier < half:  # every accumulator rounds to 0
            return ScaleForm(bound, 0, self.zero_point, 0, low, high)
        half += self.zero_point << self.shift
        if limit * self.multiplier + abs(half) < 1 << 63:
            return ScaleForm(limit, self.multiplier, half, self.shift, low, high)
        return WideScaleForm(limit, self.multiplier, self.shift, low, high, self.zero_point)

    def _compile_shift(self, bound: int, low: int, high: int) -> ShiftForm | None:
        """Return the rescale as a right shift in 32 bits, or None if that would not be exact.

        It is exact if the multiplier is 2^30, the right shift 0 to 31, and sums up to `bound` plus
        half a unit and the zero point fit int32; `low` and `high` are the output limits.
        """
        right = self.shift - 30
        is_shift = self.multiplier == 1 << 30 and 0 <= right <= 31
        if not is_shift or low < INT32_MIN or high > INT32_MAX:
            return None
        half = (1 << (right - 1) if right else 0) + (self.zero_point << right)
        if bound + abs(half) > INT32_MAX:
            return None
        return ShiftForm(np.int32(half), np.int32(right), np.int32(low), np.int32(high))


def narrow_to_int32(form: RescaleForm, bound: int = INT32_MAX) -> RescaleForm:
    """Return `form` as a `NarrowScaleForm`, with int32 operands, if that stays exact.

    It does for a `ScaleForm` if `bound`, the largest |acc|, and limit and multiplier of the form
    fit int32; vector registers hold more int32 lanes. Otherwise, and for other forms, `form` is
    returned.
    """
    if (
        bound > INT32_MAX
        or not isinstance(form, ScaleForm)
        or max(form.limit, form.multiplier) > INT32_MAX
    ):
        return form
    limit, multiplier = np.int32(form.limit), np.int32(form.multiplier)
    return NarrowScaleForm(-limit, limit, multiplier, form.half, form.shift, form.low, form.high)


def _output_limits(bits: int, clip: tuple[int, int] | None) -> tuple[int, int]:
    """Return (min, max) of results saturated to signed `bits` bits and clipped to `clip`.

    `clip` is (low, high) or None.
    """
    top = 1 << (bits - 1)
    low, high = clip or (-top, top - 1)
    return _clamp(low, -top, top - 1), _clamp(high, -top, top - 1)


def _clamp(value: int, low: int, high: int) -> int:
    """Limit integer `value` to [low, high]."""
    return min(max(value, low), high)


def saturate_array(values: np.ndarray, bits: int) -> np.ndarray:
    """Saturate an array of any integer or object type to signed integers of `bits` bits."""
    top = 1 << (bits - 1)
    return np.minimum(np.maximum(values, -top), top - 1)


# --- other roundings ------------------------------------------------------------------------------

_DOWN, _UP, _EVEN = RoundingMode.DOWN.value, RoundingMode.UP.value, RoundingMode.HALF_EVEN.value
_NEAREST, _AWAY = RoundingMode.HALF_UP.value, RoundingMode.HALF_AWAY.value


@register_inline
def divide_rounded(n: Any, d: Any, rounding: Any) -> Any:
    """Return n / d rounded to an integer, for d > 0, |n| and d below 2^61.

    `rounding` is a `RoundingMode` or its integer.
    """
    if rounding == _DOWN:
        return n // d
    if rounding == _UP:
        return -(-n // d)
    y = (2 * n + d) // (2 * d)
    tie = (2 * n + d) % (2 * d) == 0
    return y - 1 if tie and ((rounding == _EVEN and y & 1) or (rounding == _AWAY and n < 0)) else y


@dataclass(frozen=True)
class RoundedShift:
    """Requantization by 2^-shift with any rounding mode other than half up.

    -29 <= shift <= 62, where a negative shift multiplies by 2^-shift; 1 <= bits <= 62.
    """

    shift: int
    bits: int
    rounding: RoundingMode

    def __post_init__(self) -> None:
        """Raise ValueError if shift or bits are out of range, or the mode is half up.

        Allowed: -29 <= shift <= 62 and 1 <= bits <= 62.
        """
        is_half_up = self.rounding is RoundingMode.HALF_UP
        if is_half_up or not (-29 <= self.shift <= 62 and 1 <= self.bits <= 62):
            raise ValueError(
                f"invalid requantization: shift {self.shift}, {self.bits} bits, {self.rounding!r}"
            )

    @property
    def pow2_shift(self) -> int:
        """The right shift in bits; negative is a left shift."""
        return self.shift

    @property
    def dtype(self) -> np.dtype:
        """The narrowest integer type that holds the result."""
        return integer_dtype(self.bits)

    def output_bound(self, acc: int) -> int:
        """Return a bound of |result| for accumulators of magnitude up to `acc`."""
        return min(round_shift_right(acc, self.shift) + 1, 1 << (self.bits - 1))

    def compile_for_bound(
        self, bound: int, clip: tuple[int, int] | None = None
    ) -> ScaleForm | HalfEvenShiftForm | RoundedScaleForm:
        """Return the form that computes this shift for accumulators of |acc| <= `bound` < 2^62.

        A left shift is a `ScaleForm`, as are the modes DOWN and UP; half even and half away have
        forms of their own. `clip` are the bounds (low, high) of a following Relu or Clip, or None.
        """
        low, high = _output_limits(self.bits, clip)
        limit = min(bound, 1 << max(self.bits + self.shift, 0))  # beyond it all results saturate
        if self.shift <= 0:
            return ScaleForm(limit, 1 << -self.shift, 0, 0, low, high)
        if self.rounding is RoundingMode.HALF_EVEN:
            return HalfEvenShiftForm(limit, self.shift, low, high)
        if self.rounding is RoundingMode.HALF_AWAY:
            return RoundedScaleForm(limit, 1, self.shift, low, high, 0, int(self.rounding))
        half = 0 if self.rounding is RoundingMode.DOWN else (1 << self.shift) - 1
        return ScaleForm(limit, 1, half, self.shift, low, high)


# --- division -------------------------------------------------------------------------------------


@register_inline
def luna_reciprocal(d: Any) -> Any:
    """Return the NPU's Newton reciprocal (r, e) of int32 `d` != 0: n / d ~ n * r * 2^(e-31).

    m = d * 2^(e-31) has |m| in (1/2, 1]; r starts from the five leading bits of m and is refined by
    three iterations, each rounded half up to 29 fractional bits. All in float64.
    """
    e = 31 - np.int64(math.ceil(np.float32(math.log2(abs(float(d))))))
    m = d * 2.0 ** (e - 31)
    r = math.floor(32.0 / math.floor(32.0 * m) * 2.0**29 + 0.5) / 2.0**29
    for _ in range(3):
        error = math.floor((2.0 - m * r) * 2.0**30 + 0.5)
        r = math.floor(error * r / 2.0**30 * 2.0**29 + 0.5) / 2.0**29
    return r, e


@register_inline
def luna_multiply_reciprocal(n: Any, r: Any, e: Any, shift: Any) -> Any:
    """Return n * 2^shift * r * 2^(e-31), rounded half up and saturated to int32, as int64.

    `r` and `e` are mantissa and exponent of a reciprocal as `luna_reciprocal` returns them.
    Computed in float64.
    """
    quotient = np.floor(r * n * 2.0 ** (e - 31) * 2.0**shift + 0.5)
    return np.int64(min(max(quotient, -2147483648.0), 2147483647.0))


@register_inline
def luna_divide(n: Any, d: Any, shift: Any) -> Any:
    """Return n * 2^shift / d as the NPU divides int32 numbers: an int32-saturated quotient.

    `shift` >= 0 is a left shift of the numerator. Ties go up or down, depending on the error of the
    reciprocal. Division by zero gives the most negative int32.
    """
    if d == 0:
        return np.int64(-2147483648)
    r, e = luna_reciprocal(d)
    return luna_multiply_reciprocal(n, r, e, shift)


@dataclass(frozen=True)
class LunaDivide:
    """Division `y = sat(luna_divide(acc, divisor, shift), bits)`.

    With a negative `shift` every result is `underflow`, saturated.
    """

    divisor: int
    shift: int = 0
    bits: int = 8
    underflow: int = 0

    @property
    def dtype(self) -> np.dtype:
        """The narrowest integer type that holds the result."""
        return integer_dtype(self.bits)

    def compile_for_bound(
        self, bound: int, clip: tuple[int, int] | None = None
    ) -> ScaleForm | ReciprocalForm:
        """Return the form of the NPU's division for accumulators of |acc| <= `bound` < 2^31.

        `clip` are the bounds (low, high) of a following Relu or Clip, or None. With a negative
        shift all results are `underflow`, limited to the output range.
        """
        low, high = _output_limits(self.bits, clip)
        if self.shift < 0:
            value = _clamp(self.underflow, low, high)
            return ScaleForm(bound, 0, 0, 0, value, value)
        reciprocal, exponent = luna_reciprocal(self.divisor)
        return ReciprocalForm(reciprocal, int(exponent), self.shift, low, high)


@dataclass(frozen=True)
class ChainedRescale:
    """Two rescales applied one after the other; each rounds and saturates."""

    first: Rescale
    second: Rescale

    @property
    def dtype(self) -> np.dtype:
        """The integer type of the result, that of the second rescale."""
        return self.second.dtype

    def output_bound(self, acc: int) -> int:
        """Return a bound of |result| for accumulators of magnitude up to `acc`."""
        return self.second.output_bound(self.first.output_bound(acc))

    def compile_for_bound(self, bound: int, clip: tuple[int, int] | None = None) -> ChainedForm:
        """Return both forms in a chain, exact for accumulators of |acc| <= `bound`.

        `clip` (low, high) bounds the second result, None only by its width.
        """
        return ChainedForm(
            self.first.compile_for_bound(bound),
            self.second.compile_for_bound(self.first.output_bound(bound), clip),
        )


# --- the compiled forms ---------------------------------------------------------------------------


@register_inline
def _apply_shift(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` requantized by a `ShiftForm`: add half, shift right, clamp.

    The sum must fit in int32, the type of the result.
    """
    # int32() and the mask let LLVM use 32 bits: 16 lanes instead of 8
    rounded = np.int32(acc + rescale.half) >> (rescale.shift & 31)
    return min(max(np.int32(rounded), rescale.low), rescale.high)


@register_inline
def _apply_scale(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` requantized by a `ScaleForm`, as int64.

    With the fields of the form: clamp((clamp(acc, -limit, limit) * multiplier + half) >> shift,
    low, high).
    """
    acc = min(max(np.int64(acc), -rescale.limit), rescale.limit)
    return min(
        max((acc * rescale.multiplier + rescale.half) >> rescale.shift, rescale.low), rescale.high
    )


@register_inline
def _apply_narrow_scale(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` (int32) requantized by a `NarrowScaleForm`.

    clamp((clamp(acc, -limit, limit) * multiplier + half) >> shift, low, high); the product has 64
    bits.
    """
    narrow = min(max(np.int32(acc), rescale.negative_limit), rescale.limit)
    product = np.int64(narrow) * np.int64(rescale.multiplier)
    return min(max((product + rescale.half) >> rescale.shift, rescale.low), rescale.high)


@register_inline
def _apply_wide_scale(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` requantized by a `WideScaleForm`, rounded half up, in int64.

    y = clamp((clamp(acc, -limit, limit) * multiplier >> shift, rounded) + zero_point, low, high).
    The product, of up to 95 bits, is computed in two halves.
    """
    # acc * M = upper * 2^32 + lower, each within int64; the rounding bit is added to the half that
    # it cannot overflow
    acc = min(max(np.int64(acc), -rescale.limit), rescale.limit)
    upper = (acc >> 32) * rescale.multiplier
    lower = (acc & 0xFFFFFFFF) * rescale.multiplier
    if rescale.shift <= 32:
        y = (upper << (32 - rescale.shift)) + round_shift_right(lower, rescale.shift)
    else:
        y = round_shift_right(upper + (lower >> 32), rescale.shift - 32)
    return min(max(y + rescale.zero_point, rescale.low), rescale.high)


@register_inline
def _apply_rounded_scale(rescale: Any, acc: Any) -> Any:  # noqa: C901 - a branch per rounding mode
    """Return accumulator `acc` requantized by a `RoundedScaleForm`, in int64.

    y = clamp((clamp(acc, -limit, limit) * multiplier >> shift, rounded by `rounding`) + zero_point,
    low, high). The product, of up to 95 bits, is computed in two halves.
    """
    # acc * M = upper * 2^32 + lower, each within int64; the bits that the shift removes are
    # (high_bits, low_bits), to be compared with (half, 0)
    acc = min(max(np.int64(acc), -rescale.limit), rescale.limit)
    upper = (acc >> 32) * rescale.multiplier
    lower = (acc & 0xFFFFFFFF) * rescale.multiplier
    if rescale.shift <= 32:
        y = (upper << (32 - rescale.shift)) + (lower >> rescale.shift)
        high_bits, low_bits = lower & ((np.int64(1) << rescale.shift) - 1), np.int64(0)
        half = np.int64(1) << (rescale.shift - 1)
    else:
        total = upper + (lower >> 32)
        y = total >> (rescale.shift - 32)
        high_bits, low_bits = (
            total & ((np.int64(1) << (rescale.shift - 32)) - 1),
            lower & 0xFFFFFFFF,
        )
        half = np.int64(1) << (rescale.shift - 33)
    if rescale.rounding == _UP:
        rounds_up = high_bits > 0 or low_bits > 0
    elif high_bits == half and low_bits == 0:
        rounds_to_even, rounds_away = (
            rescale.rounding == _EVEN and y & 1 == 1,
            rescale.rounding == _AWAY and acc > 0,
        )
        rounds_up = rounds_to_even or rounds_away or rescale.rounding == _NEAREST
    else:
        rounds_up = rescale.rounding != _DOWN and high_bits >= half
    return min(max(y + (1 if rounds_up else 0) + rescale.zero_point, rescale.low), rescale.high)


@register_inline
def _apply_reciprocal(rescale: Any, acc: Any) -> Any:
    """Return acc * reciprocal * 2^(exponent - 31 + shift), rounded half up and clamped.

    `rescale` is the `ReciprocalForm`, `acc` an int32 number; the product is computed in float64 and
    saturated to int32 before it is clamped to low and high.
    """
    result = luna_multiply_reciprocal(acc, rescale.reciprocal, rescale.exponent, rescale.shift)
    return min(max(result, rescale.low), rescale.high)


@register_inline
def _apply_half_even_shift(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` shifted right, with ties to even, by a `HalfEvenShiftForm`.

    `acc` is first clamped to the form's limit, the result to its low and high.
    """
    acc = min(max(np.int64(acc), -rescale.limit), rescale.limit)
    down = acc >> rescale.shift
    # a tie rounds up only if `down` is odd
    half = (np.int64(1) << (rescale.shift - 1)) - 1 + (down & 1)
    return min(max((acc + half) >> rescale.shift, rescale.low), rescale.high)


@register_inline
def _apply_chain(rescale: Any, acc: Any) -> Any:
    """Return accumulator `acc` requantized by the first, then by the second form of a chain."""
    return apply_rescale(rescale.second, apply_rescale(rescale.first, acc))


_FORM_FUNCTIONS: dict[type, Any] = {
    ShiftForm: _apply_shift,
    ScaleForm: _apply_scale,
    NarrowScaleForm: _apply_narrow_scale,
    WideScaleForm: _apply_wide_scale,
    RoundedScaleForm: _apply_rounded_scale,
    ReciprocalForm: _apply_reciprocal,
    HalfEvenShiftForm: _apply_half_even_shift,
    ChainedForm: _apply_chain,
}


def apply_rescale(rescale: RescaleForm, acc: Any) -> Any:
    """Return accumulator `acc` requantized by form `rescale`: rounded, saturated and clipped.

    In kernels the class of the form selects the code at compile time.
    """
    return _FORM_FUNCTIONS[type(rescale)](rescale, acc)


@overload(apply_rescale)
def _overload_apply_rescale(rescale: Any, acc: Any) -> Any:
    """Return the compiled implementation of `apply_rescale` for the class of the form."""
    form = _FORM_FUNCTIONS[rescale.instance_class]

    def implementation(rescale: Any, acc: Any) -> Any:
        """Return accumulator `acc` requantized by form `rescale`, in compiled code."""
        return form(rescale, acc)

    return implementation
