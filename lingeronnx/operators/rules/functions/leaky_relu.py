"""LeakyRelu and PRelu, composed of operators that every platform computes correctly.

    y = relu(x) + (-s) * relu(-x)        s: one slope, or one per channel

The result is exact for x >= 0 and rounded once for x < 0. Tensors that are no images are reshaped
for the scaling per channel. On targets with tables, a single slope becomes a table instead.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....ir.plan import Affine
from ....ir.plan.power_of_two import floor_exponent
from ....targets import Target
from ... import formats
from ...lowering import LoweringContext
from .._base import Op
from ..layers.batch_norm import (
    emit_channel_affine,
    emit_from_nchw,
    emit_reshape_to_nchw,
    nchw_shape,
)
from ..scale_constraints import ExponentLookup, Scaling, UnaryFunction, share_no_scales

__all__ = ["LeakyRelu", "get_negative_slopes"]


def get_negative_slopes(node: ir.Node) -> np.ndarray | None:
    """Return the slopes of a LeakyRelu or PRelu for negative x, float64 [1] or [channels].

    None if they are computed at run time or differ within a channel.
    """
    if node.op_type == "LeakyRelu":
        return np.array([ir.get_attr(node, "alpha", 0.01)], np.float64)
    array, shape = ir.const_value(node.inputs[1]), ir.get_shape(node.inputs[0]) or ()
    if array is None or array.ndim > len(shape):
        return None
    full_shape = (1,) * (len(shape) - array.ndim) + array.shape
    if full_shape != (1, array.size, *(1,) * (len(shape) - 2)):
        return None
    return array.reshape(-1).astype(np.float64)


def _make_leaky_relu_function(model: ir.Model, node: ir.Node, target: Target) -> UnaryFunction:
    """Return the real function of a LeakyRelu or PRelu: x, or slope * x for negative x.

    Several slopes count as their root mean square. For choosing scales; `model` and `target` are
    not used.
    """
    slopes = get_negative_slopes(node)
    assert slopes is not None
    slope = float(np.sqrt(np.mean(np.square(slopes))))
    return lambda x: np.where(x >= 0, x, slope * x)


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output: that of the input."""
    return exponent(ir.input_name(node))


class LeakyRelu(Op):
    """LeakyRelu or PRelu as a sum of two rectified terms."""

    integer_op = formats.ADD
    composition_name = "LeakyRelu (composed)"
    floats = (("", "LeakyRelu"), ("", "PRelu"))
    may_emit_reshape = True
    scale_constraints = Scaling(
        shared_scales=share_no_scales,
        real_function=_make_leaky_relu_function,
        max_output_exponent=_sum_max_exponent,
    )

    def is_available(self, target: Target) -> bool:
        """Whether `target` has Relu, iqAdd and BatchNorm2dInt, of which the sum is composed."""
        parts = (formats.RELU, formats.ADD, formats.BATCH_NORM2D)
        return all(target.can_run(form.name) for form in parts)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why a LeakyRelu or PRelu has no integer form, or None if it has one.

        Reasons: unknown dimensions or too many axes, or a slope that is computed at run time or
        differs within a channel, or is not finite.
        """
        if nchw_shape(node) is None:
            return "its shape is not known before the run"
        slopes = get_negative_slopes(node)
        if slopes is None:
            return "its slope is computed at run time or differs within a channel"
        return None if np.isfinite(slopes).all() else "its slope contains NaN or infinity"

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit relu(x) - s relu(-x): Relu; BatchNorm2dInt by -1, Relu, BatchNorm2dInt; iqAdd.

        They work on [N, C, H, W], with Reshapes around them if the shape is another. The slopes
        have the width of the input and as many fractional bits as fit the largest.
        """
        slopes = get_negative_slopes(node)
        assert slopes is not None
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        value = emit_reshape_to_nchw(context, node, context.get_integer_input(node, 0), x)
        shape = nchw_shape(node) or ()
        upper = context.emit_intermediate(formats.RELU, node, "upper", [value], {}, shape, x)
        mirrored = emit_channel_affine(
            context,
            node,
            "mirrored",
            value,
            input_qparams=x,
            output_qparams=x,
            weight_qparams=Affine(1.0),
            factors=-1.0,
        )
        lower = context.emit_intermediate(formats.RELU, node, "lower", [mirrored], {}, shape, x)
        max_slope = float(np.abs(slopes).max(initial=0)) or 1.0
        max_integer = (1 << (x.bits - 1)) - 1
        exponent = min(floor_exponent(max_integer / max_slope), context.target.exponents[1])
        w = Affine(2.0**exponent, x.bits)
        scaled = emit_channel_affine(
            context,
            node,
            "scaled",
            lower,
            input_qparams=x,
            output_qparams=o,
            weight_qparams=w,
            factors=-slopes,
        )
        attrs = formats.ADD.make_qparams_attributes(x, o, o)
        emit_from_nchw(context, node, formats.ADD, [upper, scaled], attrs)
