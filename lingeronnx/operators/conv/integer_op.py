"""Convolutions: Conv2dInt, Conv1dInt and ConvTranspose2dInt.

==================  ============================================================================
Conv2dInt, 1d       weight [O, I/group, k...]; pads in ONNX order, filled with zero_point_x
ConvTranspose2dInt  weight [I, O/group, k...]; the bias is required
==================  ============================================================================
"""

from __future__ import annotations

from simulator.kernel import Kernel

from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_ints
from .. import shape_inference as rules
from .._integer_op import Attr, Format, WidthAxes
from .._kernel_info import KernelInfo
from .._weighted_op import WEIGHT_ATTRIBUTES, WeightedIntegerOp
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["CONV1D", "CONV2D", "CONV_TRANSPOSE2D", "FAMILY"]


class Conv2d(WeightedIntegerOp):
    """Two-dimensional convolution, including grouped and depthwise ones."""

    name = "Conv2dInt"
    width_axes = WidthAxes(1, 1, is_grouped=True)
    needs_single_sample = True
    weight_ranks = (4,)
    signature = Signature(
        "x:integer w:weight b:bias?",
        "result",
        rules.infer_like_standard("Conv", rules.layer_output_type),
    )
    v3_name = "QConv2d"
    aliases = ("QConvBN2d",)
    attributes = (
        Attr("kernel_shape", "ints", None),
        Attr("strides", "ints", None),
        Attr("pads", "ints", None),
        Attr("dilations", "ints", None),
        Attr("group", "i", 1),
        *WEIGHT_ATTRIBUTES,
    )

    def can_check_limits(self, node: ir.Node) -> bool:
        """Whether `node` is complete enough to check a platform's limits on it.

        Its input and weight must be present and of known rank, the weight's above 2, and list
        attributes absent or sequences.
        """
        return super().can_check_limits(node) and len(ir.get_shape(node.inputs[1]) or ()) > 2

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the convolution kernel with the weight, bias and rescaling of the node.

        Strides and dilations default to 1, pads to 0. Raises ModelError if weight, bias or scales
        are invalid.
        """
        from simulator.kernels import Conv

        weight = info.require_constant(1, "int8 int16", "weight")
        rank, a = weight.ndim - 2, info.attributes
        return Conv(
            weight,
            info.bias(2, len(weight)),
            info.make_weight_rescale(len(weight)),
            strides=tuple(get_ints(a, "strides", [1] * rank)),
            pads=tuple(get_ints(a, "pads", [0] * 2 * rank)),
            dilations=tuple(get_ints(a, "dilations", [1] * rank)),
            group=get_int(a, "group"),
            zero=info.zero_point("x"),
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a float Conv of dequantized input, weight and bias to `builder`.

        Return [its output].
        """
        inputs = self.dequantize_inputs(builder)
        return [builder("Conv", *inputs, **self.get_window_attributes(builder))]

    def get_window_attributes(self, real: FloatNodeBuilder) -> dict[str, AttributeValue]:
        """Return the node's attributes other than scales, bits and zero points: pads, group, ...

        Absent ones are None, except `group`.
        """
        names = [spec.name for spec in self.attributes if spec not in WEIGHT_ATTRIBUTES]
        return {name: real.attrs[name] for name in names}


CONV2D = Conv2d()


class Conv1d(Conv2d):
    """One-dimensional convolution."""

    name = "Conv1dInt"
    weight_ranks = (3,)
    v3_name = "QConv1d"
    aliases = ("QConvBN1d",)


CONV1D = Conv1d()


class ConvTranspose2d(WeightedIntegerOp):
    """Two-dimensional transposed convolution."""

    name = "ConvTranspose2dInt"
    width_axes = WidthAxes(1, 0)
    needs_single_sample = True
    weight_ranks = (3, 4)
    signature = Signature(
        "x:integer w:weight b:bias?",
        "result",
        rules.infer_like_standard("ConvTranspose", rules.layer_output_type),
    )
    v3_name = "QConvTranspose2d"
    aliases = ("QConvTranspose1d",)
    channel_axis = 1  # the i-th channels of all groups share a scale
    attributes = (*CONV2D.attributes, Attr("output_padding", "ints", None))

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the ConvTranspose `node`, or None if it can.

        It cannot if `node` is one-dimensional ("of lines").
        """
        return "of lines" if node.op_type == "QConvTranspose1d" else None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the transposed convolution kernel; a list of weight scales repeats for each group.

        Absent or empty strides, pads, dilations and output_padding are None: the kernel's defaults.
        Raises ModelError if weight, bias or scales are invalid.
        """
        from simulator.kernels import ConvTranspose

        weight, a = info.require_constant(1, "int8 int16", "weight"), info.attributes
        channels, group = weight.shape[1], get_int(a, "group")
        return ConvTranspose(
            weight,
            info.bias(2, channels * group),
            info.make_weight_rescale(channels, group),
            strides=get_ints(a, "strides", []) or None,
            pads=get_ints(a, "pads", []) or None,
            dilations=get_ints(a, "dilations", []) or None,
            output_padding=get_ints(a, "output_padding", []) or None,
            group=group,
            zero=info.zero_point("x"),
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a float ConvTranspose with the window attributes of the node; return [its output].

        Input, weight and bias are dequantized.
        """
        names = [spec.name for spec in self.attributes if spec not in WEIGHT_ATTRIBUTES]
        window = {name: builder.attrs[name] for name in names}
        inputs = self.dequantize_inputs(builder, get_int(builder.attrs, "group"))
        return [builder("ConvTranspose", *inputs, **window)]


CONV_TRANSPOSE2D = ConvTranspose2d()


FAMILY: tuple[Format, ...] = (CONV2D, CONV1D, CONV_TRANSPOSE2D)
