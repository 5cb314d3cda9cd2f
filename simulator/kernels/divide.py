"""Quotient of two computed tensors.

`Div` divides int32 numbers as the NPU does (`fixed_point.luna_divide`), `DivSingle` divides in
float32 as the training library does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import INT32_MAX, INT32_MIN, RoundingMode, integer_dtype, luna_divide
from simulator.kernel import Array, Kernel, NumpyKernel, RunFunction, TensorSpec, require
from simulator.kernels.elementwise import build_binary_loop
from simulator.kernels.loops._common import broadcast_shape, require_signed_integer
from simulator.kernels.loops._copy import broadcast_operands, slice_repeated
from simulator.kernels.loops._view import view_as

__all__ = ["Div", "DivSingle"]

_ROUNDING_FUNCTIONS: dict[RoundingMode, Any] = {
    RoundingMode.HALF_UP: lambda v: np.floor(v + np.float32(0.5)),
    RoundingMode.DOWN: np.floor,
    RoundingMode.UP: np.ceil,
    RoundingMode.HALF_EVEN: np.rint,
    RoundingMode.HALF_AWAY: lambda v: (
        np.trunc(v) + np.copysign(np.float32(np.abs(v - np.trunc(v)) >= 0.5), v)
    ),
}


@jit
def _div(x: Array, y: Array, out: Array, shift: int, by_sign: bool) -> None:
    """Fill int32 out with x * 2^shift / y, as the NPU divides, for flat int32 x and y.

    The quotient is saturated to int32. x / 0 is INT32_MIN; with `by_sign` INT32_MIN for x > 0,
    INT32_MAX for x < 0, and 0 for x = 0. x or y may be that of one sample, which serves all.
    """
    count = min(x.size, y.size)
    for first in range(0, out.size, max(count, 1)):
        a, b = slice_repeated(x, first, count), slice_repeated(y, first, count)
        target = out[first : first + count]
        for i in range(count):
            if b[i] == 0 and by_sign:
                if a[i] > 0:
                    target[i] = INT32_MIN
                else:
                    target[i] = INT32_MAX if a[i] < 0 else 0
            else:
                target[i] = luna_divide(np.int64(a[i]), np.int64(b[i]), shift)


@jit
def _div_broadcast(
    x: Array, y: Array, wide_x: Array, wide_y: Array, out: Array, shift: int, by_sign: bool
) -> None:
    """Compute `_div` of x and y of rank 4 that broadcast to out.

    `wide_x` and `wide_y` are flat scratch memory of out.size elements for operands that must be
    expanded.
    """
    a, b = broadcast_operands(x, y, wide_x, wide_y, out)
    _div(a, b, view_as(out, (out.size,)), shift, by_sign)


@dataclass(frozen=True, eq=False)
class Div(Kernel):
    """x * 2^shift / y of int32 tensors that broadcast, with int32 result.

    Parameters
    ----------
    shift
        Left shift of the numerator; with a negative one all results are the most negative integer.
    zero_division_by_sign
        Whether x / 0 is the most negative integer for x > 0, the largest for x < 0 and 0 for 0;
        otherwise it is always the most negative one.
    """

    shift: int = 0
    zero_division_by_sign: bool = False

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the quotient, int32, of the shape that x and y broadcast to.

        Raises SimulatorError unless both are int32.
        """
        require(
            all(spec.dtype == np.int32 for spec in specs),
            f"Div requires int32, not {specs[0]} and {specs[1]}",
        )
        return (TensorSpec(broadcast_shape(specs), np.dtype(np.int32)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of the division.

        With a negative shift one that fills the output with INT32_MIN.
        """
        if self.shift < 0:
            return lambda ins, outs: outs[0].fill(INT32_MIN)
        return build_binary_loop(
            self,
            specs,
            channel_last,
            (_div, _div_broadcast),
            (self.shift, self.zero_division_by_sign),
        )


@dataclass(frozen=True, eq=False)
class DivSingle(NumpyKernel):
    """(x / scale_x) / (y / scale_y) * scale_o, rounded and saturated; x / 0 saturates, 0 / 0 is 0.

    Parameters
    ----------
    scale_x, scale_y, scale_o
        Integer steps per unit of the numerator, the denominator and the result.
    bits
        Width of the result.
    rounding
        Rounding mode.
    """

    scale_x: float
    scale_y: float
    scale_o: float
    bits: int = 8
    rounding: RoundingMode = RoundingMode.HALF_UP

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the quotient, of `bits` bits and the shape that x and y broadcast to.

        Raises SimulatorError unless both are signed integers.
        """
        for spec in specs:
            require_signed_integer(spec, "DivSingle")
        return (TensorSpec(broadcast_shape(specs), integer_dtype(self.bits)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute round((x / scale_x) / (y / scale_y) * scale_o), every step in float32, saturated.

        Rounded by `rounding`; the result has `bits` bits, in the narrowest integer type for them. x
        / 0 saturates, 0 / 0 is 0.
        """
        x = arrays[0].astype(np.float32) / np.float32(self.scale_x)
        y = arrays[1].astype(np.float32) / np.float32(self.scale_y)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rounded = _ROUNDING_FUNCTIONS[self.rounding](x / y * np.float32(self.scale_o))
            finite_or_inf = np.nan_to_num(rounded, posinf=np.inf, neginf=-np.inf)
        top = 1 << (self.bits - 1)
        saturated = np.clip(finite_or_inf.astype(np.float64), -top, top - 1)
        return (saturated.astype(integer_dtype(self.bits)),)
