"""Find the batch axis of each graph input.

The batch axis is axis 0, except for inputs of recurrent layers and for other states:

- ONNX's recurrent operators read x [T, N, I] and states [D, N, H]. An input that reaches one of
  them through operators that only move or select data has its batch axis where the layer has it.
- A file may name its dimensions: [2, batch, 128] next to [batch, 576].
- Without names, a state [2, ?, 128] next to [?, 576] has its batch where the size is open.
- In a file exported for one sample, a cache [2, 1, 16, 33] can only have its batch where the size
  is 1.
- A scalar has no batch axis.

The user's setting takes precedence. Passes that remove this evidence store the result in the
metadata (`BATCH_AXES_KEY`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..common.errors import ConfigError, ModelError, suggest_nearest
from . import float_ops, ir

__all__ = [
    "BATCH_AXES_KEY",
    "guess_batch_axis",
    "infer_batch_axes",
    "set_batch_axes",
    "store_inferred_batch_axes",
]

#: Metadata key of {input: axis or null} as JSON, for the inputs whose batch axis is not axis 0.
BATCH_AXES_KEY = "lingeronnx.batch_axes"

_STATE_INPUTS = (5, 6)
#: Operators that map each axis of input 0 to an axis of the output.
_AXIS_PRESERVING_OPS = {
    *float_ops.UNARY_ELEMENTWISE_OPS,
    *float_ops.IDENTITY_OPS,
    "Cast",
    *float_ops.AFFINE_OPS,
    "MatMul",
    *float_ops.SELECTION_OPS,
    *float_ops.AXIS_MOVE_OPS,
}


def infer_batch_axes(model: ir.Model) -> dict[str, int | None]:
    """Return the batch axis of each graph input that is not an initializer and whose axis is not 0.

    The mapping is input name -> axis; None stands for an input without a batch axis. Axes stored in
    the metadata of `model` are returned as they are, and nothing is inferred. Raises ModelError if
    these are malformed.
    """
    inputs = [value for value in model.graph.inputs if value.const_value is None]
    ranks = {str(value.name): None if value.shape is None else len(value.shape) for value in inputs}
    if BATCH_AXES_KEY in model.metadata_props:
        return _read_batch_axes_metadata(model, ranks)
    traced = _infer_axes_from_recurrent(model).items()
    axes: dict[str, int | None] = {
        name: axis for name, axis in traced if _is_valid_axis(axis, ranks.get(name))
    }
    batch_sizes = [_dim_size(value, axes.get(str(value.name)) or 0) for value in inputs]
    symbols = {size for size in batch_sizes if isinstance(size, str)}
    is_single_sample = any(_dim_size(value, 0) == 1 for value in inputs)
    has_open_batch = any(
        size is None and value.shape for value, size in zip(inputs, batch_sizes, strict=True)
    )
    for value in inputs:
        name = str(value.name)
        axes[name] = _infer_input_axis(
            value, axes.get(name), symbols, is_single_sample, has_open_batch
        )
    return {name: axis for name, axis in axes.items() if axis != 0}


def _infer_input_axis(
    value: ir.Value,
    traced_axis: int | None,
    symbols: set[str],
    is_single_sample: bool,
    has_open_batch: bool,
) -> int | None:
    """Return the batch axis of an input, or None if it has none.

    A scalar has none. If nothing was traced and a batch size is open without a name, the axis may
    be that of `_find_open_state_axis`. Otherwise it is `traced_axis`, or 0; but if that axis has a
    fixed size other than 1, and either the model was exported for one sample or nothing was traced
    and other inputs have symbolic batch sizes, the axis is guessed by `_guess_batch_axis`.

    Parameters
    ----------
    value
        The input.
    traced_axis
        Its axis according to recurrent layers, or None if it reaches none.
    symbols
        Names of the symbolic batch sizes of all inputs.
    is_single_sample
        Whether the model was exported for one sample: axis 0 of some input has size 1.
    has_open_batch
        Whether the batch size of some input is open and has no name.
    """
    if value.shape is not None and not value.shape:
        return None
    if traced_axis is None and has_open_batch:
        open_axis = _find_open_state_axis(value)
        if open_axis is not None:
            return open_axis
    axis = traced_axis or 0
    size = _dim_size(value, axis)
    has_evidence = is_single_sample or (traced_axis is None and bool(symbols))
    if has_evidence and isinstance(size, int) and size != 1:
        return _guess_batch_axis(value, symbols)
    return axis


def _read_batch_axes_metadata(
    model: ir.Model, ranks: Mapping[str, int | None]
) -> dict[str, int | None]:
    """Read the batch axes stored in the metadata: input name -> axis; None: no batch axis.

    Parameters
    ----------
    ranks
        Rank of each input by name; None or a missing name: unknown.

    Raises
    ------
    ModelError
        If the metadata is not a JSON object, or an axis is neither null nor an integer from 0 to
        the rank - 1.
    """
    axes: dict[str, int | None] = {}
    for name, axis in ir.read_json_metadata(model, BATCH_AXES_KEY).items():
        is_valid = isinstance(axis, int) and _is_valid_axis(axis, ranks.get(name))
        if axis is not None and not is_valid:
            raise ModelError(
                f"metadata '{BATCH_AXES_KEY}': the axis {axis!r:.40} of '{name}' does not exist; "
                "the file is malformed"
            )
        axes[name] = axis
    return axes


def _is_valid_axis(axis: int, rank: int | None) -> bool:
    """Whether `axis` is at least 0 and below `rank`; a rank of None or 0 counts as unknown."""
    return axis >= 0 and (not rank or axis < rank)


def _dim_size(value: ir.Value, axis: int) -> int | str | None:
    """Return the size of `axis` of `value`: a number, or a symbolic name.

    None if the shape or the dimension is unknown, or `axis` is not below the rank.
    """
    if value.shape is None or len(value.shape) <= axis:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else size.value


def _find_open_state_axis(value: ir.Value) -> int | None:
    """Return the only axis of open size without a name, of an input like [layers, ?, features].

    None for fewer than three axes, several open ones, or if axis 0 is open or of size 1.
    """
    sizes = [_dim_size(value, axis) for axis in range(len(value.shape or ()))]
    if len(sizes) < 3 or sizes[0] == 1 or sizes.count(None) != 1 or sizes[0] is None:
        return None
    return sizes.index(None)


def _guess_batch_axis(value: ir.Value, symbols: set[str]) -> int | None:
    """Guess the batch axis of an input whose axis 0 has a fixed size.

    This is the first axis whose symbolic size is in `symbols`. If there is none and `symbols` is
    empty, the first axis of size 1. None if there is no such axis.
    """
    sizes = [_dim_size(value, axis) for axis in range(len(value.shape or ()))]
    for axis, size in enumerate(sizes):
        if isinstance(size, str) and size in symbols:
            return axis
    return sizes.index(1) if 1 in sizes and not symbols else None


def set_batch_axes(model: ir.Model, overrides: Mapping[str, int | None]) -> None:
    """Store the user's batch axes in the metadata of `model`, together with the inferred ones.

    `overrides` maps an input name to its axis, or to None for no batch axis; they take precedence.
    An empty mapping changes nothing. Raises ConfigError for an input that the model does not have
    or an axis outside 0 to rank - 1, before anything is stored.
    """
    if not overrides:
        return
    inputs = {str(value.name): value for value in model.graph.inputs if value.const_value is None}
    for name, axis in overrides.items():
        if name not in inputs:
            raise ConfigError(
                f"batch axis of '{name}': the model has no such "
                f"input{suggest_nearest(name, inputs)}; inputs are {', '.join(inputs)}"
            )
        rank = len(ir.get_shape(inputs[name]) or ())
        if axis is not None and not 0 <= axis < rank:
            raise ConfigError(
                f"batch axis {axis} of '{name}': the input has {rank} axes; give 0 to {rank - 1}"
            )
    axes = {**infer_batch_axes(model), **overrides}
    other_axes = {name: axis for name, axis in axes.items() if axis != 0}
    model.metadata_props[BATCH_AXES_KEY] = json.dumps(other_axes)


def _infer_axes_from_recurrent(model: ir.Model) -> dict[str, int]:
    """Map the name of each graph input that reaches recurrent layers to its batch axis.

    The axis is traced back from the data and initial states (inputs 0, 5 and 6) of these layers,
    where it is 0 if `layout` is not 0, else 1. Inputs for which several layers give different axes
    are left out.
    """
    axes_by_input: dict[str, set[int]] = {}
    for node in model.graph:
        if node.domain or node.op_type not in float_ops.RECURRENT_OPS:
            continue
        is_batch_first = int(ir.get_attr(node, "layout", 0)) != 0
        for index in (0, *_STATE_INPUTS):
            value = node.inputs[index] if len(node.inputs) > index else None
            traced = _trace_axis_to_input(value, 0 if is_batch_first else 1)
            if traced is not None:
                name, axis = traced
                axes_by_input.setdefault(name, set()).add(axis)
    return {name: axes.pop() for name, axes in axes_by_input.items() if len(axes) == 1}


def store_inferred_batch_axes(model: ir.Model) -> None:
    """Store the inferred batch axes that are not 0 in the metadata of `model`, in place.

    For passes that remove recurrent operators, which are evidence of these axes. If all axes are 0,
    nothing is stored.
    """
    axes = infer_batch_axes(model)
    if axes:
        model.metadata_props[BATCH_AXES_KEY] = json.dumps(axes)


def guess_batch_axis(value: ir.Value) -> int:
    """Return the only axis of unknown size of a float32 tensor, which is its batch axis.

    Returns 0 if no axis or several have an unknown size, or the tensor is not float32.
    """
    if value.dtype is None or value.dtype.name != "FLOAT":
        return 0
    dynamic_axes = [axis for axis, size in enumerate(ir.get_shape(value) or ()) if size is None]
    return dynamic_axes[0] if len(dynamic_axes) == 1 else 0


def _trace_axis_to_input(value: ir.Value | None, axis: int) -> tuple[str, int] | None:
    """Trace an axis of `value` back to a graph input, along input 0 of each producer.

    Returns (input name, axis of the input). None if `value` is None, a constant is reached, or a
    node on the way does not map each axis of input 0 to one of its output (as elementwise
    operators, Transpose or MatMul do), or has no input axis for it.
    """
    while value is not None and not value.is_graph_input():
        node = ir.producer(value)
        if node is None or node.domain or node.op_type not in _AXIS_PRESERVING_OPS:
            return None
        input_axis = _map_axis_to_input(node, axis)
        if input_axis is None:
            return None
        axis, value = input_axis, node.inputs[0] if node.inputs else None
    return None if value is None or value.const_value is not None else (str(value.name), axis)


def _second_input(node: ir.Node) -> ir.Value | None:
    """Return input 1 of `node`, or None if it is absent or omitted."""
    return node.inputs[1] if len(node.inputs) > 1 else None


def _map_axis_to_input(node: ir.Node, axis: int) -> int | None:
    """Return the axis of input 0 that becomes `axis` of the output of `node`; None if unknown.

    It stays the same except in Transpose, Gather, Squeeze and Unsqueeze. None for an affine
    operator or MatMul whose second operand is not constant, and for a Transpose without a complete
    `perm`.
    """
    if node.op_type == "Transpose":
        perm = ir.get_attr(node, "perm")
        if not isinstance(perm, list) or sorted(perm) != list(range(max(len(perm), axis + 1))):
            return None
        return int(perm[axis])
    if node.op_type == "Gather":
        return _map_gather_axis_to_input(node, axis)
    if node.op_type in ("Unsqueeze", "Squeeze"):
        return _map_unit_axes_to_input(node, axis)
    has_two_operands = node.op_type in (*float_ops.AFFINE_OPS, "MatMul")
    if has_two_operands and ir.const_value(_second_input(node)) is None:
        return None
    return axis


def _map_gather_axis_to_input(node: ir.Node, axis: int) -> int | None:
    """Return the axis of input 0 of a Gather that becomes `axis` of its output; None if unknown.

    None for an axis of the indices, and if these are not constant or the axis is negative.
    """
    indices, gather_axis = ir.const_value(_second_input(node)), int(ir.get_attr(node, "axis", 0))
    if indices is None or gather_axis < 0:
        return None
    if axis < gather_axis:
        return axis
    return axis - indices.ndim + 1 if axis >= gather_axis + indices.ndim else None


def _map_unit_axes_to_input(node: ir.Node, axis: int) -> int | None:
    """Return the axis of input 0 of a Squeeze or Unsqueeze that becomes `axis` of its output.

    None for the axis that an Unsqueeze adds, and if `axes` are unknown or negative.
    """
    axes = ir.get_axes(node)
    if axes is None or min(axes) < 0:
        return None
    if node.op_type == "Unsqueeze":
        return None if axis in axes else axis - sum(unit_axis < axis for unit_axis in axes)
    for unit_axis in sorted(axes):
        axis += unit_axis <= axis
    return axis
