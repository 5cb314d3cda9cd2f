"""Arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv, BmmInt.

On shifting platforms iqAdd requantizes each operand to the output's scale first (two roundings),
then adds with saturation; `generic` adds in a common accumulator and rounds once. iqMul and BmmInt,
``y = sat(rescale(x @ y))`` over the last two axes, round the product once. The training side rounds
each operand as well, but saturates the sum only. Operands count as what they are above their zero
points; to the rounded result zero_point_o is added.
"""

from __future__ import annotations

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number
from ..plan import Affine
from ..targets.arithmetic import (
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

#: Bits in which no operand of a sum is cut.
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
    """Two activations in, scales of both and of the output as attributes."""

    attributes: tuple[Attr, ...] = _BINARY_ATTRIBUTES
    #: The operator of two real tensors.
    standard_op: str
    supports_zero_points = True
    signature = Signature(
        "x:integer y:integer", "integer", rules.infer_like_standard("Add", rules.type_of_bits)
    )

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return both operands."""
        return [0, 1]

    def scales(self, x: Affine, y: Affine, o: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads `x` and `y` and writes `o`."""
        width = {} if o.bits == 8 else {"o_bits": o.bits}  # which the vendor's form does not have
        attrs = {"scale_x": x.scale, "scale_y": y.scale, "scale_o": o.scale, **width}
        return {**attrs, **make_zero_point_attributes(x=x, y=y, o=o)}

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """The second operand has a width, too."""
        return {"y_bits": 8, **super().to_v3_attributes(attrs, inputs)}

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the operator itself."""
        return [builder(self.standard_op, builder.float_input(0), builder.float_input(1))]

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return the scales of both operands."""
        return {0: qparams_from_attributes(attrs, "x"), 1: qparams_from_attributes(attrs, "y")}

    def subtract_zero_points(self, bound: KernelInfo, kernel: Kernel) -> Kernel:
        """Return the kernel, on operands less their zero points."""
        from simulator.kernels import subtract_zero_points

        return subtract_zero_points(kernel, bound.zero_point("x"), bound.zero_point("y"))


class Add(BinaryIntegerOp):
    """Sum of two integer tensors, each with a scale of its own."""

    name = "iqAdd"
    standard_op = "Add"
    kind = AddArithmetic
    v3_name: str | None = "QAdd"
    v1_implicit_attributes: tuple[str, ...] = ("data_bits", "y_bits", "o_bits")
    sign = 1

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the adder of the platform."""
        from simulator.kernels import AddScaled, AddShift

        rx, ry = (
            info.output_scale_ratio(get_number(info.attributes, "scale_x")),
            info.output_scale_ratio(get_number(info.attributes, "scale_y")),
        )
        bits = get_int(info.attributes, "o_bits")
        operands = info.expect_arithmetic(AddArithmetic).operands
        if operands is AddOperandPrecision.FINE:
            return self.subtract_zero_points(
                info,
                AddScaled.from_ratios(rx, ry, bits, self.sign, info.zero_point("o"), info.rounding),
            )
        if operands is AddOperandPrecision.WIDE:
            from simulator.fixed_point import Rescale

            wide_x, wide_y = (info.rescale(r, _WIDE_BITS, 0) for r in (rx, ry))
            whole = Rescale.from_shift(0, bits, info.zero_point("o"))
            return self.subtract_zero_points(info, AddScaled(wide_x, wide_y, whole, self.sign))
        if any(map(info.zero_point, "xyo")):
            raise ModelError(f"{info.label}: it has a zero point; this platform adds without")
        shift_x, shift_y = (info.rescale(r).pow2_shift for r in (rx, ry))
        return AddShift(shift_x, shift_y, sign=self.sign)


ADD = Add()


class Sub(Add):
    """Difference of two activations.

    The chips' iqSub is right only with all tensors in external memory, where pooling is not. So on
    images the sum with the negated operand takes its place there.
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
        """Return the kernel that multiplies."""
        from simulator.kernels import Mul as Kernel

        return self.subtract_zero_points(
            info,
            Kernel(
                info.rescale(
                    info.output_scale_ratio(
                        get_number(info.attributes, "scale_x"),
                        get_number(info.attributes, "scale_y"),
                    )
                )
            ),
        )


MUL = Mul()


class Div(BinaryIntegerOp):
    """Quotient of int32 activations, in vendors' graphs only: the NPU's reciprocal division."""

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
        """Return the kernel that divides as the platform does."""
        from simulator.kernels import Div as Kernel
        from simulator.kernels import DivSingle

        quotient = info.expect_arithmetic(DivArithmetic).quotient
        if quotient is DivisionMethod.SINGLE:
            x, y, o = (
                get_number(info.attributes, key) for key in ("scale_x", "scale_y", "scale_o")
            )
            return DivSingle(x, y, o, get_int(info.attributes, "o_bits"), info.rounding)
        if quotient is DivisionMethod.UNSCALED:
            return Kernel(0, zero_division_by_sign=True)
        x, y, o = (
            info.require_exponent(key, get_number(info.attributes, key))
            for key in ("scale_x", "scale_y", "scale_o")
        )
        return Kernel(o + y - x)


DIV = Div()


class Bmm(BinaryIntegerOp):
    """Matrix product, sample by sample."""

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

    def scales(self, x: Affine, y: Affine, o: Affine) -> dict[str, AttributeValue]:
        """Return the scales of both factors and the output, and the widths."""
        return {**super().scales(x, y, o), "data_bits": x.bits, "o_bits": o.bits}

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return why its factors have other axes than dialect v1 takes, or None."""
        ranks = [len(ir.get_shape(value) or ()) for value in node.inputs[:2]]
        return (
            "its factors do not both have three axes"
            if node.op_type == "QMatmul" and ranks != [3, 3]
            else None
        )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the matrix kernel."""
        from simulator.kernels import MatMul

        return self.subtract_zero_points(
            info,
            MatMul(
                info.rescale(
                    info.output_scale_ratio(
                        get_number(info.attributes, "scale_x"),
                        get_number(info.attributes, "scale_y"),
                    )
                )
            ),
        )


BMM = Bmm()


FAMILY: tuple[Format, ...] = (ADD, SUB, MUL, DIV, BMM)
