"""Operators that choose a part of a tensor: Slice, Split, Gather, ArgMax. Scales pass through.

Chips slice one axis at a time with step 1; Split is a chain of slices by the time it is lowered (`passes.split`), its
integer form exists in vendors' graphs only. Gather is either a choice along an axis or, with a constant table, an
embedding: the table is then quantized at the scale of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..emit import Lowering
from ..errors import ModelError
from ..graph import ir
from ..platforms import Platform
from ..platforms.limits import SliceLimits
from ._base import Attr, Bound, Op, Tie
from .shape import Squeeze

__all__ = ["ArgMax", "Gather", "Slice", "Split", "slices"]


def slices(node: ir.Node, constant: Callable[[int], np.ndarray | None], rank: int) -> dict[int, slice] | None:
    """Return {axis: slice} of a Slice in either form (attributes, or inputs from opset 10 on); None when computed.

    constant : returns constant input `index`, or None.
    """
    if "starts" in node.attributes:
        starts, ends, axes = (ir.attr(node, name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        parts = []
        for index in range(1, 5):
            array = constant(index)
            given = len(node.inputs) > index and node.inputs[index] is not None
            if array is None and (given or index < 3):
                return None
            parts.append(None if array is None else [int(v) for v in array.reshape(-1)])
        starts, ends, axes, steps = parts
    axes = range(len(starts)) if axes is None else [a % rank for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    return {axis: _slice(*each) for axis, *each in zip(axes, starts, ends, steps, strict=True)}


def _slice(start: int, end: int, step: int) -> slice:
    """Return Python's slice of ONNX's numbers: an end beyond the first element, going backwards, is no end."""
    return slice(start, None if step < 0 and end < -(1 << 30) else end, step)


def _constants(node: ir.Node) -> Callable[[int], np.ndarray | None]:
    return lambda index: ir.const(node.inputs[index]) if len(node.inputs) > index else None


def slice_step(node: ir.Node, row: Platform) -> Any:
    """a slice takes every element (step 1) | slice the operator before, or use a strided layer."""
    limits = row.limits("Slice", SliceLimits)
    if limits is None:
        return None
    found = slices(node, _constants(node), len(ir.shape(node.inputs[0]) or (0,)))
    return next((f"step {part.step}" for part in (found or {}).values() if part.step not in limits.steps), None)


class Slice(Op):
    """A range of positions along one axis or several."""

    name = "Slice"
    domain = ""
    moves = True
    floats = (("", "Slice"),)
    constraints = (slice_step,)

    def reject(self, node: ir.Node) -> str | None:
        """Constant bounds, known sizes, the whole batch."""
        shape = ir.shape(node.inputs[0])
        if shape is None:
            return "its shape is not known before the run"
        found = slices(node, _constants(node), len(shape))
        if found is None:
            return "its bounds are computed at run time"
        if 0 in found and found[0] not in (slice(0, None, 1), slice(0, (1 << 63) - 1, 1), slice(0, (1 << 31) - 1, 1)):
            return "it slices the batch axis"
        return "its shape is not known before the run" if any(shape[a] is None for a in found if a) else None

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit one Slice per axis, in the form with inputs, bounds counted from the start."""
        shape = list(ir.shape(node.inputs[0]) or ())
        found = slices(node, _constants(node), len(shape))
        ranges = {axis: range(*part.indices(int(shape[axis] or 0))) for axis, part in (found or {}).items() if axis}
        cuts = [(axis, r) for axis, r in ranges.items() if r != range(int(shape[axis] or 0))] or [
            (1, range(int(shape[1] or 0)))
        ]
        x, name = low.integer(node, 0), node.outputs[0].name
        for number, (axis, places) in enumerate(cuts):
            before = -int(shape[axis] or 0) - 1  # -1 would be the last position, not the one before the first
            bounds = (places.start, before if places.stop < 0 else places.stop, axis, places.step)
            given = [low.array(f"{name}_{key}{axis}", np.array([value], np.int64))
                     for key, value in zip(("start", "end", "axis", "step"), bounds, strict=True)]  # fmt: skip
            shape[axis] = len(places)
            if number < len(cuts) - 1:
                x = low.insert("Slice", node, f"cut{axis}", [x, *given], {}, shape, low.read(node, 0), domain="")
            else:
                low.emit(self, node, [x, *given], {}, domain="")

    def bind(self, bound: Bound) -> Any:
        """Return the positions of each axis."""
        from simulator.kernels import Pick

        shape = bound.source_shapes[0]
        found = slices(bound.node, bound.consts.get, len(shape))
        if found is None:
            raise ModelError(f"{bound.where}: its bounds must be constants")
        places: list[np.ndarray | None] = [None] * len(shape)
        for axis, part in found.items():
            index = np.arange(shape[axis])[part]
            places[axis] = None if len(index) == shape[axis] and part.step == 1 else index
        return Pick(tuple(places))


class Split(Op):
    """An axis cut into parts, one per output."""

    name = "Split"
    domain = ""
    moves = True
    attributes = (Attr("axis", "i", 0), Attr("dims", "ints", None), Attr("split", "ints", None))

    def bind(self, bound: Bound) -> Any:
        """Return the cutter; the sizes are `split`, a second input, a list `dims`, or equal."""
        from simulator.kernels import Split as Kernel

        shape, a = bound.source_shapes[0], bound.attrs
        axis, count = int(a["axis"]) % len(shape), len(bound.node.outputs)
        each = -(-shape[axis] // count)
        equal = [each] * (count - 1) + [shape[axis] - each * (count - 1)]
        second = bound.consts[1].reshape(-1).tolist() if 1 in bound.consts else None
        listed = a["dims"] if isinstance(a["dims"], list) else None
        return Kernel(axis, a["split"] or second or listed or equal)


class Gather(Op):
    """A choice along an axis by a constant index, or rows of a constant table by a computed one."""

    name = "Gather"
    domain = ""
    moves = True
    factor = "fixed"
    floats = (("", "Gather"),)
    attributes = (Attr("axis", "i", 0), Attr("parameter_bits", "i", 8), Attr("scale_x", "f", None),
                  Attr("scale_o", "f", None))  # fmt: skip

    def data(self, node: ir.Node) -> list[int]:
        """None for an embedding."""
        return [] if ir.const(node.inputs[0]) is not None else [0]

    def operands(self, node: ir.Node) -> list[int]:
        """The index of an embedding."""
        return self.data(node) or [1]

    def reject(self, node: ir.Node) -> str | None:
        """Rows by an int64 index, or a constant index of at most one axis; not along the batch."""
        table, index = (ir.const(value) for value in node.inputs)
        if table is not None and table.dtype.kind == "f":
            if ir.attr(node, "axis", 0) or table.ndim != 2:
                return "its table is not one of rows"
            kind = getattr(node.inputs[1].dtype, "name", "") if node.inputs[1] is not None else ""
            return None if index is None and kind == "INT64" else "its index is not a computed int64"
        if index is None or index.ndim > 1:
            return "its index is computed at run time" if index is None else "its index has more than one axis"
        shape = ir.shape(node.inputs[0])
        axis = ir.attr(node, "axis", 0) % len(shape) if shape else 0
        return "it chooses along the batch axis" if not shape or axis == 0 or shape[axis] is None else None

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """An embedding's output has a scale of its own."""
        return super().ties(node, row) if self.data(node) else []

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the table quantized, or with the index as a list; the axis of a single index is squeezed away."""
        if not self.data(node):
            q = low.written(node)
            attrs = {"axis": 0, "parameter_bits": q.bits, "scale_x": q.scale, "scale_o": q.scale}
            low.emit(self, node, [low.constant(node, 0, q), low.real(node, 1)], attrs)
            return
        shape, index = list(ir.shape(node.inputs[0]) or ()), ir.const(node.inputs[1])
        assert index is not None
        axis = ir.attr(node, "axis", 0) % len(shape)
        places = np.where(index < 0, index + int(shape[axis] or 0), index).astype(np.int64).reshape(-1)
        inputs = [low.integer(node, 0), low.array(f"{node.outputs[0].name}_index", places)]
        if index.ndim:
            low.emit(self, node, inputs, {"axis": axis}, domain="")
            return
        shape[axis] = 1
        one = low.insert(self.name, node, "one", inputs, {"axis": axis}, shape, low.read(node, 0), domain="")
        low.emit(Squeeze(), node, [one], {"axes": [axis]}, domain="")

    def bind(self, bound: Bound) -> Any:
        """Return the kernel of the one or the other."""
        from simulator.kernels import Gather as Kernel
        from simulator.kernels import Lookup

        axis, index = int(bound.attrs["axis"]), bound.consts.get(1)
        if 0 in bound.consts:
            if axis or index is not None:
                raise ModelError(f"{bound.where}: a constant table is read by rows and by a computed index only")
            return Lookup(bound.constant(0, "int8 int16", "table"))
        if index is None:
            raise ModelError(f"{bound.where}: its index must be a constant")
        size = bound.source_shapes[0][axis]
        return Kernel(axis % len(bound.source_shapes[0]), np.where(index < 0, index + size, index))

    def out_scale(self, attrs: Any, scales: Any) -> float | None:
        """The table's, or the input's."""
        return super().out_scale({"scale_o": attrs["scale_o"] or attrs["scale_x"]}, scales)


class ArgMax(Op):
    """The largest integer of a single row and its first position, as the vendor's graphs have them: [2, 1, .., 1]."""

    name = "ArgMax"
    domain = ""
    attributes = (Attr("axis", "i", 0),)

    def bind(self, bound: Bound) -> Any:
        """Return the search."""
        from simulator.kernels import ArgMax as Kernel

        return Kernel(int(bound.attrs["axis"]))
