"""Conversions between float and integer tensors, or between scales: Quant, Dequant, Requant."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import QuantArithmetic, QuantFloatPrecision, RequantArithmetic
from .. import shape_inference as rules
from .._integer_op import Attr, Format, UnaryIntegerOp, make_qparams, make_zero_point_spec
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["FAMILY", "QUANT", "DEQUANT", "REQUANT"]


def _make_zero_point_attribute(q: Affine) -> dict[str, int]:
    """Return {"zero_point": zero point of `q`}, or {} if that is 0."""
    return {"zero_point": q.zero_point} if q.zero_point else {}


class Quant(Format):
    """Float to integer: ``sat(floor(x * scale_x + 1/2) + zero_point)``.

    The training software computes each step in float32.
    """

    name = v3_name = "Quant"
    converts_to_or_from_float = True
    signature = Signature("x:real", "integer", rules.keep_input_shape(rules.data_bits_type))
    v3_attribute_names = MappingProxyType({})
    kind = QuantArithmetic
    width = "data_bits"
    supports_zero_points = True
    attributes = (Attr("scale_x", "f"), Attr("data_bits", "i", 8), Attr("zero_point", "i", 0))

    def make_qparams_attributes(self, output_qparams: Affine) -> dict[str, AttributeValue]:
        """Return the node attributes for bits, scale and nonzero zero point of the output."""
        return {
            "data_bits": output_qparams.bits,
            "scale_x": output_qparams.scale,
            **_make_zero_point_attribute(output_qparams),
        }

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the quantization kernel, with the float precision of the target.

        SINGLE: each step in float32, by the node's rounding mode. PRODUCT (chips): the executor's
        rule, if scale_x is at least 1 or the input comes from a Dequant; raises ModelError if
        data_bits is not 8. Otherwise the generic rule.
        """
        from simulator.kernels import Quant as Kernel

        scale, bits = get_number(info.attributes, "scale_x"), get_int(info.attributes, "data_bits")
        precision = info.expect_arithmetic(QuantArithmetic).float_precision
        if precision is QuantFloatPrecision.SINGLE:
            return Kernel(scale, bits, rule="single", rounding=info.rounding)
        is_luna = precision is QuantFloatPrecision.PRODUCT
        if is_luna and bits != 8:
            raise ModelError(
                f"{info.label}: data_bits = {bits}; a Quant of this target always outputs 8 bits: "
                "set data_bits to 8, or feed integers"
            )
        # The error of scales below 1 occurs only if the executor runs the Quant itself, after a
        # Dequant. The packer removes a Quant of a graph input, and the outputs of float operators
        # are quantized by the host, which runs these operators.
        producer = ir.producer(info.node.inputs[0])
        runs_on_executor = producer is not None and producer.op_type == DEQUANT.name
        has_luna_rule = is_luna and (scale >= 1 or runs_on_executor)
        rule: Literal["luna", "generic"] = "luna" if has_luna_rule else "generic"
        return Kernel(scale, bits, rule=rule, zero_point=get_int(info.attributes, "zero_point"))

    def node_qparams(self, node: ir.Node) -> Affine:
        """Return scale, bits and zero point of the output of `node`, a Quant, from its attributes.

        Raises ModelError if they are invalid.
        """
        bits = int(ir.get_attr(node, "data_bits", 8))
        return make_qparams(
            float(ir.get_attr(node, "scale_x")), bits, int(ir.get_attr(node, "zero_point", 0))
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return [input 0], which is float: the float model of a Quant does not quantize.

        Appends nothing.
        """
        return [builder.raw_input(0)]  # type: ignore[list-item]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3, with data_bits (8 if absent) and a zero_point of 0.

        The zero point is set to 0 even if it is another one.
        """
        return {"data_bits": 8, **attrs, "zero_point": 0}

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output, from the node's attributes."""
        return make_qparams(
            get_number(attrs, "scale_x"), get_int(attrs, "data_bits"), get_int(attrs, "zero_point")
        )

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {}: the input of a Quant is float, so it has no scale."""
        return {}


QUANT = Quant()


class Dequant(Format):
    """Integer to float: ``(x - zero_point) / scale_o``."""

    name = v3_name = "Dequant"
    converts_to_or_from_float = True
    signature = Signature("x:integer", "real", rules.keep_input_shape(rules.float32_type))
    v3_attribute_names = MappingProxyType({})
    supports_zero_points = True
    attributes = (Attr("scale_o", "f"), Attr("zero_point", "i", 0))

    def make_qparams_attributes(self, input_qparams: Affine) -> dict[str, AttributeValue]:
        """Return the node attributes for scale and nonzero zero point of the integer input."""
        return {"scale_o": input_qparams.scale, **_make_zero_point_attribute(input_qparams)}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator's dequantization kernel with scale_o and zero_point of the node."""
        from simulator.kernels import Dequant as Kernel

        return Kernel(
            get_number(info.attributes, "scale_o"), get_int(info.attributes, "zero_point")
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return [the float value of input 0]: a Dequant does not change it.

        Appends no further node.
        """
        return [builder.float_input()]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return a copy of `attrs`: dialect v3 has the same attributes for a Dequant."""
        return dict(attrs)

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return None: the output of a Dequant is float."""
        return None

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {0: scale and zero point of the input}, with 32 bits as no width is stored."""
        return {0: make_qparams(get_number(attrs, "scale_o"), 32, get_int(attrs, "zero_point"))}


DEQUANT = Dequant()


class Requant(UnaryIntegerOp):
    """Integer to integer of another scale or width.

    On chips, int8 to wider types is a left shift without saturation.
    """

    name = "Requant"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))
    kind = RequantArithmetic
    supports_zero_points = True
    attributes = (
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        make_zero_point_spec("x"),
        make_zero_point_spec("o"),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the requantization kernel, which rescales by scale_o / scale_x to o_bits.

        It saturates, except for more than 8 bits on chips that widen by a plain left shift
        (`wraps`): there overflowing values lose their top bits.
        """
        from simulator.kernels import Requant as Kernel
        from simulator.kernels import subtract_zero_points

        bits = get_int(info.attributes, "o_bits")
        rescale = info.rescale(
            info.output_scale_ratio(get_number(info.attributes, "scale_x")), bits
        )
        # Chips widen by a plain left shift: overflowing values lose their top bits.
        wraps = info.expect_arithmetic(RequantArithmetic).wraps and bits > 8
        return subtract_zero_points(Kernel(rescale, saturate=not wraps), info.zero_point("x"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return [the float value of input 0]: requantization does not change it."""
        return [builder.float_input()]


REQUANT = Requant()


FAMILY: tuple[Format, ...] = (QUANT, DEQUANT, REQUANT)
