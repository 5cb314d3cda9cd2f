"""Elementwise operators: sum, difference, product and quotient."""

from __future__ import annotations

import numpy as np

from ...targets.arithmetic import (
    AddArithmetic,
    AddOperandPrecision,
    Arithmetic,
    DivArithmetic,
    DivisionMethod,
)
from .._reference_arithmetic import (
    INT32,
    cast_to_width,
    divide,
    exact_log2,
    fixed_point_multiplier,
    requantize,
    round_shift,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Add", "Div", "Mul", "Sub"]


class Add(Integer):
    """Sum of two tensors.

    Chips requantize each operand to int8 first; `generic` adds with 2^16 times the output scale.
    """

    names: tuple[str, ...] = ("iqAdd", "QAdd")
    sign = 1

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the sum (or difference) of inputs 0 and 1, rescaled to `scale_o` and saturated.

        The target decides how operands are rescaled first: to the output's scale in 8 bits (the
        result then has 8 bits), to that scale in 62 bits, or to 2^16 times that scale, with one
        rounding after the sum.
        """
        arithmetic = expect_arithmetic(arithmetic, AddArithmetic)
        mode = arithmetic.requantize
        ratio_x = a.scale("scale_o") / a.scale("scale_x")
        ratio_y = a.scale("scale_o") / a.scale("scale_y")
        if arithmetic.operands is AddOperandPrecision.INT8:
            x = requantize(inputs[0], ratio_x, 8, mode).astype(int)
            y = requantize(inputs[1], ratio_y, 8, mode).astype(int)
            return cast_to_width(saturate(x + self.sign * y, 8), 8)
        x = a.subtract_zero_point(inputs[0], "x")
        y = a.subtract_zero_point(inputs[1], "y")
        if arithmetic.operands is AddOperandPrecision.WIDE:
            x = requantize(x, ratio_x, 62, mode).astype(object)
            y = requantize(y, ratio_y, 62, mode).astype(object)
            total = x + self.sign * y
        else:
            fine_sum = _rescale_finely(x, ratio_x) + self.sign * _rescale_finely(y, ratio_y)
            total = round_shift(fine_sum, 16, mode.rounding)
        return cast_to_width(saturate(total + a.zero_point("o"), a.o_bits), a.o_bits)


def _rescale_finely(values: np.ndarray, ratio: float) -> np.ndarray:
    """Return `values` * `ratio` * 2^16, rounded half up to Python integers.

    The product is computed by an integer multiplier of 31 bits and a shift.
    """
    m, s = fixed_point_multiplier(ratio * 2**16)
    return round_shift_half_up(to_python_ints(values) * m, s)


class Sub(Add):
    """Difference of two tensors, in the arithmetic of Add."""

    names: tuple[str, ...] = ("iqSub", "QSub")
    sign = -1


class Mul(Integer):
    """Product of two tensors."""

    names: tuple[str, ...] = ("iqMul", "QMul")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the product of inputs 0 and 1, requantized to `scale_o` with one rounding."""
        x, y = (a.subtract_zero_point(array, key) for array, key in zip(inputs, "xy", strict=True))
        return self.requantize_accumulator(x * y, a, arithmetic, "scale_x", "scale_y")


class Div(Integer):
    """Quotient of int32 tensors in the arithmetic of the NPU.

    arcs applies the scales, and x / 0 is the minimum of int32. venusA ignores the scales, and x / 0
    depends on the sign of x.
    """

    names: tuple[str, ...] = ("iqDiv", "QDiv")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x * 2^(q_o + q_y - q_x) / y in int32, element by element; q = log2(scale).

        All elements are the int32 minimum if the exponent is negative, and those with y = 0 too.
        Targets without scaling have exponent 0; there 0 / 0 = 0 and a negative x over 0 gives the
        int32 maximum.
        """
        x, y = np.broadcast_arrays(*inputs)
        method = expect_arithmetic(arithmetic, DivArithmetic).quotient
        is_unscaled = method is DivisionMethod.UNSCALED
        shift = 0
        if not is_unscaled:
            q_o, q_y = exact_log2(a.scale("scale_o")), exact_log2(a.scale("scale_y"))
            shift = q_o + q_y - exact_log2(a.scale("scale_x"))
        out = np.full(x.shape, INT32[0], np.int32)
        if shift < 0:
            return out
        for index in np.ndindex(*x.shape):
            dividend, divisor = int(x[index]), int(y[index])
            if divisor:
                out[index] = divide(dividend, divisor, shift)
            elif is_unscaled and dividend <= 0:
                out[index] = INT32[1] if dividend else 0
        return out


FAMILY: tuple[type[Integer], ...] = (Add, Sub, Mul, Div)
