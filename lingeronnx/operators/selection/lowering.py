"""Slice and Gather at an unchanged scale; a limit returns None if kept, else the offending value.

Chips slice one axis at a time with step 1. A pass replaces Split by slices before lowering. Gather
selects positions along an axis or, with a constant table, is an embedding whose table is quantized
at the scale of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import ir
from ...targets import Target
from ...targets.limits import SliceLimits
from .. import integer_ops
from .._lowering import Op, ScalePair, Scaling, share_input_output_scale
from ..lowering_context import LoweringContext
from .integer_op import read_constant_slices

__all__ = ["Gather", "Slice"]

#: Slices of a whole axis, as exporters write them.
_FULL_SLICES = (slice(0, None, 1), slice(0, (1 << 63) - 1, 1), slice(0, (1 << 31) - 1, 1))


def check_slice_step(node: ir.Node, target: Target) -> str | None:
    """a slice takes every element (step 1) | slice the operator before, or use a strided layer."""
    limits = target.get_limits(integer_ops.SLICE.name, SliceLimits)
    if limits is None:
        return None
    for part in (read_constant_slices(node) or {}).values():
        if part.step not in limits.steps:
            return f"step {part.step}"
    return None


class Slice(Op):
    """Ranges of positions along one or several axes: Slice."""

    integer_op = integer_ops.SLICE
    is_data_movement = True
    floats = (("", "Slice"),)
    constraints = (check_slice_step,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the slice has no integer form, or None if it has one.

        Reasons: an input of unknown rank, bounds computed at run time, a slice of axis 0 that is
        not the full range, or an unknown dimension along another sliced axis.
        """
        shape = ir.get_shape(node.inputs[0])
        if shape is None:
            return "its shape is not known before the run"
        ranges = read_constant_slices(node)
        if ranges is None:
            return "its bounds are computed at run time"
        if 0 in ranges and ranges[0] not in _FULL_SLICES:
            return "it slices the batch axis"
        if any(shape[axis] is None for axis in ranges if axis):
            return "its shape is not known before the run"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit one Slice per shortened axis, with constant inputs and nonnegative starts.

        A Slice that shortens nothing becomes one full Slice on axis 1.
        """
        shape = list(ir.require_shape(node.inputs[0]))
        ranges = _find_partial_ranges(node, shape)
        x, name = context.get_integer_input(node, 0), node.outputs[0].name
        for number, (axis, positions) in enumerate(ranges):
            # An end of -1 would be the last position, not the one before the first.
            end = positions.stop if positions.stop >= 0 else -int(shape[axis] or 0) - 1
            bounds = (positions.start, end, axis, positions.step)
            inputs = [x]
            for key, bound in zip(("start", "end", "axis", "step"), bounds, strict=True):
                inputs.append(context.array(f"{name}_{key}{axis}", np.array([bound], np.int64)))
            shape[axis] = len(positions)
            if number == len(ranges) - 1:
                context.emit(integer_ops.SLICE, node, inputs, {})
                return
            q = context.input_qparams(node, 0)
            x = context.emit_intermediate(
                integer_ops.SLICE, node, f"cut{axis}", inputs, {}, shape, q
            )


def _find_partial_ranges(node: ir.Node, shape: Sequence[int | None]) -> list[tuple[int, range]]:
    """Return (axis, positions) of the axes that the Slice `node` shortens; at least one entry.

    `positions` is the range of selected positions, the batch axis left out; if no axis is
    shortened, the entry is all of axis 1. `shape` is that of the input.
    """
    ranges = []
    for axis, part in (read_constant_slices(node) or {}).items():
        size = int(shape[axis] or 0)
        positions = range(*part.indices(size))
        if axis and positions != range(size):
            ranges.append((axis, positions))
    return ranges or [(1, range(int(shape[1] or 0)))]


def _is_embedding(node: ir.Node) -> bool:
    """Whether `node`, a Gather, selects rows of a constant table."""
    return ir.const_value(node.inputs[0]) is not None


def _shared_gather_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that input and output of a Gather share a scale; [] for embeddings.

    An embedding selects rows of a constant table.
    """
    return [] if _is_embedding(node) else share_input_output_scale(node, target)


def _supports_zero_points(node: ir.Node, target: Target) -> bool:
    """Whether a Gather may have zero points.

    False for rows of a constant table, which are weights.
    """
    return not _is_embedding(node) and integer_ops.GATHER.supports_zero_points


class Gather(Op):
    """Selection by a constant index along an axis, or of table rows by a computed index."""

    integer_op = integer_ops.GATHER
    is_data_movement = True
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=_shared_gather_scale,
        supports_zero_points=_supports_zero_points,
    )
    floats = (("", "Gather"),)

    def data(self, node: ir.Node) -> list[int]:
        """Return [0], the input with the activations.

        [] if the Gather selects rows of a constant table.
        """
        return [] if _is_embedding(node) else [0]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the Gather has no integer form, or None if it has one.

        A float table must be a matrix whose rows a computed int64 index selects (an embedding).
        Otherwise the index must be a constant of rank 0 or 1, along an axis of known size that is
        not the batch axis.
        """
        table, index = (ir.const_value(value) for value in node.inputs)
        if table is not None and table.dtype.kind == "f":
            return self._explain_table_rejection(node, table)
        if index is None:
            return "its index is computed at run time"
        if index.ndim > 1:
            return "its index has more than one axis"
        shape = ir.get_shape(node.inputs[0])
        axis = ir.get_attr(node, "axis", 0) % len(shape) if shape else 0
        if not shape or axis == 0 or shape[axis] is None:
            return "it selects along the batch axis"
        return None

    @staticmethod
    def _explain_table_rejection(node: ir.Node, table: np.ndarray) -> str | None:
        """Explain why the Gather of a float `table` is no embedding, or None if it is one.

        An embedding selects rows (axis 0) of a matrix by a computed int64 index.
        """
        if ir.get_attr(node, "axis", 0) or table.ndim != 2:
            return "its table is not one of rows"
        index = node.inputs[1]
        dtype = "" if index is None else getattr(index.dtype, "name", "")
        if ir.const_value(index) is not None or dtype != "INT64":
            return "its index is not a computed int64"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Gather with a quantized table or a constant index; a Squeeze follows a scalar index.

        A table (embedding) is quantized in the output's format. A constant index has one axis and
        no negative positions.
        """
        if not self.data(node):
            q = context.output_qparams(node)
            inputs = [context.add_quantized_constant(node, 0, q), context.real(node, 1)]
            attrs = {"axis": 0, **integer_ops.GATHER.make_qparams_attributes(q)}
            context.emit(integer_ops.GATHER, node, inputs, attrs, domain="thinker")
            return
        shape = list(ir.require_shape(node.inputs[0]))
        index = ir.require_const_value(node.inputs[1])
        axis = ir.get_attr(node, "axis", 0) % len(shape)
        positions = np.where(index < 0, index + int(shape[axis] or 0), index)
        inputs = [
            context.get_integer_input(node, 0),
            context.array(f"{node.outputs[0].name}_index", positions.astype(np.int64).reshape(-1)),
        ]
        if index.ndim:
            context.emit(integer_ops.GATHER, node, inputs, {"axis": axis})
            return
        shape[axis] = 1
        q = context.input_qparams(node, 0)
        selected = context.emit_intermediate(
            integer_ops.GATHER, node, "one", inputs, {"axis": axis}, shape, q
        )
        context.emit(integer_ops.SQUEEZE, node, [selected], {"axes": [axis]})
