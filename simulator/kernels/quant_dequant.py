"""Conversion between float and integer tensors.

    Quant      float -> integer
    Dequant    integer -> float

Elementwise, in any layout. Must not know: how a form of `fixed_point` rounds.
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
    """Return float x clamped to [low, high], and 0 for NaN."""
    return min(max(x, low), high) if x == x else low - low


@jit
def _quant(x: Array, scale: float, low: float, high: float, out: Array) -> None:
    """Fill flat out with floor(x * scale + 1/2) clamped to [low, high], within int32.

    x is flat float32, and NaN gives 0; `scale` is in integers per unit. Computed in float64.
    """
    for i in range(out.size):
        # not math.floor: its int64 result may overflow
        rounded = np.floor(np.float64(x[i]) * scale + 0.5)
        out[i] = np.int32(_clamp_nan_to_zero(rounded, low, high))


@jit
def _quant_zero_point(
    x: Array, scale: float, zero: float, low: float, high: float, out: Array
) -> None:
    """Fill flat out with floor(x * scale + 1/2) + zero, clamped to [low, high].

    x is flat float32, and NaN gives `zero`; `scale` is in integers per unit. out has at most 32
    bits.
    """
    for i in range(out.size):
        rounded = np.floor(np.float64(x[i]) * scale + 0.5)
        out[i] = np.int32(_clamp_nan_to_zero(rounded, low - zero, high - zero) + zero)


@jit
def _quant_wide(x: Array, scale: float, low: float, high: float, out: Array) -> None:
    """Fill flat out with floor(x * scale + 1/2) clamped to [low, high], of up to 64 bits.

    x is flat float32; NaN gives 0.
    """
    for i in range(out.size):
        out[i] = np.int64(_clamp_nan_to_zero(np.floor(np.float64(x[i]) * scale + 0.5), low, high))


@jit
def _quant_luna(x: Array, factor: np.float32, out: Array) -> None:
    """Fill flat int8 out with floor(x * factor + 1/2), clamped to -128..127.

    NaN gives 0. x is flat float32. The product is rounded to float32, 1/2 is added in float64, and
    the sum is rounded to float32 before the floor.
    """
    for i in range(out.size):
        rounded = np.floor(np.float32(np.float64(x[i] * factor) + 0.5))
        out[i] = np.int32(_clamp_nan_to_zero(rounded, np.float32(-128), np.float32(127)))


@jit
def _quant_single(
    x: Array, factor: np.float32, rounding: int, low: int, high: int, out: Array
) -> None:
    """Fill flat out with round(x * factor) clamped to [low, high], every step in float32.

    x is flat float32; NaN gives 0. `rounding` is the integer of a `RoundingMode`. out has a type
    that contains low..high.
    """
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
            truncated = np.trunc(v)
            v = truncated + np.copysign(np.float32(abs(v - truncated) >= np.float32(0.5)), v)
        out[i] = (
            0
            if np.isnan(v)
            else np.int64(min(max(np.float64(v), np.float64(low)), np.float64(high)))
        )


@jit
def _dequant(x: Array, scale: float, zero: int, out: Array) -> None:
    """Fill flat float32 out with (x - zero) / scale for flat integers x.

    The quotient is computed in float64 and rounded once.
    """
    for i in range(out.size):
        out[i] = np.float32((np.int64(x[i]) - zero) / scale)


@dataclass(frozen=True, eq=False)
class Quant(Kernel):
    """Quantize float32 to integers of `bits` bits; nan gives 0, infinities saturate.

    Parameters
    ----------
    scale
        Integer steps per unit, positive; a power of two for "luna".
    bits
        Width of the result; "luna" always gives int8.
    rule
        "generic": sat(floor(x * scale + 1/2)) in float64. "luna", the rule of the NPU: the product
        is rounded to float32, the half is added in float64, and the sum is rounded to float32
        before the floor; a scale below one, 2^q, becomes the int32 factor 1 << (q mod 32).
        "single", the rule of the training library: every step in float32.
    rounding
        Rounding mode of "single"; the others round half up.
    zero_point
        Only for "generic": sat(floor(x * scale + 1/2) + zero_point); the result for nan.

    Raises
    ------
    SimulatorError
        If x is not float32, or a "luna" scale is not a power of two.
    """

    layout: ClassVar[str] = "any"
    scale: float
    bits: int
    rule: Literal["generic", "luna", "single"] = "generic"
    rounding: RoundingMode = RoundingMode.HALF_UP
    zero_point: int = 0

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of float32 x: int8 for rule "luna", else of `bits` bits.

        Raises SimulatorError unless x is float32 and scale, rounding and zero point suit the rule.
        """
        (x,) = specs
        require(x.dtype == np.float32, f"Quant requires float32, not {x}")
        require(0 < self.scale < math.inf, f"a scale must be positive and finite, not {self.scale}")
        require(
            self.rule in ("generic", "luna", "single"),
            f"unknown quantization rule '{self.rule}'; choose from generic, luna, single",
        )
        require(
            self.rule == "single" or self.rounding is RoundingMode.HALF_UP,
            f"quantization rule '{self.rule}' supports only rounding half up",
        )
        require(
            self.zero_point == 0 or self.rule == "generic",
            f"quantization rule '{self.rule}' has no zero point; got {self.zero_point}",
        )
        require(
            self.rule != "luna" or math.frexp(self.scale)[0] == 0.5,
            f"a scale of quantization rule 'luna' must be a power of two, not {self.scale}",
        )
        return (TensorSpec(x.shape, integer_dtype(8 if self.rule == "luna" else self.bits)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the quantization loop of the rule, with the range of `bits` and the zero point.

        For "luna" a scale 2^q below 1 becomes the factor that the executor computes, an int32 of 1
        << (q mod 32).
        """
        if self.rule == "luna":
            q = math.frexp(self.scale)[1] - 1
            factor = np.float32(self.scale)
            if q < 0:
                factor = np.float32(np.array(1 << q % 32).astype(np.int32))
            return NativeLoop(_quant_luna, (FLAT_IN, factor, FLAT_OUT))
        top = 1 << (self.bits - 1)
        if self.rule == "single":
            scale_and_rounding = np.float32(self.scale), int(self.rounding)
            return NativeLoop(
                _quant_single, (FLAT_IN, *scale_and_rounding, -top, top - 1, FLAT_OUT)
            )
        scale, low, high = float(self.scale), -float(top), float(top) - 1
        if self.zero_point:
            zero = float(self.zero_point)
            return NativeLoop(_quant_zero_point, (FLAT_IN, scale, zero, low, high, FLAT_OUT))
        loop = _quant if self.bits <= 32 else _quant_wide
        return NativeLoop(loop, (FLAT_IN, scale, low, high, FLAT_OUT))


@dataclass(frozen=True, eq=False)
class Dequant(Kernel):
    """Dequantize integers to float32: (x - zero_point) / scale, rounded once.

    `scale` is in integer steps per unit.
    """

    layout: ClassVar[str] = "any"
    scale: float
    zero_point: int = 0

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, float32, of the shape of x.

        Raises SimulatorError unless x is a signed integer.
        """
        require_signed_integer(specs[0], "Dequant")
        return (TensorSpec(specs[0].shape, np.dtype(np.float32)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the dequantization loop over all elements."""
        return NativeLoop(_dequant, (FLAT_IN, float(self.scale), int(self.zero_point), FLAT_OUT))
