"""Operators that normalize rows: SoftmaxInt, LogSoftmaxInt, LayerNormInt, InstanceNormInt.

The input of a softmax is rescaled to Q25; the result of the integer algorithm has 15 fractional
bits and is rounded once to the output scale. In the executor, a row spans all axes from `axis` on;
in the training software, only this axis.

Layer normalization, over one or more of the last axes, is ``y = sat(rescale(n * gamma + beta))``,
where n is the normalized row with 10 fractional bits (15 in later executors), gamma is int8 (int16
on some chips), and beta is int32 with the scale 2^10 * scale_w (2^15). The scale of the input
affects only epsilon.

Instance normalization is the same over each channel of [N, C, ...], whose elements share one gamma
and one beta; n has 15 fractional bits. Chips normalize the rows of a layer normalization instead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import LayerNormArithmetic, SoftmaxArithmetic, SoftmaxRowRule
from .. import shape_inference as rules
from .._integer_op import (
    Attr,
    Format,
    UnaryIntegerOp,
    WidthAxes,
    qparams_from_attributes,
    rename_dim_to_axis,
)
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature

if TYPE_CHECKING:
    from simulator.kernels import LogSoftmax as LogSoftmaxKernel
    from simulator.kernels import Softmax as SoftmaxKernel

__all__ = [
    "FAMILY",
    "INSTANCE_NORM",
    "LAYER_NORM",
    "LOG_SOFTMAX",
    "SOFTMAX",
    "get_normalized_fraction_bits",
]

#: Default epsilon of LayerNormalization in ONNX.
DEFAULT_EPSILON = 1e-5


#: Fractional bits of normalized values, and those in dialect v3.
NORMALIZED_FRACTION_BITS, V3_NORMALIZED_FRACTION_BITS = 10, 15
#: Scale of the normalized values of InstanceNormInt, which have 15 fractional bits.
INSTANCE_NORM_SCALE = 2.0**15


class _NormalizationWithFactors(Format):
    """Base of operators that normalize int8 or int16, with scale (gamma) and bias (beta)."""

    rounds_inside = True
    has_inexact_float_model = True

    def make_qparams_attributes(
        self, input_qparams: Affine, gamma_qparams: Affine, output_qparams: Affine
    ) -> dict[str, AttributeValue]:
        """Return the node attributes that store bits and scales of input, gamma and output."""
        return {
            "data_bits": input_qparams.bits,
            "parameter_bits": gamma_qparams.bits,
            "o_bits": output_qparams.bits,
            "scale_x": input_qparams.scale,
            "scale_w": gamma_qparams.scale,
            "scale_o": output_qparams.scale,
        }

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return {0: ..., 1: ...}: scale and bits of the input and of gamma."""
        return {0: qparams_from_attributes(attrs, "x"), 1: qparams_from_attributes(attrs, "w")}


class LayerNorm(_NormalizationWithFactors):
    """Layer normalization with scale (gamma) and bias (beta)."""

    name = "LayerNormInt"
    signature = Signature(
        "x:integer w:weight b:bias?", "integer", rules.keep_input_shape(rules.type_of_bits)
    )
    extra_attributes = (Attr("normalized_shape", "ints", None), Attr("axis", "i", None))
    kind = LayerNormArithmetic
    width_axes = WidthAxes(-1, -1)
    v3_name = "QLayerNorm"
    aliases = ("QLayerNorm2d",)
    attributes = (
        Attr("data_bits", "i", 8),
        Attr("parameter_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("epsilon", "f", DEFAULT_EPSILON),
        Attr("scale_y_normal", "f", None),
        Attr("scale_x", "f"),
        Attr("scale_w", "f"),
        Attr("scale_o", "f"),
    )

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3, where normalized values have 15 fractional bits.

        Sets `scale_y_normal` to 2^15; absent `data_bits` and `o_bits` become 8.
        """
        return {
            **super().to_v3_attributes(attrs, inputs),
            "scale_y_normal": 2.0**V3_NORMALIZED_FRACTION_BITS,
        }

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1, where normalized values have 10 fractional bits.

        Removes `scale_y_normal` and `zero_point`.
        """
        renamed = super().to_v1_attributes(attrs, node)
        renamed.pop("scale_y_normal", None)
        return renamed

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the layer normalization kernel; a row has as many elements as gamma.

        Normalized values have the target's fractional bits, 10 or 15; in dialect v3 log2 of
        `scale_y_normal`. An absent beta is 0. Raises ModelError if gamma does not match the last
        axes.
        """
        from simulator.kernels import LayerNorm as Kernel

        a = info.attributes
        gamma = info.require_constant(1, "int8 int16", "factor")
        beta = info.bias(2, gamma.size)
        axes = _count_row_axes(info, gamma.size)
        fraction = _get_fraction_bits(info)
        return Kernel(
            gamma.astype(np.int64).reshape(-1),
            np.zeros(gamma.size, np.int64) if beta is None else beta,
            Kernel.scale_epsilon(get_number(a, "epsilon"), get_number(a, "scale_x"), gamma.size),
            info.rescale(info.output_scale_ratio(2.0**fraction, get_number(a, "scale_w"))),
            row_axes=axes,
            fraction_bits=fraction,
            rounds_to_float32=info.expect_arithmetic(LayerNormArithmetic).fraction_bits is None,
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append a LayerNormalization over the last axes that have the size of gamma.

        Return [its output]. It requires opset 17, which is noted in `builder`. Raises ModelError if
        gamma does not match the last axes.
        """
        builder.require_opset(17)
        shape = builder.info.input_shapes[0]
        gamma = builder.info.require_constant(1, "int8 int16", "factor")
        axes = _count_row_axes(builder.info, gamma.size)

        def reshape_to_row(array: np.ndarray) -> np.ndarray:
            """Return `array`, gamma or beta, with the shape of the normalized axes of the input."""
            return array.reshape(shape[len(shape) - axes :])

        a = builder.attrs
        normalized_scale = 2.0 ** _get_fraction_bits(builder.info)
        scale_w = get_number(a, "scale_w")
        # Stored as int32, since int16 would need opset 21.
        parameters = [builder.dequantize_constant(1, scale_w, view=reshape_to_row, bits=32)]
        if 2 in builder.info.constants:
            bias_scale = normalized_scale * scale_w
            parameters.append(builder.dequantize_constant(2, bias_scale, view=reshape_to_row))
        return [
            builder(
                "LayerNormalization",
                builder.float_input(),
                *parameters,
                axis=-axes,
                epsilon=get_number(a, "epsilon"),
            )
        ]


LAYER_NORM = LayerNorm()


class InstanceNorm(_NormalizationWithFactors):
    """Normalization of each channel of each sample, with scale (gamma) and bias (beta)."""

    name = "InstanceNormInt"
    signature = Signature(
        "x:integer w:weight b:bias", "integer", rules.keep_input_shape(rules.type_of_bits)
    )
    weight_ranks = (1,)
    width_axes = WidthAxes(1, 0)
    attributes = (
        Attr("data_bits", "i", 8),
        Attr("parameter_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("epsilon", "f", DEFAULT_EPSILON),
        Attr("scale_x", "f"),
        Attr("scale_w", "f"),
        Attr("scale_o", "f"),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the instance normalization kernel; gamma and beta have one value per channel.

        Raises ModelError if they have not, or are computed at run time.
        """
        from simulator.kernels.layer_norm import InstanceNorm as Kernel
        from simulator.kernels.layer_norm import LayerNorm as LayerNormKernel

        a, shape = info.attributes, info.input_shapes[0]
        gamma = info.require_constant(1, "int8 int16", "factor")
        beta = info.bias(2, gamma.size)
        if beta is None or len(shape) < 3 or gamma.shape != (shape[1],):
            raise ModelError(
                f"{info.label}: its input is {list(shape)}, its factors are {list(gamma.shape)}; "
                "it needs an input [N, C, ...] of rank 3 or more, C factors and C offsets"
            )
        return Kernel(
            gamma.astype(np.int64),
            beta,
            LayerNormKernel.scale_epsilon(
                get_number(a, "epsilon"), get_number(a, "scale_x"), math.prod(shape[2:])
            ),
            info.rescale(info.output_scale_ratio(INSTANCE_NORM_SCALE, get_number(a, "scale_w"))),
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append an InstanceNormalization to `builder`; return [its output]."""
        scale_w = get_number(builder.attrs, "scale_w")
        return [
            builder(
                "InstanceNormalization",
                builder.float_input(),
                # Stored as int32, since int16 would need opset 21.
                builder.dequantize_constant(1, scale_w, bits=32),
                builder.dequantize_constant(2, INSTANCE_NORM_SCALE * scale_w),
                epsilon=get_number(builder.attrs, "epsilon"),
            )
        ]


INSTANCE_NORM = InstanceNorm()


def _get_fraction_bits(info: KernelInfo) -> int:
    """Return the fractional bits of normalized values: of `scale_y_normal`, else of the target."""
    key = "scale_y_normal"
    if info.attributes[key] is not None:
        return info.require_exponent(key, get_number(info.attributes, key))
    return get_normalized_fraction_bits(info.expect_arithmetic(LayerNormArithmetic))


def get_normalized_fraction_bits(arithmetic: LayerNormArithmetic | None) -> int:
    """Return the fractional bits of normalized values, at which beta is added: 10 by default."""
    if arithmetic is None or arithmetic.fraction_bits is None:
        return NORMALIZED_FRACTION_BITS
    return arithmetic.fraction_bits


def _count_row_axes(info: KernelInfo, factors: int) -> int:
    """Return the smallest number of last axes of input 0 whose sizes multiply to `factors`.

    `factors` is the number of elements of gamma. The result is at least 1.

    Raises
    ------
    ModelError
        If there is no such number.
    """
    shape, axes = info.input_shapes[0], 1
    while axes < len(shape) and math.prod(shape[len(shape) - axes :]) < factors:
        axes += 1
    if math.prod(shape[len(shape) - axes :]) != factors:
        raise ModelError(
            f"{info.label}: it has {factors} factors, which do not match the last axes of its "
            f"input of shape {list(shape)}"
        )
    return axes


class Softmax(UnaryIntegerOp):
    """Softmax of each row."""

    name = "SoftmaxInt"
    allows_float_output = True
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))
    kind = SoftmaxArithmetic
    rounds_inside = True
    v3_name: str | None = "QSoftmax"
    has_inexact_float_model = True
    standard_op = "Softmax"
    attributes = (
        Attr("axis", "i", None),
        Attr("dim", "i", None),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
    )

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3: `dim` becomes `axis`, absent bit widths 8."""
        return rename_dim_to_axis(super().to_v3_attributes(attrs, inputs))

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1, which has `dim` with the value of `axis` too.

        `zero_point` is dropped.
        """
        renamed = super().to_v1_attributes(attrs, node)
        return {**renamed, "dim": renamed["axis"]}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator's softmax kernel for the node, in the arithmetic of its target.

        Raises ModelError for an axis outside the rank, and if the target shifts and scale_x is not
        a power of two.
        """
        from simulator.kernels import Softmax as Kernel

        return self.make_row_kernel(info, Kernel)

    def first_axis(self, info: KernelInfo) -> int:
        """Return the first of the axes that a row consists of: `axis`, else `dim`, else -1.

        It may be negative. If the target normalizes all axes from the first one on, a positive axis
        counts as 1. Raises ModelError for an axis outside the rank of the input.
        """
        a, rank = info.attributes, len(info.input_shapes[0])
        axis = get_int(a, "axis" if a["axis"] is not None else "dim", -1)
        if not -rank <= axis < rank:
            raise ModelError(
                f"{info.label}: axis = {axis}; it must be {-rank} to {rank - 1} for an input of "
                f"rank {rank}"
            )
        row_rule = info.expect_arithmetic(SoftmaxArithmetic).row
        return min(axis, 1) if row_rule is SoftmaxRowRule.FROM_FIRST else axis

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append the standard Softmax (LogSoftmax) of the node to `builder`; return [the result].

        Axes that the executor normalizes together are flattened by a Reshape before and restored
        after it.
        """
        shape, axis = builder.info.input_shapes[0], self.first_axis(builder.info)
        first = axis % len(shape)
        row_rule = builder.info.expect_arithmetic(SoftmaxArithmetic).row
        if first == len(shape) - 1 or row_rule is SoftmaxRowRule.AXIS:
            return [builder(self.standard_op, builder.float_input(), axis=axis)]
        flat_shape = builder.add_constant(np.array([0] * first + [-1]), "rows")
        full_shape = builder.add_constant(np.array([0] * first + list(shape[first:])), "sizes")
        flat = builder("Reshape", builder.float_input(), flat_shape)
        normalized = builder(self.standard_op, flat, axis=-1)
        return [builder("Reshape", normalized, full_shape)]

    def make_row_kernel(
        self, info: KernelInfo, kernel_type: type[SoftmaxKernel] | type[LogSoftmaxKernel]
    ) -> Kernel:
        """Return a kernel of class `kernel_type`, softmax or log-softmax, for the node.

        Inputs are converted to Q25 by a table for 8 or 16 bits; results (15 fractional bits) are
        rescaled to scale_o. Raises ModelError if the target shifts and scale_x is not a power of
        two.
        """
        from simulator.kernels import make_input_table

        arithmetic = info.expect_arithmetic(SoftmaxArithmetic)
        axis = self.first_axis(info)
        scale = get_number(info.attributes, "scale_x")
        if arithmetic.requantize.shifts:
            info.require_exponent("scale_x", scale)
        storage_bits = 8 if get_int(info.attributes, "data_bits") <= 8 else 16
        return kernel_type(
            make_input_table(2.0**25 / scale, storage_bits),
            info.rescale(info.output_scale_ratio(2.0**15)),
            axis=axis,
            division_mode=arithmetic.division.value,
            single_axis=arithmetic.row is SoftmaxRowRule.AXIS,
        )


SOFTMAX = Softmax()


class LogSoftmax(Softmax):
    """Logarithm of the softmax of each row."""

    name = "LogSoftmaxInt"
    standard_op = "LogSoftmax"
    v3_name = None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the simulator's log-softmax kernel for the node, in the arithmetic of its target.

        Raises ModelError for an axis outside the rank, and if the target shifts and scale_x is not
        a power of two.
        """
        from simulator.kernels import LogSoftmax as Kernel

        return self.make_row_kernel(info, Kernel)


LOG_SOFTMAX = LogSoftmax()


FAMILY: tuple[Format, ...] = (SOFTMAX, LOG_SOFTMAX, LAYER_NORM, INSTANCE_NORM)
