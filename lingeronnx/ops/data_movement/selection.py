"""Operators that choose a part of a tensor: Slice, Split, Gather, ArgMax. Scales pass through.

Chips slice one axis at a time with step 1; Split is a chain of slices by the time it is lowered
(`passes.split`), its integer form exists in vendors' graphs only. Gather is either a choice along
an axis or, with a constant table, an embedding: the table is then quantized at the scale of the
output.
"""

from __future__ import annotations

import numpy as np

from ... import formats
from ...formats.data_movement.selection import read_constant_slices
from ...graph import ir
from ...lowering import LoweringContext
from ...targets import Target
from ...targets.limits import SliceLimits
from .._base import Op
from ..scale_constraints import ScalePair, Scaling, share_input_output_scale

__all__ = ["Gather", "Slice"]


def check_slice_step(node: ir.Node, target: Target) -> object:
    """a slice takes every element (step 1) | slice the operator before, or use a strided layer."""
    limits = target.get_limits(formats.SLICE.name, SliceLimits)
    if limits is None:
        return None
    ranges = read_constant_slices(node)
    return next(
        (f"step {part.step}" for part in (ranges or {}).values() if part.step not in limits.steps),
        None,
    )


class Slice(Op):
    """A range of positions along one axis or several."""

    integer_op = formats.SLICE
    is_data_movement = True
    floats = (("", "Slice"),)
    constraints = (check_slice_step,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Constant bounds, known sizes, the whole batch."""
        shape = ir.get_shape(node.inputs[0])
        if shape is None:
            return "its shape is not known before the run"
        ranges = read_constant_slices(node)
        if ranges is None:
            return "its bounds are computed at run time"
        if 0 in ranges and ranges[0] not in (
            slice(0, None, 1),
            slice(0, (1 << 63) - 1, 1),
            slice(0, (1 << 31) - 1, 1),
        ):
            return "it slices the batch axis"
        return (
            "its shape is not known before the run"
            if any(shape[a] is None for a in ranges if a)
            else None
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit one Slice per axis, in the form with inputs, bounds counted from the start."""
        shape = list(ir.require_shape(node.inputs[0]))
        parts = read_constant_slices(node)
        ranges = {
            axis: range(*part.indices(int(shape[axis] or 0)))
            for axis, part in (parts or {}).items()
            if axis
        }
        cuts = [(axis, r) for axis, r in ranges.items() if r != range(int(shape[axis] or 0))] or [
            (1, range(int(shape[1] or 0)))
        ]
        x, name = context.get_integer_input(node, 0), node.outputs[0].name
        for number, (axis, places) in enumerate(cuts):
            before = (
                -int(shape[axis] or 0) - 1
            )  # -1 would be the last position, not the one before the first
            bounds = (places.start, before if places.stop < 0 else places.stop, axis, places.step)
            constants = [
                context.array(f"{name}_{key}{axis}", np.array([value], np.int64))
                for key, value in zip(("start", "end", "axis", "step"), bounds, strict=True)
            ]
            shape[axis] = len(places)
            if number < len(cuts) - 1:
                x = context.emit_intermediate(
                    formats.SLICE,
                    node,
                    f"cut{axis}",
                    [x, *constants],
                    {},
                    shape,
                    context.input_qparams(node, 0),
                )
            else:
                context.emit(formats.SLICE, node, [x, *constants], {})


def _is_embedding(node: ir.Node) -> bool:
    """Whether a computed index reads rows of a constant table."""
    return ir.const_value(node.inputs[0]) is not None


def _shared_gather_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """An embedding's output has a scale of its own."""
    return [] if _is_embedding(node) else share_input_output_scale(node, target)


def _supports_zero_points(node: ir.Node, target: Target) -> bool:
    """Whether it chooses among activations: the rows of a constant table are weights."""
    return not _is_embedding(node) and formats.GATHER.supports_zero_points


class Gather(Op):
    """A choice along an axis by a constant index, or rows of a constant table by a computed one."""

    integer_op = formats.GATHER
    is_data_movement = True
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=_shared_gather_scale,
        supports_zero_points=_supports_zero_points,
    )
    floats = (("", "Gather"),)

    def data(self, node: ir.Node) -> list[int]:
        """Return the table, or nothing where it is a constant that a computed index reads."""
        return [] if _is_embedding(node) else [0]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Rows by an int64 index, or a constant index of at most one axis; not along the batch."""
        table, index = (ir.const_value(value) for value in node.inputs)
        if table is not None and table.dtype.kind == "f":
            if ir.get_attr(node, "axis", 0) or table.ndim != 2:
                return "its table is not one of rows"
            kind = getattr(node.inputs[1].dtype, "name", "") if node.inputs[1] is not None else ""
            return (
                None if index is None and kind == "INT64" else "its index is not a computed int64"
            )
        if index is None or index.ndim > 1:
            return (
                "its index is computed at run time"
                if index is None
                else "its index has more than one axis"
            )
        shape = ir.get_shape(node.inputs[0])
        axis = ir.get_attr(node, "axis", 0) % len(shape) if shape else 0
        return (
            "it chooses along the batch axis"
            if not shape or axis == 0 or shape[axis] is None
            else None
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the table quantized, or with the index as a list; the axis of a single index is
        squeezed away.
        """
        if not self.data(node):
            q = context.output_qparams(node)
            inputs = [context.add_quantized_constant(node, 0, q), context.real(node, 1)]
            context.emit(
                formats.GATHER,
                node,
                inputs,
                {"axis": 0, **formats.GATHER.scales(q)},
                domain="thinker",
            )
            return
        shape, index = (
            list(ir.require_shape(node.inputs[0])),
            ir.require_const_value(node.inputs[1]),
        )
        axis = ir.get_attr(node, "axis", 0) % len(shape)
        places = (
            np.where(index < 0, index + int(shape[axis] or 0), index).astype(np.int64).reshape(-1)
        )
        inputs = [
            context.get_integer_input(node, 0),
            context.array(f"{node.outputs[0].name}_index", places),
        ]
        if index.ndim:
            context.emit(formats.GATHER, node, inputs, {"axis": axis})
            return
        shape[axis] = 1
        one = context.emit_intermediate(
            formats.GATHER,
            node,
            "one",
            inputs,
            {"axis": axis},
            shape,
            context.input_qparams(node, 0),
        )
        context.emit(formats.SQUEEZE, node, [one], {"axes": [axis]})
