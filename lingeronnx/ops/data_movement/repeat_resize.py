"""Operators that repeat: Tile, Expand, Resize. Scales pass through."""

from __future__ import annotations

import numpy as np

from ... import formats
from ...formats.data_movement.repeat_resize import COORDINATE_TRANSFORMS
from ...graph import ir
from ...lowering import LoweringContext
from .._base import Op
from .shape import explain_batch_move

__all__ = ["Expand", "Resize", "SameRankRule", "Tile"]


class SameRankRule(Op):
    """As many axes as before, and the batch as it is."""

    is_data_movement = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Same number of axes, the batch as it is."""
        source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
        if source is None or result is None or len(source) != len(result):
            return "it adds axes" if source and result else "its shape is not known before the run"
        return explain_batch_move(node)


class Tile(SameRankRule):
    """Repetition along axes becomes Tile on integers."""

    integer_op = formats.TILE
    floats = (("", "Tile"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return why the repeats are not constants, or None."""
        return (
            "its repeats are computed at run time"
            if ir.const_value(node.inputs[1]) is None
            else super().explain_rejection(node)
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the repeats as they are."""
        repeats = ir.require_const_value(node.inputs[1])
        constant = context.array(f"{node.outputs[0].name}_repeats", repeats.astype(np.int64))
        context.emit(formats.TILE, node, [context.get_integer_input(node, 0), constant], {})


class Expand(SameRankRule):
    """Repeat along axes of size 1."""

    integer_op = formats.EXPAND
    floats = (("", "Expand"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the sizes of the result; 1 for the batch, which broadcasts."""
        target = [1, *(int(d or 1) for d in ir.require_shape(node.outputs[0])[1:])]
        constant = context.array(f"{node.outputs[0].name}_shape", np.array(target, np.int64))
        context.emit(formats.EXPAND, node, [context.get_integer_input(node, 0), constant], {})


class Resize(SameRankRule):
    """Enlarge by whole factors, taking the nearest element."""

    integer_op = formats.RESIZE
    floats = (("", "Resize"),)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Nearest, whole factors, without a region of interest."""
        reason = super().explain_rejection(node)
        if reason is not None:
            return reason
        if ir.get_attr(node, "mode", "nearest") != "nearest":
            return "it interpolates"
        if ir.get_attr(
            node, "coordinate_transformation_mode", "half_pixel"
        ) not in COORDINATE_TRANSFORMS or ir.get_attr(node, "axes"):
            return "it resizes a part"
        sizes = list(
            zip(
                ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.outputs[0]) or (), strict=True
            )
        )[1:]
        whole = all(n and m and m % n == 0 for n, m in sizes)
        return None if whole else "its factors are not whole numbers"

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with whole factors in place of sizes."""
        sizes = zip(
            ir.require_shape(node.inputs[0])[1:], ir.require_shape(node.outputs[0])[1:], strict=True
        )
        factors = np.array([1.0, *(int(m or 1) // int(n or 1) for n, m in sizes)], np.float32)
        name = node.outputs[0].name
        constants = [
            context.array(f"{name}_roi", np.zeros(0, np.float32)),
            context.array(f"{name}_factors", factors),
        ]
        attrs = {
            key: ir.get_attr(node, key)
            for key in ("coordinate_transformation_mode", "nearest_mode")
            if key in node.attributes
        }
        context.emit(
            formats.RESIZE,
            node,
            [context.get_integer_input(node, 0), *constants],
            {"mode": "nearest", **attrs},
        )
