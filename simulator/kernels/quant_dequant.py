"""Where real numbers become integers, and integers real numbers.

    Quant      real -> integer;  Dequant  integer -> real

Number by number, in whatever layout. Must not know: how a `fixed` form rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import RoundingMode, integer_dtype
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import require_signed_integer
from simulator.kernels.loops._copy import FLAT_IN, FLAT_OUT
from simulator.native import NativeLoop

__all__ = ["Dequant", "Quant"]


@register_inline
def _clamp_nan_to_zero(x: Any, low: Any, high: Any) -> Any:
    """Return the real x clamped, 0 for nan."""
    return min(max(x, low), high) if x == x else low - low


@jit
def _quant(x: Array, scale: float, low: float, high: float, out: Array) -> None:
    for i in range(out.size):
        rounded = np.floor(
            np.float64(x[i]) * scale + 0.5
        )  # not math.floor, which gives an int64 and may not fit
        out[i] = np.int32(_clamp_nan_to_zero(rounded, low, high))


@jit
def _quant_zero_point(
    x: Array, scale: float, zero: float, low: float, high: float, out: Array
) -> None:
    for i in range(out.size):
        rounded = np.floor(np.float64(x[i]) * scale + 0.5)
        out[i] = np.int32(
            _clamp_nan_to_zero(rounded, low - zero, high - zero) + zero
        )  # nan gives `zero`


@jit
def _quant_wide(x: Array, scale: float, low: float, high: float, out: Array) -> None:
    for i in range(out.size):
        out[i] = np.int64(_clamp_nan_to_zero(np.floor(np.float64(x[i]) * scale + 0.5), low, high))


@jit
def _quant_luna(x: Array, factor: np.float32, out: Array) -> None:
    for i in range(out.size):
        rounded = np.floor(np.float32(np.float64(x[i] * factor) + 0.5))
        out[i] = np.int32(_clamp_nan_to_zero(rounded, np.float32(-128), np.float32(127)))


@jit
def _quant_single(
    x: Array, factor: np.float32, rounding: int, low: int, high: int, out: Array
) -> None:
    """Fill out with float32 x * factor in steps of float32, rounded as a `RoundingMode` numbers it, to low..high."""
    for i in range(out.size):
        v = np.float32(x[i] * factor)
        if rounding == 0:
            v = np.floor(np.float32(v + np.float32(0.5)))
        elif rounding == 1:
            v = np.floor(v)
        elif rounding == 2:
            v = np.ceil(v)
        elif rounding == 3:
            v = np.rint(v)
        else:
            whole = np.trunc(v)
            v = whole + np.copysign(np.float32(abs(v - whole) >= np.float32(0.5)), v)
        out[i] = (
            0
            if np.isnan(v)
            else np.int64(min(max(np.float64(v), np.float64(low)), np.float64(high)))
        )


@jit
def _dequant(x: Array, scale: float, zero: int, out: Array) -> None:
    for i in range(out.size):
        out[i] = np.float32((np.int64(x[i]) - zero) / scale)


@dataclass(frozen=True, eq=False)
class Quant(Kernel):
    """float32 -> integers of `bits` bits at `scale` counts per real unit.

    Nan gives 0, infinities saturate.

    Parameters
    ----------
    scale
        Counts per real unit, positive; a power of two for "luna".
    bits
        Width of the result; "luna" always gives int8.
    rule
        "generic": sat(floor(x * scale + 1/2)) in float64. "luna", the NPU's own: the product is
        rounded to float32, the half is added in float64, and that sum is rounded to float32 before
        the floor; a scale below one, 2^q, turns into the int32 factor 1 << (q mod 32). "single",
        the training library's: every step in float32.
    rounding
        How "single" rounds; the others round half up.
    zero
        The integer that stands for 0, by "generic" only: sat(floor(x * scale + 1/2) + zero); nan
        gives it.

    Raises
    ------
    SimulatorError
        When x is not float32, or a "luna" scale is not a power of two.
    """

    layout: ClassVar[str] = "any"
    scale: float
    bits: int
    rule: Literal["generic", "luna", "single"] = "generic"
    rounding: RoundingMode = RoundingMode.HALF_UP
    zero_point: int = 0

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the same shape."""
        (x,) = specs
        require(x.dtype == np.float32, f"Quant takes float32, not {x}")
        require(0 < self.scale < math.inf, f"a scale must be positive and finite, not {self.scale}")
        require(
            self.rule in ("generic", "luna", "single"), f"no such quantization rule: {self.rule}"
        )
        require(
            self.rule == "single" or self.rounding is RoundingMode.HALF_UP,
            f"{self.rule} rounds half up only",
        )
        require(
            self.zero_point == 0 or self.rule == "generic",
            f"{self.rule} has no zero point; here {self.zero_point}",
        )
        require(
            self.rule != "luna" or math.frexp(self.scale)[0] == 0.5,
            f"{self.scale} is no power of two",
        )
        return (TensorSpec(x.shape, integer_dtype(8 if self.rule == "luna" else self.bits)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of `rule`."""
        if self.rule == "luna":
            q = math.frexp(self.scale)[1] - 1
            factor = (
                np.float32(np.array(1 << q % 32).astype(np.int32))
                if q < 0
                else np.float32(self.scale)
            )
            return NativeLoop(_quant_luna, (FLAT_IN, factor, FLAT_OUT))
        scale, top = float(self.scale), float(1 << (self.bits - 1))
        if self.rule == "single":
            single, rounding, last = np.float32(scale), int(self.rounding), 1 << (self.bits - 1)
            return NativeLoop(_quant_single, (FLAT_IN, single, rounding, -last, last - 1, FLAT_OUT))
        if self.zero_point:
            return NativeLoop(
                _quant_zero_point, (FLAT_IN, scale, float(self.zero_point), -top, top - 1, FLAT_OUT)
            )
        return NativeLoop(
            _quant if self.bits <= 32 else _quant_wide, (FLAT_IN, scale, -top, top - 1, FLAT_OUT)
        )


@dataclass(frozen=True, eq=False)
class Dequant(Kernel):
    """Integers -> float32: (x - zero) / scale, rounded once.

    scale : counts per real unit. zero : the integer that stands for 0.
    """

    layout: ClassVar[str] = "any"
    scale: float
    zero_point: int = 0

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the same shape."""
        require_signed_integer(specs[0], "Dequant")
        return (TensorSpec(specs[0].shape, np.dtype(np.float32)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop over all numbers in a row."""
        return NativeLoop(_dequant, (FLAT_IN, float(self.scale), int(self.zero_point), FLAT_OUT))
