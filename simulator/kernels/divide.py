"""Quotient of two computed tensors.

`Div` divides as the NPU does, `fixed.luna_div` of int32 numbers. `DivSingle` is what the training
library does: real numbers in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import INT32_MAX, INT32_MIN, RoundingMode, integer_dtype, luna_divide
from simulator.kernel import Array, Kernel, NumpyKernel, RunFunction, TensorSpec, require
from simulator.kernels.elementwise import build_broadcast_loop
from simulator.kernels.loops._common import broadcast_shape, require_signed_integer
from simulator.kernels.loops._copy import broadcast_into_scratch

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
def _div(
    x: Array, y: Array, wide_x: Array, wide_y: Array, out: Array, shift: int, by_sign: bool
) -> None:
    """Fill int32 out with x * 2^shift / y, int32, on operands that broadcast.

    See `elementwise.binary`.
    by_sign : what x / 0 is, see `Div`.
    """
    a, b, flat = (
        broadcast_into_scratch(x, out.shape, wide_x),
        broadcast_into_scratch(y, out.shape, wide_y),
        out.reshape(out.size),
    )
    for i in range(flat.size):
        if b[i] == 0 and by_sign:
            flat[i] = INT32_MIN if a[i] > 0 else (INT32_MAX if a[i] < 0 else 0)
        else:
            flat[i] = luna_divide(np.int64(a[i]), np.int64(b[i]), shift)


@dataclass(frozen=True, eq=False)
class Div(Kernel):
    """int32 x * 2^shift / y.

    Parameters
    ----------
    shift
        Left shift of the numerator; a negative one gives the most negative integer everywhere.
    by_sign
        Whether x / 0 is the most negative integer for x > 0, the largest for x < 0 and 0 for 0;
        otherwise it is always the most negative one.
    """

    shift: int = 0
    zero_division_by_sign: bool = False

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x, y -> out of the shape that both broadcast to."""
        require(
            all(spec.dtype == np.int32 for spec in specs),
            f"Div takes int32, not {specs[0]} and {specs[1]}",
        )
        return (TensorSpec(broadcast_shape(specs), np.dtype(np.int32)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop; a negative shift needs none."""
        if self.shift < 0:
            return lambda ins, outs: outs[0].fill(INT32_MIN)
        return build_broadcast_loop(
            self, specs, channel_last, _div, (self.shift, self.zero_division_by_sign)
        )


@dataclass(frozen=True, eq=False)
class DivSingle(NumpyKernel):
    """(x / scale_x) / (y / scale_y) * scale_o, rounded and saturated; x / 0 saturates, 0 / 0 is 0.

    Parameters
    ----------
    scale_x, scale_y, scale_o
        Counts per real unit of the numerator, the denominator and the result.
    bits
        Width of the result.
    rounding
        How a value between two integers is rounded.
    """

    scale_x: float
    scale_y: float
    scale_o: float
    bits: int = 8
    rounding: RoundingMode = RoundingMode.HALF_UP

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x, y -> out of the shape that both broadcast to."""
        for spec in specs:
            require_signed_integer(spec, "DivSingle")
        return (TensorSpec(broadcast_shape(specs), integer_dtype(self.bits)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute in float32, step by step."""
        x, y = (
            a.astype(np.float32) / np.float32(s)
            for a, s in zip(arrays, (self.scale_x, self.scale_y), strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            real = np.nan_to_num(
                _ROUNDING_FUNCTIONS[self.rounding](x / y * np.float32(self.scale_o)),
                posinf=np.inf,
                neginf=-np.inf,
            )
        top = 1 << (self.bits - 1)
        return (np.clip(real.astype(np.float64), -top, top - 1).astype(integer_dtype(self.bits)),)
