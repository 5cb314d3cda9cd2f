"""Quant, Dequant, Requant."""

from __future__ import annotations

import numpy as np

from ..targets.arithmetic import Arithmetic, QuantArithmetic, QuantFloatPrecision, RequantArithmetic
from ._arithmetic import cast_to_width, requantize, round_shift, saturate, to_python_ints
from ._base import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Dequant", "Quant", "Requant"]


class Quant(Integer):
    """Real to integer. An array of integers is taken as quantized already, as `Session` takes it.

    A chip computes in float32 and gives int8. At a scale below 1 the host does it (the packer folds
    a Quant of a graph input away), in float64 as `generic`; that a chip's own Quant is wrong there
    is not modelled.
    """

    names: tuple[str, ...] = ("Quant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """sat(floor(x * scale + 1/2) + zero_point)."""
        (x,) = inputs
        if x.dtype.kind == "i":
            return x
        scale, bits = a.scale("scale_x"), int(a.get("data_bits") or 8)
        with np.errstate(all="ignore"):
            if (
                expect_arithmetic(arithmetic, QuantArithmetic).float_precision
                is QuantFloatPrecision.PRODUCT
                and scale >= 1
            ):
                product = x.astype(np.float32) * np.float32(scale)
                real: np.ndarray = (product.astype(np.float64) + 0.5).astype(np.float32)
                bits = 8
            else:
                real = x.astype(np.float64) * scale + 0.5
            top = 2.0 ** (bits - 1)
            zero = int(a.get("zero_point") or 0)
            whole = np.clip(np.floor(np.where(np.isnan(real), 0, real)) + zero, -top, top - 1)
        return cast_to_width(whole.astype(np.int64), bits)


class Dequant(Integer):
    """Integers to real numbers, (x - zero_point) / scale_o in float32."""

    names: tuple[str, ...] = ("Dequant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """(x - zero_point) / scale, rounded once to float32."""
        above = inputs[0].astype(np.float64) - int(a.get("zero_point") or 0)
        return (above / a.scale("scale_o")).astype(np.float32)


class Requant(Integer):
    """Integer to integer at another scale or width."""

    names: tuple[str, ...] = ("Requant",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Shift either way, or multiply."""
        x = a.subtract_zero_point(inputs[0], "x")
        ratio = a.scale("scale_o") / a.scale("scale_x")
        shifts = np.frexp(ratio)[0] == 0.5
        if shifts:
            moved = round_shift(
                to_python_ints(x), 1 - int(np.frexp(ratio)[1]), arithmetic.requantize.rounding
            )
            if (
                expect_arithmetic(arithmetic, RequantArithmetic).wraps
                and a.o_bits > 8
                and ratio >= 1
            ):  # a plain shift: the top bits are lost
                half = 1 << (a.o_bits - 1)
                return cast_to_width((moved + half) % (2 * half) - half, a.o_bits)
            return cast_to_width(saturate(moved + a.zero_point("o"), a.o_bits), a.o_bits)
        return requantize(x, ratio, a.o_bits, arithmetic.requantize, a.zero_point("o"))


FAMILY: tuple[type[Integer], ...] = (Quant, Dequant, Requant)
