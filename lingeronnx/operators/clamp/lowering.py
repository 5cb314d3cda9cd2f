"""Relu, Clip, LeakyRelu and PRelu.

Relu and Clip leave the scale unchanged. Clip exists on `generic` only. On chips, ``Clip(0, b)`` is
a Relu on a tensor whose scale maps b to the largest integer, so that saturation clips
(`quantization.factor_groups` chooses such scales). If no scale does, ``relu(b - relu(b - x))``, by
BatchNorm2dInt and Relu, gives the integers of a Clip.

LeakyRelu and PRelu are composed of operators that every platform computes correctly:

    y = relu(x) + (-s) * relu(-x)        s: one slope, or one per channel

The result is exact for x >= 0 and rounded once for x < 0. If y has a finer scale than x, because
most of the range of x is negative, a BatchNorm2dInt brings the first term to it on chips, whose
sums only shift right. Tensors that are no images are reshaped for the scaling per channel. On
targets with tables, a single slope becomes a table instead.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from ...ir.plan import Affine
from ...ir.plan.power_of_two import floor_exponent
from ...targets import Target
from .. import integer_ops
from .._lowering import (
    ExponentLookup,
    Op,
    ScalePair,
    Scaling,
    UnaryFunction,
    Violation,
    share_no_scales,
)
from .._nchw import emit_channel_affine, emit_from_nchw, emit_reshape_to_nchw, nchw_shape
from ..lowering_context import LoweringContext

__all__ = [
    "Clip",
    "LeakyRelu",
    "Relu",
    "can_compose_clip",
    "get_clip_bounds",
    "get_negative_slopes",
    "is_relu_like",
]


def get_clip_bounds(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds (low, high) of a Clip, or None if one is computed at run time.

    An absent bound is infinite, and so is one beyond +-3e38.

    Raises
    ------
    ModelError
        If a bound is not a scalar.
    """
    bounds = []
    for index, (name, absent) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        value = node.inputs[index] if len(node.inputs) > index else None
        array = ir.find_constant(value)  # before normalization, constants are nodes
        if value is not None and array is None:
            return None
        if array is None:
            bound = float(ir.get_attr(node, name, absent))
        elif array.size == 1:
            bound = float(array.reshape(()))
        else:
            raise ModelError(
                f"{node.op_type} {node.name}: {name} has {array.size} elements; it must be a scalar"
            )
        bounds.append(absent if abs(bound) > 3e38 else bound)
    return bounds[0], bounds[1]


def _emit_clip(node: ir.Node, low: LoweringContext, bounds: tuple[int, int]) -> None:
    """Emit Clip of input 0 of `node` to the integer `bounds` (low, high), as scalar constants.

    The constants are int8 if the output has at most 8 bits, else int16.
    """
    dtype = np.int8 if low.output_qparams(node).bits <= 8 else np.int16
    constants = [
        low.array(f"{node.outputs[0].name}_{key}", np.array(bound, dtype))
        for key, bound in zip(("low", "high"), bounds, strict=True)
    ]
    low.emit(integer_ops.CLIP, node, [low.get_integer_input(node, 0), *constants], {})


def can_compose_clip(node: ir.Node, target: Target) -> bool:
    """Whether Clip(0, b) is computed by BatchNorm2dInt and Relu, because `target` has no Clip.

    The target must have both, and the node a known shape of at most four axes.
    """
    if target.can_run(integer_ops.CLIP.name) or not nchw_shape(node):
        return False
    return target.can_run(integer_ops.RELU.name) and target.can_run(integer_ops.BATCH_NORM2D.name)


def _emit_composed_clip(node: ir.Node, low: LoweringContext, high: int) -> None:
    """Emit Clip(0, high) of the input of `node` as ``relu(high - relu(high - x))``.

    `high` is an integer of the output's format. Nothing is rounded. If ``high - x`` saturates, the
    result is 0 as without saturation.
    """
    q, shape = low.output_qparams(node), nchw_shape(node) or ()
    value = emit_reshape_to_nchw(low, node, low.get_integer_input(node, 0), q)

    def subtract_from_bound(suffix: str, value: ir.Value) -> ir.Value:
        """Emit `high` - `value` as a BatchNorm2dInt of factor -1, and return its output.

        Input and output have the parameters `q`; `suffix` becomes part of the name of the output.
        """
        return emit_channel_affine(
            low,
            node,
            suffix,
            value,
            input_qparams=q,
            output_qparams=q,
            weight_qparams=Affine(1.0),
            factors=-1.0,
            offset=high / q.scale,
        )

    above = low.emit_intermediate(
        integer_ops.RELU, node, "above", [subtract_from_bound("distance", value)], {}, shape, q
    )
    emit_from_nchw(low, node, integer_ops.RELU, [subtract_from_bound("below", above)], {})


def _share_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that input and output of `node` share a scale.

    If the input has no other consumer, only the statistics of the output matter.
    """
    source, output = ir.require_input(node), ir.output_name(node)
    statistics_of = output if ir.sole_consumer(source) is node else None
    return [ScalePair(str(source.name), output, statistics_of)]


def _has_clip(node: ir.Node, target: Target) -> bool:
    """Whether `target` has Clip, so that Relu and Clip may have zero points there.

    Without it, saturation replaces a Clip around 0 only.
    """
    return target.can_run(integer_ops.CLIP.name)


#: Requirements of Relu and Clip.
_SCALE_CONSTRAINTS = Scaling(shared_scales=_share_scale, supports_zero_points=_has_clip)


class Relu(Op):
    """Rectifier, ``max(0, x)``: Relu."""

    integer_op = integer_ops.RELU
    passes_channel_factors = True
    floats = (("", "Relu"),)
    scale_constraints = _SCALE_CONSTRAINTS
    preserves_integers = True

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Relu into `context`, or Clip to [zero point, highest] if the zero point is not 0."""
        q = context.output_qparams(node)
        if q.zero_point:
            _emit_clip(node, context, (q.zero_point, q.high))
            return
        super().lower(node, context)


class Clip(Op):
    """``min(max(x, low), high)`` with constant bounds at the scale of the tensor."""

    integer_op = integer_ops.CLIP
    floats = (("", "Clip"),)
    scale_constraints = _SCALE_CONSTRAINTS
    preserves_integers = True

    def is_available(self, target: Target) -> bool:
        """Return True: where `target` has no Clip, saturation replaces it."""
        return True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Clip `node` has no integer form, or None if it has one.

        It has none if its bounds are computed at run time.
        """
        return "its bounds are computed at run time" if get_clip_bounds(node) is None else None

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return a violation for bounds other than (0, finite b > 0), on a target without Clip.

        An empty list on targets with Clip, and for bounds that are not constant.
        """
        bounds = get_clip_bounds(node)
        if target.can_run(self.name) or bounds is None:
            return []
        if bounds[0] == 0 and 0 < bounds[1] < math.inf:
            return []
        violation = Violation(
            node=str(node.name),
            op_type=ir.display_op_type(node),
            tensor=ir.output_name(node),
            rule=f"{target.name} has no Clip; ReLU6 and other Clip(0, b) are made by saturation",
            value=f"Clip{bounds}",
            remedy="use Clip(0, b) or leave the node in float",
        )
        return [violation]

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Relu, a composition of two Relus, or Clip, depending on the bounds as integers.

        A lower bound of 0 (without zero point) is a Relu if the upper bound is the largest integer,
        otherwise, if the output has at most 8 bits and the target has no Clip, a composition; all
        other bounds are a Clip. An infinite bound is the format's own.
        """
        bounds, q = get_clip_bounds(node), context.output_qparams(node)
        assert bounds is not None
        low_int, high_int = q.low, q.high
        if math.isfinite(bounds[0]):
            low_int = int(q.integers(np.array(bounds[0])))
        if math.isfinite(bounds[1]):
            high_int = int(q.integers(np.array(bounds[1])))
        starts_at_zero = low_int == q.zero_point == 0
        if starts_at_zero and high_int == q.high:
            context.emit(integer_ops.RELU, node, [context.get_integer_input(node, 0)], {})
        elif starts_at_zero and q.bits <= 8 and can_compose_clip(node, context.target):
            _emit_composed_clip(node, context, high_int)
        else:
            _emit_clip(node, context, (low_int, high_int))


def is_relu_like(node: ir.Node) -> bool:
    """Whether the float `node` is a Relu, or a Clip with constant bounds whose lower one is 0."""
    if node.domain or node.op_type not in ("Relu", "Clip"):
        return False
    if node.op_type == "Relu":
        return True
    bounds = get_clip_bounds(node)
    return bounds is not None and bounds[0] == 0


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


def _unit_exponent(slopes: np.ndarray) -> int:
    """Return the largest exponent (log2 of the scale) at which 1 and all slopes fit in 8 bits."""
    return floor_exponent(127 / max(1.0, float(np.abs(slopes).max(initial=0))))


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output.

    It is the sum of those of the input and of the factors, whose products are only shifted right.
    """
    slopes = get_negative_slopes(node)
    assert slopes is not None
    return exponent(ir.input_name(node)) + _unit_exponent(slopes)


class LeakyRelu(Op):
    """LeakyRelu or PRelu as a sum of two rectified terms."""

    integer_op = integer_ops.ADD
    composition_name = "LeakyRelu (composed)"
    passes_channel_factors = True
    floats = (("", "LeakyRelu"), ("", "PRelu"))
    may_emit_reshape = True
    scale_constraints = Scaling(
        shared_scales=share_no_scales,
        real_function=_make_leaky_relu_function,
        max_output_exponent=_sum_max_exponent,
    )

    def is_available(self, target: Target) -> bool:
        """Whether `target` has Relu, iqAdd and BatchNorm2dInt, of which the sum is composed."""
        parts = (integer_ops.RELU, integer_ops.ADD, integer_ops.BATCH_NORM2D)
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

        If the target only shifts right and the output has the finer scale, a BatchNorm2dInt by 1
        comes before the first Relu. They work on [N, C, H, W], with Reshapes around them if the
        shape is another. The slopes have the width of the input and as many fractional bits as fit
        the largest.
        """
        slopes = get_negative_slopes(node)
        assert slopes is not None
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        value = emit_reshape_to_nchw(context, node, context.get_integer_input(node, 0), x)
        shape = nchw_shape(node) or ()
        upper, upper_qparams = value, x
        if context.target.needs_power_of_two_scales and o.scale > x.scale:
            upper_qparams = o
            upper = emit_channel_affine(
                context,
                node,
                "fine",
                value,
                input_qparams=x,
                output_qparams=o,
                weight_qparams=Affine(2.0 ** _unit_exponent(slopes), x.bits),
                factors=1.0,
            )
        upper = context.emit_intermediate(
            integer_ops.RELU, node, "upper", [upper], {}, shape, upper_qparams
        )
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
        lower = context.emit_intermediate(integer_ops.RELU, node, "lower", [mirrored], {}, shape, x)
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
        attrs = integer_ops.ADD.make_qparams_attributes(upper_qparams, o, o)
        emit_from_nchw(context, node, integer_ops.ADD, [upper, scaled], attrs)
