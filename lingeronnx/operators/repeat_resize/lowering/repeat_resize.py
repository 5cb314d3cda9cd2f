"""Operators that repeat elements: Tile, Expand, Resize. The scale is unchanged."""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ... import integer_ops
from ..._lowering import Op
from ...lowering_context import LoweringContext
from ...reshape.lowering import explain_batch_move
from ..integer_op import COORDINATE_TRANSFORMS

__all__ = ["Expand", "Resize", "SameRankRule", "Tile"]


class SameRankRule(Op):
    """Base of rules that keep the rank and the batch axis."""

    is_data_movement = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why `node` has no integer form, or None if it has one.

        Reasons: an unknown shape, and another rank or batch axis at the output than at the input.
        """
        source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
        if source is None or result is None or len(source) != len(result):
            return "it adds axes" if source and result else "its shape is not known before the run"
        return explain_batch_move(node)


class Tile(SameRankRule):
    """Repetition of the tensor along axes: Tile."""

    integer_op = integer_ops.TILE
    floats = (("", "Tile"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Tile has no integer form, or None if it has one.

        Reasons: repeats that are not constant, an unknown shape, and another rank or batch axis at
        the output.
        """
        if ir.const_value(node.inputs[1]) is None:
            return "its repeats are computed at run time"
        return super().explain_rejection(node)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Tile with the same repeats as an int64 constant into `context`."""
        repeats = ir.require_const_value(node.inputs[1])
        constant = context.array(f"{node.outputs[0].name}_repeats", repeats.astype(np.int64))
        context.emit(integer_ops.TILE, node, [context.get_integer_input(node, 0), constant], {})


class Expand(SameRankRule):
    """Broadcast along axes of size 1: Expand."""

    integer_op = integer_ops.EXPAND
    floats = (("", "Expand"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Expand to the output shape, with 1 for the batch, into `context`."""
        target = [1, *(int(d or 1) for d in ir.require_shape(node.outputs[0])[1:])]
        constant = context.array(f"{node.outputs[0].name}_shape", np.array(target, np.int64))
        context.emit(integer_ops.EXPAND, node, [context.get_integer_input(node, 0), constant], {})


class Resize(SameRankRule):
    """Nearest-neighbour upsampling by integer factors: Resize."""

    integer_op = integer_ops.RESIZE
    floats = (("", "Resize"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Resize has no integer form, or None if it has one.

        It must have mode "nearest", a known coordinate transform, no `axes`, and known sizes that
        are multiples of the input's (batch aside).
        """
        reason = super().explain_rejection(node)
        if reason is not None:
            return reason
        if ir.get_attr(node, "mode", "nearest") != "nearest":
            return "it interpolates"
        transform = ir.get_attr(node, "coordinate_transformation_mode", "half_pixel")
        if transform not in COORDINATE_TRANSFORMS or ir.get_attr(node, "axes"):
            return "it resizes a part"
        source, result = ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.outputs[0]) or ()
        for n, m in zip(source[1:], result[1:], strict=True):
            if not n or not m or m % n:
                return "its factors are not whole numbers"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Resize (nearest) with integer factors instead of sizes, factor 1 for the batch.

        The coordinate transform and `nearest_mode` are kept if the node has them.
        """
        sizes = zip(
            ir.require_shape(node.inputs[0])[1:], ir.require_shape(node.outputs[0])[1:], strict=True
        )
        factors = np.array([1.0, *(int(m or 1) // int(n or 1) for n, m in sizes)], np.float32)
        name = node.outputs[0].name
        constants = [
            context.array(f"{name}_roi", np.zeros(0, np.float32)),
            context.array(f"{name}_factors", factors),
        ]
        attrs = {"mode": "nearest"}
        for key in ("coordinate_transformation_mode", "nearest_mode"):
            if key in node.attributes:
                attrs[key] = ir.get_attr(node, key)
        inputs = [context.get_integer_input(node, 0), *constants]
        context.emit(integer_ops.RESIZE, node, inputs, attrs)
