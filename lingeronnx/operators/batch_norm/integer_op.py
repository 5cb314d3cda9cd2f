"""Factor and offset per channel, ``y = sat(rescale(x*w[c] + b[c]))``."""

from __future__ import annotations

import numpy as np

from simulator.kernel import Kernel

from ...ir import ir
from ...ir.attributes import Attributes, get_number
from .. import shape_inference as rules
from .._integer_op import Attr, Format, WidthAxes
from .._kernel_info import KernelInfo
from .._weighted_op import WEIGHT_ATTRIBUTES, WeightedIntegerOp, accumulator_scale
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

__all__ = ["BATCH_NORM1D", "BATCH_NORM2D", "FAMILY"]


class BatchNorm2d(WeightedIntegerOp):
    """Batch normalization that could not be folded into a layer.

    The integer weight is ``gamma / sqrt(var + eps)``; the plan stores its scale as that of gamma.
    """

    name = "BatchNorm2dInt"
    width_axes = WidthAxes(1, 0)
    needs_single_sample = True
    signature = Signature(
        "x:integer w:weight b:bias? mean:real? var:real?",
        "integer",
        rules.keep_input_shape(rules.type_of_bits),
    )
    channel_axis = None  # one weight per channel, at one scale
    allows_float_output = False
    v3_name: str | None = "QBatchNorm2d"
    aliases: tuple[str, ...] = ("QBatchNorm1d",)
    attributes = tuple(
        Attr(a.name, a.kind, 8) if a.name.endswith("_bits") else a for a in WEIGHT_ATTRIBUTES
    )

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the batch normalization `node`, or None if it can.

        It cannot if `node` is a QBatchNorm1d whose input is not of rank 4.
        """
        rank = len(ir.get_shape(node.inputs[0]) or ())
        if node.op_type == "QBatchNorm1d" and rank != 4:
            return "its input does not have four axes"
        return None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel that rescales x * w[c] + b[c] of each channel c to scale_o.

        An absent bias is 0. Inputs 3 and 4 (running statistics) are ignored. Raises ModelError if
        weight, bias or scales are invalid.
        """
        from simulator.kernels import ChannelAffine

        weight = info.require_constant(1, "int8 int16", "weight").reshape(-1)
        scale_x = get_number(info.attributes, "scale_x")
        scale_w = get_number(info.attributes, "scale_w")
        rescale = info.rescale(info.output_scale_ratio(scale_x, scale_w))
        bias = info.bias(2, len(weight))
        if bias is None:
            bias = np.zeros(len(weight), np.int64)
        return ChannelAffine(weight, bias, rescale, info.zero_point("x"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a float BatchNormalization with mean 0 and variance 1; return [its output].

        The weight includes mean and variance already; without a bias it is 0.
        """
        weight = builder.dequantize_constant(1, get_number(builder.attrs, "scale_w"), view=np.ravel)
        size = builder.info.constants[1].size
        mean = builder.add_constant(np.zeros(size, np.float32), "mean")
        variance = builder.add_constant(np.ones(size, np.float32), "var")
        bias = mean
        if 2 in builder.info.constants:
            bias = builder.dequantize_constant(2, accumulator_scale(builder.attrs), view=np.ravel)
        inputs = (builder.float_input(), weight, bias, mean, variance)
        return [builder("BatchNormalization", *inputs, epsilon=0.0)]


BATCH_NORM2D = BatchNorm2d()


class BatchNorm1d(BatchNorm2d):
    """Batch normalization of sequences [N, C, L]; the quantizer never writes it."""

    name = "BatchNorm1dInt"
    v3_name = None
    aliases = ()


BATCH_NORM1D = BatchNorm1d()


FAMILY: tuple[Format, ...] = (BATCH_NORM2D, BATCH_NORM1D)
