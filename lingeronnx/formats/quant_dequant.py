"""The borders between real and integer tensors: Quant, Dequant, Requant."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number
from ..plan import Affine
from ..targets.arithmetic import QuantArithmetic, QuantFloatPrecision, RequantArithmetic
from . import shape_inference as rules
from ._base import Attr, Format, KernelInfo, UnaryIntegerOp, make_qparams, make_zero_point_spec
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

__all__ = ["FAMILY", "QUANT", "DEQUANT", "REQUANT"]


def _make_zero_point_attribute(q: Affine) -> dict[str, int]:
    return {"zero_point": q.zero_point} if q.zero_point else {}


class Quant(Format):
    """Real to integer: ``sat(floor(x * scale_x + 1/2) + zero_point)``.

    The training side does every step in float32.
    """

    name = v3_name = "Quant"
    signature = Signature("x:real", "integer", rules.keep_input_shape(rules.data_bits_type))
    v3_attribute_names = MappingProxyType({})
    kind = QuantArithmetic
    width = "data_bits"
    supports_zero_points = True
    attributes = (Attr("scale_x", "f"), Attr("data_bits", "i", 8), Attr("zero_point", "i", 0))

    def scales(self, o: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that writes `o`."""
        return {"data_bits": o.bits, "scale_x": o.scale, **_make_zero_point_attribute(o)}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel; chips round through float32."""
        from simulator.kernels import Quant as Kernel

        scale, real = (
            get_number(info.attributes, "scale_x"),
            info.expect_arithmetic(QuantArithmetic).float_precision,
        )
        if real is QuantFloatPrecision.SINGLE:
            return Kernel(
                scale, get_int(info.attributes, "data_bits"), rule="single", rounding=info.rounding
            )
        # The fault of scales below 1 shows only where the executor runs the Quant itself, behind a
        # Dequant. The packer folds a Quant of a graph input away, and what float operators yield is
        # quantized by the host that ran them.
        bits = get_int(info.attributes, "data_bits")
        if real is QuantFloatPrecision.PRODUCT and bits != 8:
            raise ModelError(
                f"{info.label}: data_bits = {bits}; a Quant of this platform writes 8 bits "
                "whatever it says: write 8, "
                "or feed the integers themselves"
            )
        kept = (
            writer := ir.producer(info.node.inputs[0])
        ) is not None and writer.op_type == DEQUANT.name
        luna = real is QuantFloatPrecision.PRODUCT and (scale >= 1 or kept)
        rule: Literal["luna", "generic"] = "luna" if luna else "generic"
        return Kernel(scale, bits, rule=rule, zero_point=get_int(info.attributes, "zero_point"))

    def held(self, node: ir.Node) -> Affine:
        """Return how the integers that a node writes are held."""
        bits = int(ir.get_attr(node, "data_bits", 8))
        return make_qparams(
            float(ir.get_attr(node, "scale_x")), bits, int(ir.get_attr(node, "zero_point", 0))
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the real input: what is quantized."""
        return [builder.raw_input(0)]  # type: ignore[list-item]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """The width is always told, and a zero point."""
        return {"data_bits": 8, **attrs, "zero_point": 0}

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale_x."""
        return make_qparams(
            get_number(attrs, "scale_x"), get_int(attrs, "data_bits"), get_int(attrs, "zero_point")
        )

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return none: the input is real."""
        return {}


QUANT = Quant()


class Dequant(Format):
    """Integer to real: ``(x - zero_point) / scale_o``."""

    name = v3_name = "Dequant"
    signature = Signature("x:integer", "real", rules.keep_input_shape(rules.float32_type))
    v3_attribute_names = MappingProxyType({})
    supports_zero_points = True
    attributes = (Attr("scale_o", "f"), Attr("zero_point", "i", 0))

    def scales(self, x: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads `x`."""
        return {"scale_o": x.scale, **_make_zero_point_attribute(x)}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel with scale_o."""
        from simulator.kernels import Dequant as Kernel

        return Kernel(
            get_number(info.attributes, "scale_o"), get_int(info.attributes, "zero_point")
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the real value of the input."""
        return [builder.float_input()]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes unchanged."""
        return dict(attrs)

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return none: real values have no scale."""
        return None

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return the scale of the integer input."""
        return {
            0: make_qparams(get_number(attrs, "scale_o"), 32, get_int(attrs, "zero_point"))
        }  # the node names no width


DEQUANT = Dequant()


class Requant(UnaryIntegerOp):
    """Integer to integer at another scale or width.

    Int8 to wider types shifts left without saturation.
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
        """Return the kernel with the ratio of both scales."""
        from simulator.kernels import Requant as Kernel
        from simulator.kernels import subtract_zero_points

        bits = get_int(info.attributes, "o_bits")
        rescale = info.rescale(
            info.output_scale_ratio(get_number(info.attributes, "scale_x")), bits
        )
        # Chips widen by a plain left shift: what does not fit the wider type loses its top bits.
        kernel = Kernel(
            rescale, saturate=not (info.expect_arithmetic(RequantArithmetic).wraps and bits > 8)
        )
        return subtract_zero_points(kernel, info.zero_point("x"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the real value of the input: it is held otherwise, no more."""
        return [builder.float_input()]


REQUANT = Requant()


FAMILY: tuple[Format, ...] = (QUANT, DEQUANT, REQUANT)
