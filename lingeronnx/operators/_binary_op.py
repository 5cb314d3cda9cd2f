"""Base of the integer operators on two activations."""

from __future__ import annotations

from simulator.kernel import Kernel

from ..ir import ir
from ..ir.attributes import Attributes, AttributeValue
from ..ir.plan import Affine
from . import shape_inference as rules
from ._integer_op import (
    Attr,
    Format,
    make_zero_point_attributes,
    make_zero_point_spec,
    qparams_from_attributes,
)
from ._kernel_info import KernelInfo
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

__all__ = ["BINARY_ZERO_POINTS", "BinaryIntegerOp"]


BINARY_ZERO_POINTS = tuple(make_zero_point_spec(key) for key in "xyo")
_BINARY_ATTRIBUTES = (
    Attr("scale_x", "f"),
    Attr("scale_y", "f"),
    Attr("scale_o", "f"),
    Attr("o_bits", "i", 8),
    *BINARY_ZERO_POINTS,
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
