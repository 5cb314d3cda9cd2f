"""Which axis of a graph's inputs counts the samples: axis 0, but for what recurrent layers read time first.

ONNX's recurrent operators take x [T, N, I] and states [D, N, H]. An input that reaches one of them through operators
that only move or choose data keeps its samples where the layer has them. Graphs in which these operators are gone
carry the answer in their metadata (`KEY`). Knows nothing of data and runners.
"""

from __future__ import annotations

import json

from . import ir

__all__ = ["KEY", "batch_axes", "note_batch_axes", "open_axis"]

#: Metadata key of {input: axis} as JSON, for the inputs whose samples are not on axis 0.
KEY = "lingeronnx.batch_axes"

_RECURRENT = ("LSTM", "GRU", "RNN")
_STATES = (5, 6)
_SAME = (
    "Abs", "Cast", "Clip", "Dropout", "Elu", "Gather", "Identity", "LeakyRelu", "MatMul", "Neg", "Relu", "Sigmoid",
    "Slice", "Split", "Sqrt", "Tanh", "Unsqueeze", "Squeeze", "Transpose", "Add", "Sub", "Mul", "Div",
)  # fmt: skip


def batch_axes(model: ir.Graph) -> dict[str, int]:
    """Return {input: axis} for the inputs of `model` whose samples are not counted on axis 0."""
    held = model.metadata_props.get(KEY)
    if held is not None:
        return {str(name): int(axis) for name, axis in json.loads(held).items()}
    found: dict[str, set[int]] = {}
    for node in model.graph:
        if node.domain or node.op_type not in _RECURRENT:
            continue
        first = int(ir.attr(node, "layout", 0))
        for index in (0, *_STATES):
            value = node.inputs[index] if len(node.inputs) > index else None
            entry = _traced(value, 0 if first else 1)
            if entry is not None:
                found.setdefault(entry[0], set()).add(entry[1])
    return {name: axes.pop() for name, axes in found.items() if len(axes) == 1 and axes != {0}}


def note_batch_axes(model: ir.Graph) -> None:
    """Write what `batch_axes` finds into the metadata of `model`, so that it survives the recurrent operators."""
    axes = batch_axes(model)
    if axes:
        model.metadata_props[KEY] = json.dumps(axes)


def open_axis(value: ir.Value) -> int:
    """Return the only axis of open size of a float tensor, which counts its samples; 0 where there is no such axis."""
    open_ones = [axis for axis, size in enumerate(ir.shape(value) or ()) if size is None]
    return open_ones[0] if len(open_ones) == 1 and value.dtype is not None and value.dtype.name == "FLOAT" else 0


def _traced(value: ir.Value | None, axis: int) -> tuple[str, int] | None:
    """Return (graph input, its axis) that axis `axis` of `value` is; None where that cannot be told."""
    while value is not None and not value.is_graph_input():
        node = ir.producer(value)
        if node is None or node.domain or node.op_type not in _SAME:
            return None
        moved = _before(node, axis)
        if moved is None:
            return None
        axis, value = moved, node.inputs[0]
    return None if value is None or value.const_value is not None else (str(value.name), axis)


def _before(node: ir.Node, axis: int) -> int | None:
    """Return which axis of the first input of `node` becomes axis `axis` of its output."""
    if node.op_type == "Transpose":
        perm = ir.attr(node, "perm")
        return None if perm is None else int(perm[axis])
    if node.op_type == "Gather":
        index, along = ir.const(node.inputs[1]), int(ir.attr(node, "axis", 0))
        if index is None or along < 0 or along <= axis < along + index.ndim:
            return None
        return axis if axis < along else axis - index.ndim + 1
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes = ir.axes(node)
        places = None if axes is None else sorted(axes)
        if places is None or min(places) < 0:
            return None
        if node.op_type == "Unsqueeze":
            return None if axis in places else axis - sum(p < axis for p in places)
        for place in places:
            axis += place <= axis
        return axis
    if node.op_type in ("Add", "Sub", "Mul", "Div", "MatMul") and ir.const(node.inputs[1]) is None:
        return None
    return axis
