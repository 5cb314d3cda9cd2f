"""Sums, products, quotients, bounds: number by number."""

from __future__ import annotations

import numpy as np

from ..targets.arithmetic import (
    AddArithmetic,
    AddOperandPrecision,
    Arithmetic,
    DivArithmetic,
    DivisionMethod,
)
from ._arithmetic import (
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
from ._base import (
    Attributes,
    Integer,
    Outputs,
    StandardOpRun,
    expect_arithmetic,
    get_optional_input,
)

__all__ = ["FAMILY", "Add", "Clip", "Div", "Mul", "Relu", "Sub"]


class Add(Integer):
    """Sum: on chips each operand is requantized to int8 first.

    `generic` sums at 2^16 times the output's scale.
    """

    names: tuple[str, ...] = ("iqAdd", "QAdd")
    sign = 1

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Bring both to one scale, add, saturate."""
        arithmetic = expect_arithmetic(arithmetic, AddArithmetic)
        ratios = [a.scale("scale_o") / a.scale(key) for key in ("scale_x", "scale_y")]
        above = [
            a.subtract_zero_point(values, key) for values, key in zip(inputs, "xy", strict=True)
        ]
        if arithmetic.operands is AddOperandPrecision.WIDE:
            x, y = (
                requantize(v, r, 62, arithmetic.requantize).astype(object)
                for v, r in zip(above, ratios, strict=True)
            )
            return cast_to_width(
                saturate(x + self.sign * y + a.zero_point("o"), a.o_bits), a.o_bits
            )
        if arithmetic.operands is AddOperandPrecision.INT8:
            x, y = (
                requantize(v, r, 8, arithmetic.requantize).astype(int)
                for v, r in zip(inputs, ratios, strict=True)
            )
            return cast_to_width(saturate(x + self.sign * y, 8), 8)
        fine = []
        for values, ratio in zip(above, ratios, strict=True):
            m, s = fixed_point_multiplier(ratio * 2**16)
            fine.append(round_shift_half_up(to_python_ints(values) * m, s))
        whole = round_shift(
            fine[0] + self.sign * fine[1], 16, arithmetic.requantize.rounding
        ) + a.zero_point("o")
        return cast_to_width(saturate(whole, a.o_bits), a.o_bits)


class Sub(Add):
    """Difference of two tensors, computed as their sum is."""

    names: tuple[str, ...] = ("iqSub", "QSub")
    sign = -1


class Mul(Integer):
    """Product of two tensors."""

    names: tuple[str, ...] = ("iqMul", "QMul")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Multiply and round once."""
        x, y = (a.subtract_zero_point(array, key) for array, key in zip(inputs, "xy", strict=True))
        return self.requantize_accumulator(x * y, a, arithmetic, "scale_x", "scale_y")


class Div(Integer):
    """Quotient of int32 numbers by the NPU's division.

    arcs takes the scales into account and calls every x / 0 the most negative number; venusA
    ignores the scales and lets x / 0 depend on the sign of x.
    """

    names: tuple[str, ...] = ("iqDiv", "QDiv")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """X * 2^(q_o + q_y - q_x) / y."""
        x, y = np.broadcast_arrays(*inputs)
        unscaled = expect_arithmetic(arithmetic, DivArithmetic).quotient is DivisionMethod.UNSCALED
        shift = (
            0
            if unscaled
            else exact_log2(a.scale("scale_o"))
            + exact_log2(a.scale("scale_y"))
            - exact_log2(a.scale("scale_x"))
        )
        out = np.full(x.shape, INT32[0], np.int32)
        for place in np.ndindex(*x.shape) if shift >= 0 else ():
            n, d = int(x[place]), int(y[place])
            if d:
                out[place] = divide(n, d, shift)
            elif unscaled and n <= 0:
                out[place] = INT32[1] if n else 0
        return out


class Relu(StandardOpRun):
    """Negative integers become 0: max(0, x)."""

    names: tuple[str, ...] = ("Relu",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Negative numbers become 0."""
        return np.where(inputs[0] < 0, 0, inputs[0]).astype(inputs[0].dtype)


class Clip(StandardOpRun):
    """min(max(x, low), high); absent bounds do not bound."""

    names: tuple[str, ...] = ("Clip",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Cut x at the bounds."""
        x, low, high = inputs[0], get_optional_input(inputs, 1), get_optional_input(inputs, 2)
        y = x if low is None else np.where(x < low, low, x)
        return (y if high is None else np.where(y > high, high, y)).astype(x.dtype)


FAMILY: tuple[type[Integer], ...] = (Add, Sub, Mul, Div, Relu, Clip)
