"""Conversions between float and integer tensors, or between scales: Quant, Dequant, Requant."""

from __future__ import annotations

import numpy as np

from ...targets.arithmetic import (
    Arithmetic,
    QuantArithmetic,
    QuantFloatPrecision,
    RequantArithmetic,
)
from .._reference_arithmetic import cast_to_width, requantize, round_shift, saturate, to_python_ints
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Dequant", "Quant", "Requant"]


class Quant(Integer):
    """Float to integer; an integer input is already quantized and returned unchanged.

    A chip computes in float32 and outputs int8. With a scale below 1, the host quantizes, since the
    packer removes a Quant of a graph input; it uses float64 like `generic`. The incorrect Quant of
    the chips for such scales is not modeled.
    """

    names: tuple[str, ...] = ("Quant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return floor(x * scale_x + 1/2) + zero_point, saturated to `data_bits` (default 8).

        Integer inputs are returned unchanged; NaN counts as 0. On some targets, a scale of at least
        1 is multiplied in float32 and the width is always 8.
        """
        (x,) = inputs
        if x.dtype.kind == "i":
            return x
        scale, bits = a.scale("scale_x"), int(a.get("data_bits") or 8)
        zero_point = int(a.get("zero_point") or 0)
        precision = expect_arithmetic(arithmetic, QuantArithmetic).float_precision
        with np.errstate(all="ignore"):
            if precision is QuantFloatPrecision.PRODUCT and scale >= 1:
                product = x.astype(np.float32) * np.float32(scale)
                scaled: np.ndarray = (product.astype(np.float64) + 0.5).astype(np.float32)
                bits = 8
            else:
                scaled = x.astype(np.float64) * scale + 0.5
            limit = 2.0 ** (bits - 1)
            rounded = np.floor(np.where(np.isnan(scaled), 0, scaled)) + zero_point
            clipped = np.clip(rounded, -limit, limit - 1)
        return cast_to_width(clipped.astype(np.int64), bits)


class Dequant(Integer):
    """Integer to float: (x - zero_point) / scale_o in float32."""

    names: tuple[str, ...] = ("Dequant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return (x - zero_point) / scale_o, computed in float64 and rounded to float32."""
        x = inputs[0].astype(np.float64) - int(a.get("zero_point") or 0)
        return (x / a.scale("scale_o")).astype(np.float32)


class Requant(Integer):
    """Integer to integer of another scale or width."""

    names: tuple[str, ...] = ("Requant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x at `scale_o` and `o_bits`: shifted for a ratio of 2^n, else multiplied.

        The result is saturated, except for left shifts to more than 8 bits on targets where these
        wrap around.
        """
        x = a.subtract_zero_point(inputs[0], "x")
        ratio = a.scale("scale_o") / a.scale("scale_x")
        mantissa, exponent = np.frexp(ratio)
        if mantissa != 0.5:
            return requantize(x, ratio, a.o_bits, arithmetic.requantize, a.zero_point("o"))
        shifted = round_shift(to_python_ints(x), 1 - int(exponent), arithmetic.requantize.rounding)
        wraps = expect_arithmetic(arithmetic, RequantArithmetic).wraps
        if wraps and a.o_bits > 8 and ratio >= 1:  # a plain left shift loses the top bits
            half = 1 << (a.o_bits - 1)
            return cast_to_width((shifted + half) % (2 * half) - half, a.o_bits)
        return cast_to_width(saturate(shifted + a.zero_point("o"), a.o_bits), a.o_bits)


FAMILY: tuple[type[Integer], ...] = (Quant, Dequant, Requant)
