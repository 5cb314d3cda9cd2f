"""Relu and Clip on integers; the scale is unchanged.

Clip exists on `generic` only. On chips, ``Clip(0, b)`` is a Relu on a tensor whose scale maps b to
the largest integer, so that saturation clips (`quantization.factor_groups` chooses such scales). If
no scale does, ``relu(b - relu(b - x))``, by BatchNorm2dInt and Relu, gives the integers of a Clip.
"""

from __future__ import annotations

import math

import numpy as np

from ....common.errors import ModelError
from ....ir import ir
from ....ir.plan import Affine
from ....targets import Target
from ... import formats
from ...lowering import LoweringContext
from .._base import Op, Violation
from ..layers.batch_norm import (
    emit_channel_affine,
    emit_from_nchw,
    emit_reshape_to_nchw,
    nchw_shape,
)
from ..scale_constraints import ScalePair, Scaling

__all__ = ["Clip", "Relu", "can_compose_clip", "get_clip_bounds", "is_relu_like"]


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
    low.emit(formats.CLIP, node, [low.get_integer_input(node, 0), *constants], {})


def can_compose_clip(node: ir.Node, target: Target) -> bool:
    """Whether Clip(0, b) is computed by BatchNorm2dInt and Relu, because `target` has no Clip.

    The target must have both, and the node a known shape of at most four axes.
    """
    if target.can_run(formats.CLIP.name) or not nchw_shape(node):
        return False
    return target.can_run(formats.RELU.name) and target.can_run(formats.BATCH_NORM2D.name)


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
        formats.RELU, node, "above", [subtract_from_bound("distance", value)], {}, shape, q
    )
    emit_from_nchw(low, node, formats.RELU, [subtract_from_bound("below", above)], {})


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
    return target.can_run(formats.CLIP.name)


#: Requirements of Relu and Clip.
_SCALE_CONSTRAINTS = Scaling(shared_scales=_share_scale, supports_zero_points=_has_clip)


class Relu(Op):
    """Rectifier, ``max(0, x)``: Relu."""

    integer_op = formats.RELU
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

    integer_op = formats.CLIP
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
            context.emit(formats.RELU, node, [context.get_integer_input(node, 0)], {})
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
