"""Which axis of a graph's inputs counts the samples.

Axis 0, but for what recurrent layers read and for other states.
ONNX's recurrent operators take x [T, N, I] and states [D, N, H]. An input that reaches one of them
through operators that only move or choose data keeps its samples where the layer has them. A file
may also name the sizes: [2, batch, 128] beside [batch, 576]. Where the file is made for one sample,
a cache [2, 1, 16, 33] can only have it where the size is 1. A single number has no samples. What a
user says wins. Graphs in which the evidence is gone carry the answer in their metadata
(`BATCH_AXES_KEY`). Knows nothing of data and runners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import ConfigError, ModelError, suggest_nearest
from . import ir, operators

__all__ = [
    "BATCH_AXES_KEY",
    "find_dynamic_axis",
    "infer_batch_axes",
    "set_batch_axes",
    "store_inferred_batch_axes",
]

#: Metadata key of {input: axis or null} as JSON, for the inputs whose samples are not on axis 0.
BATCH_AXES_KEY = "lingeronnx.batch_axes"

_STATE_INPUTS = (5, 6)
#: An axis of what they read is an axis of what they write.
_AXIS_PRESERVING_OPS = {
    *operators.UNARY_ELEMENTWISE_OPS,
    *operators.IDENTITY_OPS,
    "Cast",
    *operators.AFFINE_OPS,
    "MatMul",
    *operators.SELECTION_OPS,
    *operators.AXIS_MOVE_OPS,
}


def infer_batch_axes(model: ir.Model) -> dict[str, int | None]:
    """Return {input: axis} for the inputs of `model` whose samples are not counted on axis 0.

    None: it has none.
    """
    inputs = [value for value in model.graph.inputs if value.const_value is None]
    ranks = {str(value.name): None if value.shape is None else len(value.shape) for value in inputs}
    if BATCH_AXES_KEY in model.metadata_props:
        return _read_batch_axes_metadata(model, ranks)
    traced = _infer_axes_from_recurrent(model).items()
    axes: dict[str, int | None] = {
        name: axis for name, axis in traced if _is_valid_axis(axis, ranks.get(name))
    }
    symbols = {_dim_size(value, axes.get(str(value.name)) or 0) for value in inputs if value.shape}
    symbols = {size for size in symbols if isinstance(size, str)}
    ones = any(_dim_size(value, 0) == 1 for value in inputs if value.shape)
    for value in inputs:
        name = str(value.name)
        if value.shape is not None and not value.shape:
            axes[name] = None
        elif (ones if name in axes else symbols or ones) and _is_fixed_batch(
            _dim_size(value, axes.get(name) or 0)
        ):
            axes[name] = _guess_batch_axis(value, symbols)
    return {name: axis for name, axis in axes.items() if axis != 0}


def _read_batch_axes_metadata(
    model: ir.Model, ranks: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Return what the metadata say; ModelError where that is no axis of an input."""
    found: dict[str, int | None] = {}
    for name, axis in ir.read_json_metadata(model, BATCH_AXES_KEY).items():
        if axis is not None and not (
            isinstance(axis, int) and _is_valid_axis(axis, ranks.get(name))
        ):
            raise ModelError(
                f"the metadata '{BATCH_AXES_KEY}' give '{name}' the axis {axis!r:.40}, which it "
                "has not; the file is "
                "damaged"
            )
        found[name] = axis
    return found


def _is_valid_axis(axis: int, rank: int | None) -> bool:
    """Whether an input has this axis, as far as its rank is known."""
    return axis >= 0 and (not rank or axis < rank)


def _dim_size(value: ir.Value, axis: int) -> int | str | None:
    """Return the size of an axis: a number, the name the file gives it, or None."""
    if value.shape is None or len(value.shape) <= axis:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else size.value


def _is_fixed_batch(size: int | str | None) -> bool:
    """Whether the file fixes a number of samples, and not to 1."""
    return isinstance(size, int) and size != 1


def _guess_batch_axis(value: ir.Value, symbols: set[int | str | None]) -> int | None:
    """Return the axis that counts the samples of an input whose axis 0 has a fixed size.

    None where there is none.
    That is the one of the same name as other inputs' batch, else where nothing is open the first of
    size 1.
    """
    sizes = [_dim_size(value, axis) for axis in range(len(value.shape or ()))]
    named = [axis for axis, size in enumerate(sizes) if size in symbols and isinstance(size, str)]
    if named:
        return named[0]
    return sizes.index(1) if 1 in sizes and not symbols else None


def set_batch_axes(model: ir.Model, overrides: Mapping[str, int | None]) -> None:
    """Write what the user says of the axes, beside what is found, into the metadata of `model`.

    Raises ConfigError for an input or an axis that the model does not have.
    """
    if not overrides:
        return
    inputs = {str(value.name): value for value in model.graph.inputs if value.const_value is None}
    for name, axis in overrides.items():
        if name not in inputs:
            raise ConfigError(
                f"batch axis of '{name}': the model has no such "
                f"input{suggest_nearest(name, inputs)}; "
                f"inputs are {', '.join(inputs)}"
            )
        rank = len(ir.get_shape(inputs[name]) or ())
        if axis is not None and not 0 <= axis < rank:
            raise ConfigError(
                f"batch axis {axis} of '{name}': the input has {rank} axes; give 0 to {rank - 1}"
            )
    axes = {
        name: axis for name, axis in {**infer_batch_axes(model), **overrides}.items() if axis != 0
    }
    model.metadata_props[BATCH_AXES_KEY] = json.dumps(axes)


def _infer_axes_from_recurrent(model: ir.Model) -> dict[str, int]:
    """Return {input: axis} of what reaches a recurrent layer."""
    axes_of: dict[str, set[int]] = {}
    for node in model.graph:
        if node.domain or node.op_type not in operators.RECURRENT_OPS:
            continue
        first = int(ir.get_attr(node, "layout", 0))
        for index in (0, *_STATE_INPUTS):
            value = node.inputs[index] if len(node.inputs) > index else None
            entry = _trace_axis_to_input(value, 0 if first else 1)
            if entry is not None:
                axes_of.setdefault(entry[0], set()).add(entry[1])
    return {name: axes.pop() for name, axes in axes_of.items() if len(axes) == 1}


def store_inferred_batch_axes(model: ir.Model) -> None:
    """Write what `infer_batch_axes` finds into the metadata of `model`, so that it survives the recurrent operators."""
    axes = infer_batch_axes(model)
    if axes:
        model.metadata_props[BATCH_AXES_KEY] = json.dumps(axes)


def find_dynamic_axis(value: ir.Value) -> int:
    """Return the only axis of open size of a float tensor, which counts its samples.

    0 where there is no such axis.
    """
    open_ones = [axis for axis, size in enumerate(ir.get_shape(value) or ()) if size is None]
    return (
        open_ones[0]
        if len(open_ones) == 1 and value.dtype is not None and value.dtype.name == "FLOAT"
        else 0
    )


def _trace_axis_to_input(value: ir.Value | None, axis: int) -> tuple[str, int] | None:
    """Return (graph input, its axis) that axis `axis` of `value` is.

    None where that cannot be told.
    """
    while value is not None and not value.is_graph_input():
        node = ir.producer(value)
        if node is None or node.domain or node.op_type not in _AXIS_PRESERVING_OPS:
            return None
        moved = _map_axis_to_input(node, axis)
        if moved is None:
            return None
        axis, value = moved, node.inputs[0] if node.inputs else None
    return None if value is None or value.const_value is not None else (str(value.name), axis)


def _second_input(node: ir.Node) -> ir.Value | None:
    return node.inputs[1] if len(node.inputs) > 1 else None


def _map_axis_to_input(node: ir.Node, axis: int) -> int | None:
    """Return which axis of the first input of `node` becomes axis `axis` of its output."""
    if node.op_type == "Transpose":
        perm = ir.get_attr(node, "perm")
        return (
            int(perm[axis])
            if isinstance(perm, list) and sorted(perm) == list(range(max(len(perm), axis + 1)))
            else None
        )
    if node.op_type == "Gather":
        index, along = ir.const_value(_second_input(node)), int(ir.get_attr(node, "axis", 0))
        if index is None or along < 0 or along <= axis < along + index.ndim:
            return None
        return axis if axis < along else axis - index.ndim + 1
    if node.op_type in ("Unsqueeze", "Squeeze"):
        axes = ir.get_axes(node)
        places = None if axes is None else sorted(axes)
        if places is None or min(places) < 0:
            return None
        if node.op_type == "Unsqueeze":
            return None if axis in places else axis - sum(p < axis for p in places)
        for place in places:
            axis += place <= axis
        return axis
    if (
        node.op_type in (*operators.AFFINE_OPS, "MatMul")
        and ir.const_value(_second_input(node)) is None
    ):
        return None
    return axis
