"""Elementwise arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv.

On shift-only targets, iqAdd requantizes each operand to the output scale first (two roundings),
then adds with saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the
product once. The training software also rounds each operand, but saturates only the sum. Zero
points are subtracted from the operands first; zero_point_o is added to the rounded result.
"""

from __future__ import annotations

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir.attributes import get_int, get_number
from ...targets.arithmetic import (
    AddArithmetic,
    AddOperandPrecision,
    DivArithmetic,
    DivisionMethod,
    MulArithmetic,
)
from .. import shape_inference as rules
from .._binary_op import BinaryIntegerOp
from .._integer_op import Format
from .._kernel_info import KernelInfo
from ..shape_inference import Signature

__all__ = ["ADD", "DIV", "FAMILY", "MUL", "SUB"]

#: Bits in which no operand of a sum is saturated.
_WIDE_BITS = 60


class Add(BinaryIntegerOp):
    """Sum of two integer tensors with separate scales."""

    name = "iqAdd"
    standard_op = "Add"
    kind = AddArithmetic
    v3_name: str | None = "QAdd"
    v1_implicit_attributes: tuple[str, ...] = ("data_bits", "y_bits", "o_bits")
    sign = 1

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel of the sum (difference if `sign` is -1), as precise as the target's.

        FINE: a common accumulator, rounded once. WIDE: each operand is rescaled to scale_o in 60
        bits, and only the sum saturates. Otherwise each operand is shifted and saturated to
        scale_o; raises ModelError there if a zero point is not 0.
        """
        from simulator.fixed_point import Rescale
        from simulator.kernels import AddScaled, AddShift

        ratio_x = info.output_scale_ratio(get_number(info.attributes, "scale_x"))
        ratio_y = info.output_scale_ratio(get_number(info.attributes, "scale_y"))
        bits, zero_point = get_int(info.attributes, "o_bits"), info.zero_point("o")
        precision = info.expect_arithmetic(AddArithmetic).operands
        if precision is AddOperandPrecision.FINE:
            kernel = AddScaled.from_ratios(
                ratio_x, ratio_y, bits, self.sign, zero_point, info.rounding
            )
            return self.subtract_zero_points(info, kernel)
        if precision is AddOperandPrecision.WIDE:
            rescale_x = info.rescale(ratio_x, _WIDE_BITS, 0)
            rescale_y = info.rescale(ratio_y, _WIDE_BITS, 0)
            output_rescale = Rescale.from_shift(0, bits, zero_point)
            kernel = AddScaled(rescale_x, rescale_y, output_rescale, self.sign)
            return self.subtract_zero_points(info, kernel)
        if any(map(info.zero_point, "xyo")):
            raise ModelError(
                f"{info.label}: it has a nonzero zero point, which this target cannot add; "
                "quantize symmetrically"
            )
        shift_x, shift_y = info.rescale(ratio_x).pow2_shift, info.rescale(ratio_y).pow2_shift
        return AddShift(shift_x, shift_y, sign=self.sign)


ADD = Add()


class Sub(Add):
    """Difference of two activations.

    On the chips, iqSub is correct only with all tensors in external memory, and pooling is not
    correct there. So a difference of images is replaced by a sum with the negated operand.
    """

    name = "iqSub"
    standard_op = "Sub"
    v3_name = None

    sign = -1


SUB = Sub()


class Mul(BinaryIntegerOp):
    """Product of two integer tensors."""

    name = "iqMul"
    standard_op = "Mul"
    kind = MulArithmetic
    v3_name = "QMul"
    v1_implicit_attributes = ("data_bits", "y_bits", "o_bits")

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the product kernel.

        It rescales each product once by scale_o / (scale_x * scale_y). Zero points are subtracted
        from the operands first.
        """
        from simulator.kernels import Mul as Kernel

        scale_x = get_number(info.attributes, "scale_x")
        scale_y = get_number(info.attributes, "scale_y")
        kernel = Kernel(info.rescale(info.output_scale_ratio(scale_x, scale_y)))
        return self.subtract_zero_points(info, kernel)


MUL = Mul()


class Div(BinaryIntegerOp):
    """Quotient of int32 activations by the reciprocal of the NPU; in vendor graphs only."""

    name = "iqDiv"
    standard_op = "Div"
    has_inexact_float_model = True
    signature = Signature(
        "x:integer y:integer", "integer", rules.infer_like_standard("Add", rules.int32_type)
    )
    kind = DivArithmetic
    aliases = ("QDiv",)
    supports_zero_points = False

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the division kernel with the method of the target.

        UNSCALED divides the integers without any shift; SINGLE computes in float32 with the scales.
        Otherwise the quotient is shifted left by log2(scale_o * scale_y / scale_x), and ModelError
        is raised if a scale is not a power of two.
        """
        from simulator.kernels import Div as Kernel
        from simulator.kernels import DivSingle

        method = info.expect_arithmetic(DivArithmetic).quotient
        if method is DivisionMethod.UNSCALED:
            return Kernel(0, zero_division_by_sign=True)
        scale_x = get_number(info.attributes, "scale_x")
        scale_y = get_number(info.attributes, "scale_y")
        scale_o = get_number(info.attributes, "scale_o")
        if method is DivisionMethod.SINGLE:
            bits = get_int(info.attributes, "o_bits")
            return DivSingle(scale_x, scale_y, scale_o, bits, info.rounding)
        q_x = info.require_exponent("scale_x", scale_x)
        q_y = info.require_exponent("scale_y", scale_y)
        q_o = info.require_exponent("scale_o", scale_o)
        return Kernel(q_o + q_y - q_x)


DIV = Div()


FAMILY: tuple[Format, ...] = (ADD, SUB, MUL, DIV)
