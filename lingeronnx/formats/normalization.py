"""Operators on rows: SoftmaxInt, LogSoftmaxInt, LayerNormInt.

A softmax's input is brought to Q25, the result of the integer algorithm has 15 fractional bits and
is rounded once to the output's scale. To the executor a row has all axes from `axis` on, to the
training side that axis alone.

Layer normalisation, over the last axis or axes, is ``y = sat(rescale(n * gamma + beta))``, n the
normalised row with 10 fractional bits; gamma int8 (int16 on some chips), beta int32 at 2^10 *
scale_w. The result does not depend on the input's scale but for epsilon.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number
from ..plan import Affine
from ..targets.arithmetic import LayerNormArithmetic, SoftmaxArithmetic, SoftmaxRowRule
from . import shape_inference as rules
from ._base import (
    Attr,
    Format,
    KernelInfo,
    UnaryIntegerOp,
    qparams_from_attributes,
    rename_dim_to_axis,
)
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

if TYPE_CHECKING:
    from simulator.kernels import LogSoftmax as LogSoftmaxKernel
    from simulator.kernels import Softmax as SoftmaxKernel

__all__ = ["FAMILY", "SOFTMAX", "LOG_SOFTMAX", "LAYER_NORM"]

#: What ONNX adds to the variance by default.
DEFAULT_EPSILON = 1e-5


#: Fractional bits of a normalised number, and those that it has in dialect v3.
NORMALIZED_FRACTION_BITS, V3_NORMALIZED_FRACTION_BITS = 10, 15


class LayerNorm(Format):
    """Layer normalisation with factor and summand."""

    name = "LayerNormInt"
    signature = Signature(
        "x:integer w:weight b:bias?", "integer", rules.keep_input_shape(rules.type_of_bits)
    )
    extra_attributes = (Attr("normalized_shape", "ints", None), Attr("axis", "i", None))
    kind = LayerNormArithmetic
    v3_name = "QLayerNorm"
    has_inexact_float_model = True
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
        """A normalised number has 15 fractional bits."""
        return {
            **super().to_v3_attributes(attrs, inputs),
            "scale_y_normal": 2.0**V3_NORMALIZED_FRACTION_BITS,
        }

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """A normalised number has 10."""
        renamed = super().to_v1_attributes(attrs, node)
        renamed.pop("scale_y_normal", None)
        return renamed

    def scales(self, x: Affine, w: Affine, o: Affine) -> dict[str, AttributeValue]:
        """Return the attributes of a node that reads `x`, has a factor `w` and writes `o`."""
        return {
            "data_bits": x.bits,
            "parameter_bits": w.bits,
            "o_bits": o.bits,
            "scale_x": x.scale,
            "scale_w": w.scale,
            "scale_o": o.scale,
        }

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the row kernel; a row is as many elements as there are factors.

        Graphs of dialect v3 say by `scale_y_normal` how many fractional bits the normalised number
        has.
        """
        from simulator.kernels import LayerNorm as Kernel

        a = info.attributes
        gamma = info.require_constant(1, "int8 int16", "factor")
        beta = info.bias(2, gamma.size)
        axes = _count_row_axes(info, gamma.size)
        fraction = (
            NORMALIZED_FRACTION_BITS
            if a["scale_y_normal"] is None
            else info.require_exponent("scale_y_normal", get_number(a, "scale_y_normal"))
        )
        return Kernel(
            gamma.astype(np.int64).reshape(-1),
            np.zeros(gamma.size, np.int64) if beta is None else beta,
            Kernel.scale_epsilon(get_number(a, "epsilon"), get_number(a, "scale_x"), gamma.size),
            info.rescale(info.output_scale_ratio(2.0**fraction, get_number(a, "scale_w"))),
            row_axes=axes,
            fraction_bits=fraction,
        )

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the layer normalisation over as many axes as the factor has elements."""
        builder.require_opset(17)
        shape = builder.info.input_shapes[0]
        axes = _count_row_axes(
            builder.info, builder.info.require_constant(1, "int8 int16", "factor").size
        )

        def rows(array: np.ndarray) -> np.ndarray:
            return array.reshape(shape[len(shape) - axes :])

        a = builder.attrs
        fraction = (
            2.0**NORMALIZED_FRACTION_BITS
            if a["scale_y_normal"] is None
            else get_number(a, "scale_y_normal")
        )
        parameters = [
            builder.held(1, get_number(a, "scale_w"), view=rows, bits=32)
        ]  # of 16 bits they would take opset 21
        if 2 in builder.info.constants:
            parameters.append(builder.held(2, fraction * get_number(a, "scale_w"), view=rows))
        return [
            builder(
                "LayerNormalization",
                builder.float_input(),
                *parameters,
                axis=-axes,
                epsilon=get_number(a, "epsilon"),
            )
        ]

    def input_qparams(self, attrs: Attributes) -> dict[int, Affine]:
        """Return the scales of input and factor."""
        return {0: qparams_from_attributes(attrs, "x"), 1: qparams_from_attributes(attrs, "w")}


LAYER_NORM = LayerNorm()


def _count_row_axes(bound: KernelInfo, factors: int) -> int:
    """Return how many of the last axes of the input make a row, which has an element for each factor."""
    shape, axes = bound.input_shapes[0], 1
    while axes < len(shape) and math.prod(shape[len(shape) - axes :]) < factors:
        axes += 1
    if math.prod(shape[len(shape) - axes :]) != factors:
        raise ModelError(
            f"{bound.label}: {factors} factors fit no last axes of its input, {list(shape)}"
        )
    return axes


class Softmax(UnaryIntegerOp):
    """Exponentials over their sum, row by row."""

    name = "SoftmaxInt"
    allows_float_output = True
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))
    kind = SoftmaxArithmetic
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
        """The axis is called so."""
        return rename_dim_to_axis(super().to_v3_attributes(attrs, inputs))

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """The axis is called dim as well."""
        renamed = super().to_v1_attributes(attrs, node)
        return {**renamed, "dim": renamed["axis"]}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the softmax over rows."""
        from simulator.kernels import Softmax as Kernel

        return self.make_row_kernel(info, Kernel)

    def first_axis(self, bound: KernelInfo) -> int:
        """Return the axis that is normalised, or from which on all are."""
        a, rank = bound.attributes, len(bound.input_shapes[0])
        axis = get_int(a, "axis" if a["axis"] is not None else "dim", -1)
        if not -rank <= axis < rank:
            raise ModelError(f"{bound.label}: axis = {axis}; its input has {rank} axes")
        return (
            1
            if bound.expect_arithmetic(SoftmaxArithmetic).row is SoftmaxRowRule.FROM_FIRST
            and axis > 0
            else axis
        )  # the executor reads no other

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the operator over its axis, or over all axes from there on as one."""
        shape, axis = builder.info.input_shapes[0], self.first_axis(builder.info)
        first = axis % len(shape)
        if (
            first == len(shape) - 1
            or builder.info.expect_arithmetic(SoftmaxArithmetic).row is SoftmaxRowRule.AXIS
        ):
            return [builder(self.standard_op, builder.float_input(), axis=axis)]
        flat = builder.add_constant(np.array([0] * first + [-1]), "rows")
        back = builder.add_constant(np.array([0] * first + list(shape[first:])), "sizes")
        return [
            builder(
                "Reshape",
                builder(self.standard_op, builder("Reshape", builder.float_input(), flat), axis=-1),
                back,
            )
        ]

    def make_row_kernel(
        self, bound: KernelInfo, kind: type[SoftmaxKernel] | type[LogSoftmaxKernel]
    ) -> Kernel:
        """Return a kernel of class `kind` for the node."""
        from simulator.kernels import make_input_table

        a, how, axis = (
            bound.attributes,
            bound.expect_arithmetic(SoftmaxArithmetic),
            self.first_axis(bound),
        )
        scale = get_number(a, "scale_x")
        if how.requantize.shifts:
            bound.require_exponent("scale_x", scale)
        entry = make_input_table(
            2.0**25 / scale, 8 if get_int(a, "data_bits") <= 8 else 16
        )  # as it is stored
        return kind(
            entry,
            bound.rescale(bound.output_scale_ratio(2.0**15)),
            axis=axis,
            division_mode=how.division.value,
            single_axis=how.row is SoftmaxRowRule.AXIS,
        )


SOFTMAX = Softmax()


class LogSoftmax(Softmax):
    """The logarithm of a softmax."""

    name = "LogSoftmaxInt"
    standard_op = "LogSoftmax"
    v3_name = None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the log-softmax over rows."""
        from simulator.kernels import LogSoftmax as Kernel

        return self.make_row_kernel(info, Kernel)


LOG_SOFTMAX = LogSoftmax()


FAMILY: tuple[Format, ...] = (SOFTMAX, LOG_SOFTMAX, LAYER_NORM)
