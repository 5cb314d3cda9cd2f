"""Relu and Clip on integers; scales pass through.

Clip exists on `generic` only. No vendor executor runs it: on chips ``Clip(0, b)`` is a Relu on a
tensor whose scale puts b exactly at the top of the integer range, so that saturation does the
clipping (`improve.ranges` sees to that). Where no scale does, ``relu(b - relu(b - x))`` stands in,
by BatchNorm2dInt and Relu: the integers are those of a Clip.
"""

from __future__ import annotations

import math

import numpy as np

from ... import formats
from ...errors import ModelError
from ...graph import ir
from ...lowering import LoweringContext
from ...plan import Affine
from ...targets import Target
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
    """Return (low, high) of a Clip, infinite where absent, or None when a bound is computed at run
    time.
    """
    ends = []
    for index, (name, none) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        value = node.inputs[index] if len(node.inputs) > index else None
        array = ir.find_constant(value)  # a graph that was not normalised yet has Constant nodes
        if value is not None and array is None:
            return None
        if array is not None and array.size != 1:
            raise ModelError(
                f"{node.op_type} {node.name}: {name} holds {array.size} numbers; it must be one"
            )
        number = (
            float(array.reshape(())) if array is not None else float(ir.get_attr(node, name, none))
        )
        ends.append(none if abs(number) > 3e38 else number)
    return ends[0], ends[1]


def _emit_clip(node: ir.Node, low: LoweringContext, ends: tuple[int, int]) -> None:
    """Emit Clip with integer bounds."""
    dtype = np.int8 if low.output_qparams(node).bits <= 8 else np.int16
    limits = [
        low.array(f"{node.outputs[0].name}_{key}", np.array(value, dtype))
        for key, value in zip(("low", "high"), ends, strict=True)
    ]
    low.emit(formats.CLIP, node, [low.get_integer_input(node, 0), *limits], {})


def can_compose_clip(node: ir.Node, target: Target) -> bool:
    """Whether a Clip(0, b) may be made of two BatchNorm2dInt and two Relu: there is no Clip, and
    these are there.
    """
    parts = (formats.RELU, formats.BATCH_NORM2D)
    return (
        not target.can_run(formats.CLIP.name)
        and all(target.can_run(f.name) for f in parts)
        and bool(nchw_shape(node))
    )


def _emit_composed_clip(node: ir.Node, low: LoweringContext, high: int) -> None:
    """Emit Clip(0, high) as ``relu(high - relu(high - x))``.

    Nothing is rounded. Where ``high - x`` saturates, what comes behind is 0 with it as without.
    """
    q, shape = low.output_qparams(node), nchw_shape(node) or ()
    value = emit_reshape_to_nchw(low, node, low.get_integer_input(node, 0), q)

    def distance(what: str, value: ir.Value) -> ir.Value:
        return emit_channel_affine(
            low,
            node,
            what,
            value,
            input_qparams=q,
            output_qparams=q,
            weight_qparams=Affine(1.0),
            factors=-1.0,
            offset=high / q.scale,
        )

    above = low.emit_intermediate(
        formats.RELU, node, "above", [distance("distance", value)], {}, shape, q
    )
    emit_from_nchw(low, node, formats.RELU, [distance("below", above)], {})


def _share_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Input and output share a scale; where nobody else reads the input only the output's range
    matters.
    """
    source, result = ir.require_input(node), ir.output_name(node)
    return [
        ScalePair(str(source.name), result, result if ir.sole_consumer(source) is node else None)
    ]


def _has_clip(node: ir.Node, target: Target) -> bool:
    """Whether there is a Clip, which cuts at any integer; saturation stands in for it around 0
    only.
    """
    return target.can_run(formats.CLIP.name)


#: Of Relu and Clip.
_SCALE_CONSTRAINTS = Scaling(shared_scales=_share_scale, supports_zero_points=_has_clip)


class Relu(Op):
    """Negative numbers become 0: ``max(0, x)``."""

    integer_op = formats.RELU
    floats = (("", "Relu"),)
    scale_constraints = _SCALE_CONSTRAINTS
    preserves_integers = True

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Relu, or Clip from the integer that stands for 0."""
        q = context.output_qparams(node)
        if q.zero_point:
            _emit_clip(node, context, (q.zero_point, q.high))
            return
        super().lower(node, context)


class Clip(Op):
    """``min(max(x, low), high)`` with constant bounds, quantized with the tensor's scale."""

    integer_op = formats.CLIP
    floats = (("", "Clip"),)
    scale_constraints = _SCALE_CONSTRAINTS
    preserves_integers = True

    def is_available(self, target: Target) -> bool:
        """Everywhere: by saturation where there is no Clip."""
        return True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return why the bounds are not constants, or None."""
        return "its bounds are computed at run time" if get_clip_bounds(node) is None else None

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """On platforms without Clip, ReLU6 and its kin stand in: a lower bound of 0 and a positive
        upper one.
        """
        limits = get_clip_bounds(node)
        if (
            target.can_run(self.name)
            or limits is None
            or (limits[0] == 0 and 0 < limits[1] < math.inf)
        ):
            return []
        rule = f"{target.name} has no Clip; ReLU6 and other Clip(0, b) are made by saturation"
        return [
            Violation(
                str(node.name),
                ir.display_op_type(node),
                ir.output_name(node),
                rule,
                f"Clip{limits}",
                "use Clip(0, b) or leave the node in float",
            )
        ]

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Clip with integer bounds; Relu where the top integer is the upper one; on a chip
        else a composition.
        """
        limits, q = get_clip_bounds(node), context.output_qparams(node)
        assert limits is not None
        low_int, high_int = (
            int(q.integers(np.array(end))) if math.isfinite(end) else whole
            for end, whole in zip(limits, (q.low, q.high), strict=True)
        )
        if high_int == q.high and low_int == q.zero_point == 0:
            context.emit(formats.RELU, node, [context.get_integer_input(node, 0)], {})
        elif (
            low_int == q.zero_point == 0 and q.bits <= 8 and can_compose_clip(node, context.target)
        ):
            _emit_composed_clip(node, context, high_int)
        else:
            _emit_clip(node, context, (low_int, high_int))


def is_relu_like(node: ir.Node) -> bool:
    """Whether the float `node` is a Relu or a Clip from 0."""
    if node.domain or node.op_type not in ("Relu", "Clip"):
        return False
    limits = get_clip_bounds(node) if node.op_type == "Clip" else (0.0, math.inf)
    return limits is not None and limits[0] == 0
