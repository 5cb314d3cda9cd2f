"""Layers with a constant weight (input 1) and a bias (input 2).

``y = sat(rescale(sum (x - zero_point_x)*w + b) + zero_point_o)``: products of int8 in a wide
accumulator, int32 bias at scale_x*scale_w, one rounding.

==================  ============================================================================
Conv2dInt, 1d       weight [O, I/group, k...]; pads in ONNX order, filled with zero_point_x
ConvTranspose2dInt  weight [I, O/group, k...]; the bias is required
LinearInt           weight [O, I], over the last axis; without scale_o the output is float. With
                    group_size = k and factors m [O, ceil(I/k)] at input 3, a weight is w*m at
                    the scale scale_w of its row
BatchNorm2dInt      weight [C], ``y = sat(rescale(x*w[c] + b[c]))``
==================  ============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.kernel import Kernel, NumpyKernel, TensorSpec, require

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import (
    Attributes,
    AttributeValue,
    get_int,
    get_ints,
    get_number,
    get_scales,
)
from ...ir.plan import MAX_GROUP_FACTOR, Affine, PerGroup, make_grouped_qparams
from ...targets.arithmetic import Arithmetic, LayerArithmetic
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

__all__ = ["BATCH_NORM2D", "CONV1D", "CONV2D", "CONV_TRANSPOSE2D", "FAMILY", "LINEAR"]

WEIGHT_ATTRIBUTES = (
    Attr("data_bits", "i", 8),
    Attr("parameter_bits", "i", 8),
    Attr("o_bits", "i", None),
    Attr("scale_x", "f", unit="counts per unit"),
    Attr("scale_w", "f", unit="counts per unit"),
    Attr("scale_o", "f", None, unit="counts per unit"),
    make_zero_point_spec("x"),
    make_zero_point_spec("o"),
)


def accumulator_scale(attrs: Attributes, repeats: int = 1) -> float | tuple[float, ...]:
    """Return the scale of a layer's accumulator, scale_x * scale_w: one, or one per channel.

    The tuple for a list of weight scales is repeated `repeats` times, for the groups of a
    transposed convolution.
    """
    x, w = get_number(attrs, "scale_x"), get_scales(attrs, "scale_w")
    return tuple(x * scale for scale in w) * repeats if isinstance(w, list) else x * w


class WeightedIntegerOp(Format):
    """Base of layers with a weight at input 1 and a bias at input 2."""

    kind: type[Arithmetic] = LayerArithmetic
    channel_axis: int | None = 0
    allows_float_output = True
    supports_zero_points = True

    def make_qparams_attributes(
        self, input_qparams: Affine, weight_qparams: Affine, output_qparams: Affine | None
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points of a layer.

        The output is float if `output_qparams` is None: o_bits and scale_o are absent then.
        """
        attrs: dict[str, AttributeValue] = {
            "data_bits": input_qparams.bits,
            "parameter_bits": weight_qparams.bits,
            "scale_x": input_qparams.scale,
            "scale_w": weight_qparams.attribute,
        }
        attrs |= make_zero_point_attributes(x=input_qparams, o=output_qparams)
        if output_qparams is None:
            return attrs
        return {**attrs, "o_bits": output_qparams.bits, "scale_o": output_qparams.scale}

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {0: ..., 1: ...}: scale, bits and zero point of the input, and of the weight.

        The weight (1) is included only if it has a single scale.
        """
        qparams = {0: qparams_from_attributes(attrs, "x")}
        if not isinstance(attrs["scale_w"], Sequence):
            qparams[1] = qparams_from_attributes(attrs, "w")
        return qparams

    def weight_qparams(self, attrs: Attributes, node: ir.Node, key: str) -> Affine:
        """Return scales and bits of the constant weight of `node`.

        They are per group of a row if the operator has such scales, else from the attribute `key`:
        one, or one per channel for a list.
        """
        return self._grouped_weight_qparams(attrs, node) or super().weight_qparams(attrs, node, key)

    def _grouped_weight_qparams(self, attrs: Attributes, node: ir.Node) -> Affine | None:
        """Return scales and bits of a weight with a scale per group of a row.

        None for other weights. By default no weight has such scales; subclasses may override this.
        """
        return None

    def dequantize_inputs(
        self, real: FloatNodeBuilder, groups: int = 1, transposed: bool = False
    ) -> list[ir.Value]:
        """Return the real values of input, weight and, if present, bias, as outputs of new nodes.

        Parameters
        ----------
        real
            Builder of the float model, which gets the nodes.
        groups
            How often the scales of channels repeat in the accumulator.
        transposed
            Whether to transpose the weight matrix.
        """
        a = real.attrs
        axis = 1 - (self.channel_axis or 0) if transposed else self.channel_axis
        bits, view = get_int(a, "parameter_bits", 8), np.transpose if transposed else None
        blocks = self._grouped_weight_qparams(a, real.node)
        if blocks is not None:
            weight = real.dequantize_grouped_constant(1, blocks, transposed)
        else:
            weight = real.dequantize_constant(1, get_scales(a, "scale_w"), axis, view, bits)
        values = [real.float_input(), weight]
        if 2 in real.info.constants:
            values.append(real.dequantize_constant(2, accumulator_scale(a, groups), 0, np.ravel))
        return values


class Conv2d(WeightedIntegerOp):
    """Two-dimensional convolution, including grouped and depthwise ones."""

    name = "Conv2dInt"
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


@dataclass(frozen=True, eq=False)
class FloatLinear(NumpyKernel):
    """Fully connected layer with float output, ``y = (sum (x - zero)*w + b) / scale``.

    Attributes
    ----------
    weight
        Integers [O, I].
    bias
        int64 [O], or None.
    scale
        Accumulator scale, scale_x * scale_w: one, or [O].
    zero
        Zero point of x.
    factors
        Factors of the weights [O, I], or None.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    scale: float | np.ndarray
    zero: int = 0
    factors: np.ndarray | None = None

    @property
    def scaled_weight(self) -> np.ndarray:
        """Weights times their factors, [O, I]."""
        from simulator.kernels import apply_weight_factors

        return apply_weight_factors(self.weight, self.factors)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the float32 output [..., O] for an integer input [..., I].

        Another input is an error.
        """
        (x,) = specs
        require(
            x.dtype.kind == "i" and x.shape[-1:] == self.weight.shape[1:],
            f"weights {list(self.weight.shape)} do not fit {x}",
        )
        return (TensorSpec((*x.shape[:-1], len(self.weight)), np.dtype(np.float32)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute (x - zero) @ weight^T + bias in int64, and divide by the scale in float64.

        Returns the float32 output.
        """
        total = (arrays[0].astype(np.int64) - self.zero) @ self.scaled_weight.T.astype(np.int64)
        if self.bias is not None:
            total = total + self.bias
        return ((total / self.scale).astype(np.float32),)


class Linear(WeightedIntegerOp):
    """Fully connected layer with a constant weight."""

    name = "LinearInt"
    weight_ranks = (2,)
    signature = Signature("x:integer w:weight b:bias? m:factors?", "result", rules.infer_linear)
    v3_name = "QLinear"
    attributes = (*WEIGHT_ATTRIBUTES, Attr("group_size", "i", None))
    supports_group_scales = True

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale, bits and zero point of the output.

        None without scale_o, when it is float.
        """
        return None if attrs["scale_o"] is None else qparams_from_attributes(attrs, "o")

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the matrix kernel of the node, with float output if it has no scale_o.

        Raises ModelError if weight, bias, group factors or scales are invalid.
        """
        from simulator.kernels import Linear as Kernel

        weight = info.require_constant(1, "int8 int16", "weight")
        bias, zero = info.bias(2, len(weight)), info.zero_point("x")
        factors = self._read_factors(info, weight)
        if info.attributes["scale_o"] is None:
            scale = accumulator_scale(info.attributes)
            weight_scale = np.array(scale) if isinstance(scale, tuple) else float(scale)
            return FloatLinear(weight, bias, weight_scale, zero, factors)
        return Kernel(weight, bias, info.make_weight_rescale(len(weight)), zero, factors=factors)

    def _read_factors(self, info: KernelInfo, weight: np.ndarray) -> np.ndarray | None:
        """Return a factor for each weight of the node, int16 [O, I]; None without groups.

        The factor of a group, in constant input 3, is repeated for each weight of the group.

        Raises
        ------
        ModelError
            If they do not match the weight.
        """
        factors = info.require_constant(3, "uint8", "factors") if 3 in info.constants else None
        size = _read_group_size(info.label, info.attributes, weight, factors)
        if size is None or factors is None:
            return None
        return np.repeat(factors, size, axis=1)[:, : weight.shape[1]].astype(np.int16)

    def make_qparams_attributes(
        self, input_qparams: Affine, weight_qparams: Affine, output_qparams: Affine | None
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits, scales and nonzero zero points of a layer.

        For weights with a scale per group also `group_size`. The output is float if
        `output_qparams` is None: o_bits and scale_o are absent then.
        """
        attrs = super().make_qparams_attributes(input_qparams, weight_qparams, output_qparams)
        if isinstance(weight_qparams.granularity, PerGroup):
            attrs["group_size"] = weight_qparams.granularity.size
        return attrs

    def _grouped_weight_qparams(self, attrs: Attributes, node: ir.Node) -> Affine | None:
        """Return scales and bits of a weight with a scale per group of a row.

        None for other weights. They follow from `scale_w`, `group_size` and the factors at constant
        input 3. Raises ModelError if they do not match the weight.
        """
        weight = ir.const_value(node.inputs[1])
        factors = ir.const_value(node.inputs[3]) if len(node.inputs) > 3 else None
        size = _read_group_size(f"{node.op_type} {node.name}", attrs, weight, factors)
        if size is None or factors is None:
            return None
        return make_grouped_qparams(
            get_scales(attrs, "scale_w"), factors, size, get_int(attrs, "parameter_bits", 8)
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a Gemm for an input of rank 2, else MatMul and Add, to `builder`.

        Return [the result]. Input, weight and bias are dequantized; for the MatMul the weight is
        transposed.
        """
        is_matrix = len(builder.info.input_shapes[0]) == 2
        x, weight, *bias = self.dequantize_inputs(builder, transposed=not is_matrix)
        if is_matrix:
            return [builder("Gemm", x, weight, *bias, transB=1)]
        product = builder("MatMul", x, weight)
        return [builder("Add", product, *bias) if bias else product]


def _read_group_size(
    node_label: str, attrs: Attributes, weight: np.ndarray | None, factors: np.ndarray | None
) -> int | None:
    """Return the group size of a weight [O, I], or None without attribute `group_size`.

    Parameters
    ----------
    node_label
        Operator and node, for messages.
    attrs
        Attributes of the node.
    weight
        int8 [O, I]; None: not constant.
    factors
        Factors of the groups, uint8 [O, ceil(I / size)]; None: absent.

    Raises
    ------
    ModelError
        If only one of size and factors is present, the weight is not constant int8, scale_w is not
        a list with one scale per row, or shapes do not match or a factor is 0.
    """
    if attrs.get("group_size") is None:
        if factors is not None:
            raise ModelError(
                f"{node_label}: it has group factors but no group_size; quantize again"
            )
        return None
    size, scales = get_int(attrs, "group_size"), attrs["scale_w"]
    scale_count = len(scales) if isinstance(scales, Sequence) else None
    if factors is None or weight is None or scale_count not in (None, len(factors)):
        raise ModelError(
            f"{node_label}: it has a group_size but no factors per row; quantize again"
        )
    if size < 1 or weight.dtype != np.int8 or scale_count is None:
        raise ModelError(
            f"{node_label}: group_size = {size} with weights of {weight.dtype}; groups need a size "
            "of at least 1, int8 weights and a list scale_w"
        )
    _check_group_factors(node_label, weight, factors, size)
    return size


def _check_group_factors(
    node_label: str, weight: np.ndarray, factors: np.ndarray, group_size: int
) -> None:
    """Raise ModelError unless the factors of the groups of a weight fit it and none is 0.

    `weight` is [O, I], so that `factors` must be [O, ceil(I / group_size)]. `node_label` is for the
    message.
    """
    expected_shape: tuple[int, ...] = ()
    if weight.ndim == 2:
        expected_shape = (len(weight), math.ceil(weight.shape[1] / group_size))
    if factors.shape != expected_shape or not factors.all():
        raise ModelError(
            f"{node_label}: factors have shape {list(factors.shape)} and minimum "
            f"{factors.min(initial=255)}; weights {list(weight.shape)} in groups of {group_size} "
            f"have {list(expected_shape)}, from 1 to {MAX_GROUP_FACTOR}"
        )


LINEAR = Linear()


class BatchNorm2d(WeightedIntegerOp):
    """Batch normalization that could not be folded into a layer.

    The integer weight is ``gamma / sqrt(var + eps)``; the plan stores its scale as that of gamma.
    """

    name = "BatchNorm2dInt"
    signature = Signature(
        "x:integer w:weight b:bias? mean:real? var:real?",
        "integer",
        rules.keep_input_shape(rules.type_of_bits),
    )
    channel_axis = None  # one weight per channel, at one scale
    allows_float_output = False
    v3_name = "QBatchNorm2d"
    aliases = ("QBatchNorm1d",)
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


FAMILY: tuple[Format, ...] = (CONV2D, CONV1D, CONV_TRANSPOSE2D, LINEAR, BATCH_NORM2D)
