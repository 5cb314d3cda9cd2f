"""LeakyRelu and PRelu, put together from operators that every platform runs right; with one slope
only where there
is no table.

    y = relu(x) + (-s) * relu(-x)        s: the slope, one or one per channel

Exact for x >= 0; for x < 0 one rounding. What is no image is reshaped to one and back, for the
scaling per channel.
"""

from __future__ import annotations

import numpy as np

from ... import formats
from ...graph import ir
from ...lowering import LoweringContext
from ...plan import Affine
from ...plan.power_of_two import floor_exponent
from ...targets import Target
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
    """Return the slope, float64 [1] or [channels]; None when it is computed or differs within a
    channel.
    """
    if node.op_type == "LeakyRelu":
        return np.array([ir.get_attr(node, "alpha", 0.01)], np.float64)
    array, shape = ir.const_value(node.inputs[1]), ir.get_shape(node.inputs[0]) or ()
    if array is None or array.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - array.ndim) + array.shape
    return (
        array.reshape(-1).astype(np.float64)
        if full == (1, array.size, *(1,) * (len(shape) - 2))
        else None
    )


def _make_leaky_relu_function(model: ir.Model, node: ir.Node, target: Target) -> UnaryFunction:
    """Two half-lines; of several slopes that of the mean square."""
    steep = get_negative_slopes(node)
    assert steep is not None
    slope = float(np.sqrt(np.mean(np.square(steep))))
    return lambda x: np.where(x >= 0, x, slope * x)


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The sum's: q_o <= q_x."""
    return exponent(ir.input_name(node))


class LeakyRelu(Op):
    """A sum of two half-lines; it has no integer operator of its own."""

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
        """Its parts must be there."""
        return all(
            target.can_run(form.name) for form in (formats.RELU, formats.ADD, formats.BATCH_NORM2D)
        )

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return why it has no channels with constant slopes, or None."""
        if nchw_shape(node) is None:
            return "its shape is not known before the run"
        return (
            None
            if get_negative_slopes(node) is not None
            else "its slope is computed at run time or differs within a channel"
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Relu; BatchNorm2dInt by -1, Relu, BatchNorm2dInt by -s; iqAdd; on an image, if need
        be reshaped.
        """
        steep, x, o = (
            get_negative_slopes(node),
            context.input_qparams(node, 0),
            context.output_qparams(node),
        )
        assert steep is not None
        value, shape = (
            emit_reshape_to_nchw(context, node, context.get_integer_input(node, 0), x),
            nchw_shape(node) or (),
        )
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
        top = float(np.abs(steep).max(initial=0)) or 1.0
        w = Affine(
            2.0
            ** min(floor_exponent(((1 << (x.bits - 1)) - 1) / top), context.target.exponents[1]),
            x.bits,
        )
        scaled = emit_channel_affine(
            context,
            node,
            "scaled",
            lower,
            input_qparams=x,
            output_qparams=o,
            weight_qparams=w,
            factors=-steep,
        )
        emit_from_nchw(context, node, formats.ADD, [upper, scaled], formats.ADD.scales(x, o, o))
