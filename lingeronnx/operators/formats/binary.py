"""Arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv, BmmInt.

On shift-only targets, iqAdd requantizes each operand to the output scale first (two roundings),
then adds with saturation; `generic` adds in a common accumulator and rounds once. iqMul and BmmInt,
``o = sat(rescale(x @ y))`` over the last two axes, round the product once. The training software
also rounds each operand, but saturates only the sum. Zero points are subtracted from the operands
first; zero_point_o is added to the rounded result.
"""

from __future__ import annotations

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import (
    AddArithmetic,
    AddOperandPrecision,
    DivArithmetic,
    DivisionMethod,
    LayerArithmetic,
    MulArithmetic,
)
from . import shape_inference as rules
from ._base import (
    Attr,
    Format,
    KernelInfo,
    make_zero_point_attributes,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

__all__ = ["FAMILY", "ADD", "SUB", "MUL", "DIV", "BMM"]

#: Bits in which no operand of a sum is saturated.
_WIDE_BITS = 60


_ZERO_POINT_ATTRIBUTES = tuple(make_zero_point_spec(key) for key in "xyo")
_BINARY_ATTRIBUTES = (
    Attr("scale_x", "f"),
    Attr("scale_y", "f"),
    Attr("scale_o", "f"),
    Attr("o_bits", "i", 8),
    *_ZERO_POINT_ATTRIBUTES,
)


class BinaryIntegerOp(Format):
    """Base of operators with two activations; attributes hold the scales of inputs and output."""

    attributes: tuple[Attr, ...] = _BINARY_ATTRIBUTES
    #: The corresponding standard operator on float tensors.
    standard_op: str
    supports_zero_points = True
    signature = Signature(
        "x:integer y:integer", "integer", rules.infer_like_standard("Add", rules.type_of_bits)
    )

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that the simulator kernel reads: both, [0, 1]."""
        return [0, 1]

    def make_qparams_attributes(
        self, x_qparams: Affine, y_qparams: Affine, output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store scales, nonzero zero points and the output's bits.

        `o_bits` is omitted if it is 8, as vendor graphs do not have it.
        """
        # Vendor graphs have no o_bits, so it is omitted if it is 8.
        width = {} if output_qparams.bits == 8 else {"o_bits": output_qparams.bits}
        return {
            "scale_x": x_qparams.scale,
            "scale_y": y_qparams.scale,
            "scale_o": output_qparams.scale,
            **width,
            **make_zero_point_attributes(x=x_qparams, y=y_qparams, o=output_qparams),
        }

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3, which requires `y_bits`, the bits of operand 1.

        Absent `y_bits` and `data_bits` become 8, absent `o_bits` 8 if there is a `scale_o`.
        """
        return {"y_bits": 8, **super().to_v3_attributes(attrs, inputs)}

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append the standard operator on both dequantized inputs to `builder`.

        Return [its output].
        """
        return [builder(self.standard_op, builder.float_input(0), builder.float_input(1))]

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {0: ..., 1: ...}: scale, bits and zero point of both operands, from `attrs`."""
        return {0: qparams_from_attributes(attrs, "x"), 1: qparams_from_attributes(attrs, "y")}

    def subtract_zero_points(self, info: KernelInfo, kernel: Kernel) -> Kernel:
        """Return `kernel` wrapped so that the zero points are subtracted from its operands."""
        from simulator.kernels import subtract_zero_points

        return subtract_zero_points(kernel, info.zero_point("x"), info.zero_point("y"))


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


class Bmm(BinaryIntegerOp):
    """Batched matrix product of two activations."""

    name = "BmmInt"
    standard_op = "MatMul"
    allows_float_output = True
    signature = Signature(
        "x:integer y:integer",
        "result",
        rules.infer_like_standard("MatMul", rules.layer_output_type),
    )
    kind = LayerArithmetic
    v3_name = "QBmm"
    v1_implicit_attributes = ("y_bits",)
    aliases = ("QMatmul",)
    attributes = (
        Attr("scale_x", "f"),
        Attr("scale_y", "f"),
        Attr("scale_o", "f"),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        *_ZERO_POINT_ATTRIBUTES,
    )

    def make_qparams_attributes(
        self, x_qparams: Affine, y_qparams: Affine, output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points.

        `data_bits` are those of the first operand.
        """
        return {
            **super().make_qparams_attributes(x_qparams, y_qparams, output_qparams),
            "data_bits": x_qparams.bits,
            "o_bits": output_qparams.bits,
        }

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the matrix product `node`, or None if it can.

        It cannot if `node` is a QMatmul with an operand that is not of rank 3.
        """
        ranks = [len(ir.get_shape(value) or ()) for value in node.inputs[:2]]
        if node.op_type == "QMatmul" and ranks != [3, 3]:
            return "its factors do not both have three axes"
        return None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the matrix product kernel.

        It rescales each sum once by scale_o / (scale_x * scale_y). Zero points are subtracted from
        the operands first.
        """
        from simulator.kernels import MatMul

        scale_x = get_number(info.attributes, "scale_x")
        scale_y = get_number(info.attributes, "scale_y")
        kernel = MatMul(info.rescale(info.output_scale_ratio(scale_x, scale_y)))
        return self.subtract_zero_points(info, kernel)


BMM = Bmm()


FAMILY: tuple[Format, ...] = (ADD, SUB, MUL, DIV, BMM)
