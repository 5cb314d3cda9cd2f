"""Trace shapes by a run, and replace known sizes by constants.

Every tensor gets its actual shape, with the batch axis as `N`. onnx's inference cannot handle
computed targets; a run can. Two batch sizes reveal the batch axes, if the model accepts any batch
size.

``Shape(x)`` becomes a constant if all dimensions are numbers; otherwise ``Gather`` and ``Slice`` of
it do if they only select known dimensions. The same applies to ``Size(x)``. Exporters write such
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ....common.errors import ModelError
from ....ir import ir
from ....runtime.runners import FloatRunner, ShapeRunner, get_input_specs
from .._pass import PassResult, SkipReason

_BATCH_SYMBOL = "N"

_Shapes = dict[str, tuple[int, ...]]


def trace_shapes(model: ir.Model, feed: Mapping[str, np.ndarray]) -> None:
    """Set shape and type of every tensor of `model` in place, from runs on `feed` (one sample).

    A run on two samples tells the batch axis: a size that differs on axis 0 becomes the symbol N,
    on other axes None. Axis 0 is marked as folded if its sizes are not 1 and 2. Known types stay.
    """
    traced = _run_traces(model, feed)
    for value in ir.iter_values(model):
        shape = traced.single.get(str(value.name))
        if shape is None:
            continue
        doubled_shape = None
        if traced.doubled is not None:
            doubled_shape = traced.doubled.get(str(value.name))
        dims: list[int | str | None] = list(shape)
        if doubled_shape is not None and len(doubled_shape) == len(shape):
            dims = _merge_dims(shape, doubled_shape)
            is_batched = bool(dims) and dims[0] == _BATCH_SYMBOL
            is_folded = is_batched and (shape[0], doubled_shape[0]) != (1, 2)
            ir.mark_folded_batch(value, is_folded)
        value.shape = ir.Shape(dims)
        if value.dtype is None:
            value.type = ir.TensorType(ir.DataType.from_numpy(traced.dtypes[str(value.name)]))


def _merge_dims(shape: tuple[int, ...], doubled_shape: tuple[int, ...]) -> list[int | str | None]:
    """Return the dimensions of a tensor from its shapes with the samples once and twice.

    Equal sizes stay; a size that differs becomes the batch symbol on axis 0, and None (unknown) on
    other axes.
    """
    dims: list[int | str | None] = []
    for axis, (size, doubled_size) in enumerate(zip(shape, doubled_shape, strict=True)):
        if size == doubled_size:
            dims.append(size)
        else:
            dims.append(_BATCH_SYMBOL if axis == 0 else None)
    return dims


class _TracedShapes(NamedTuple):
    """Shapes by tensor name of runs on one sample, and on two samples (None if not possible).

    `dtypes` has the computed element types; it is empty if the model declares all types.
    """

    single: _Shapes
    doubled: _Shapes | None
    dtypes: dict[str, np.dtype]


def _run_traces(model: ir.Model, feed: Mapping[str, np.ndarray]) -> _TracedShapes:
    """Run `model` on `feed`, and on `feed` twice as a batch.

    Return the shapes of all tensors in both. If all types can be inferred, only shapes are traced;
    otherwise the tensors are computed and their types recorded. The second run is None if the batch
    is fixed or the model fails on it. Infers missing types of `model` in place.
    """
    doubled_feed = _double_feed(model, feed)
    ir.infer_types(model)
    if all(value.dtype is not None for value in ir.iter_values(model)):
        try:
            runner = ShapeRunner(model)
        except ModelError:  # the float runner below succeeds, or reports the problem
            pass
        else:
            single = runner.run(feed)
            return _TracedShapes(single, _run_if_possible(runner.run, doubled_feed), {})
    float_runner = FloatRunner(model)
    dtypes: dict[str, np.dtype] = {}

    def run(arrays: Mapping[str, np.ndarray]) -> _Shapes:
        """Run the model on `arrays`; return the shapes by tensor, and record the types."""
        shapes = {}
        for name, array, _ in float_runner.run(arrays):
            shapes[name], dtypes[name] = array.shape, array.dtype
        return shapes

    single = run(feed)
    return _TracedShapes(single, _run_if_possible(run, doubled_feed), dtypes)


def _run_if_possible(
    run: Callable[[Mapping[str, np.ndarray]], _Shapes], feed: Mapping[str, np.ndarray] | None
) -> _Shapes | None:
    """Return ``run(feed)``, shapes by tensor name.

    None if `feed` is None or a ModelError occurs.
    """
    try:
        return None if feed is None else run(feed)
    except ModelError:
        return None


def _double_feed(model: ir.Model, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return input name -> array with the samples of `feed` twice along the batch axis.

    None if an input with a batch axis takes a fixed batch size.
    """
    specs = {spec.name: spec for spec in get_input_specs(model)}
    for spec in specs.values():
        if spec.axis is not None and (spec.is_single_sample or not spec.accepts_any_batch):
            return None
    return {name: specs[name].concatenate([array, array]) for name, array in feed.items()}


def is_fully_shaped(model: ir.Model) -> bool:
    """Whether all tensors of `model` have an element type and known or symbolic sizes.

    False if the batch is folded with other axes anywhere: then the tensors that a pass created must
    be traced too.
    """
    for value in ir.iter_values(model):
        if value.shape is None or value.dtype is None or ir.has_folded_batch(value):
            return False
        if not all(isinstance(size, int) or size.value is not None for size in value.shape):
            return False
    return True


def fold_known_shapes(model: ir.Model) -> PassResult:
    """Replace Shape and Size nodes of `model` with known results by constants, in place.

    If a Shape has unknown sizes, only consumers that select known ones are replaced. Changes are
    counted by removed nodes; Shape and Size nodes that remain are listed as skipped.
    """
    changes = 0
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Shape", "Size") or node.graph is None:
            continue
        dims = ir.get_shape(node.inputs[0])
        if dims is None:
            continue
        if node.op_type == "Shape":
            dims = dims[slice(ir.get_attr(node, "start", 0), ir.get_attr(node, "end"))]
            changes += _fold_shape(model, node, dims)
        elif None not in dims:
            size = np.array(np.prod(np.array(dims, np.int64)), np.int64)
            changes += _replace_with_constant(model, node, size)
    remaining = [node for node in model.graph if ir.is_standard_op(node, "Shape", "Size")]
    return PassResult(changes, [SkipReason(node, _explain_unchanged(node)) for node in remaining])


def _fold_shape(model: ir.Model, node: ir.Node, dims: tuple[int | None, ...]) -> int:
    """Replace a Shape node by a constant of `dims`; return the number of removed nodes.

    If a dimension is unknown (None), only consumers are replaced (`_fold_selections`).
    """
    if None not in dims:
        return _replace_with_constant(model, node, np.array(dims, np.int64))
    return _fold_selections(model, node.outputs[0], dims, np.dtype(np.int64))


def _fold_selections(
    model: ir.Model, sizes: ir.Value, dims: tuple[int | None, ...], dtype: np.dtype
) -> int:
    """Replace each Gather or Slice that selects known elements of `sizes` by a constant.

    `sizes` are `dims` in the type `dtype`; a Cast to another integer type is looked through.
    Returns the number of removed nodes. Only nodes of the same graph are replaced.
    """
    changes = 0
    for use in list(sizes.uses()):
        if use.idx != 0 or use.node.graph is not model.graph:
            continue
        if ir.is_standard_op(use.node, "Cast"):
            cast_dtype = ir.DataType(ir.get_attr(use.node, "to")).numpy()
            if cast_dtype.kind == "i":
                changes += _fold_selections(model, use.node.outputs[0], dims, cast_dtype)
            continue
        selected = _select_known_dims(use.node, dims)
        if selected is not None:
            changes += _replace_with_constant(model, use.node, selected.astype(dtype))
    return changes


def _explain_unchanged(node: ir.Node) -> str:
    """Return the reason why the Shape or Size `node` is not replaced.

    It is a graph output, the rank is not known, or an unknown dimension is used.
    """
    if node.outputs[0].is_graph_output():
        return "it is an output of the graph"
    if ir.get_shape(node.inputs[0]) is None:
        return "the shape is not known"
    return "a size that is not known before the run is used"


def _select_known_dims(node: ir.Node, dims: tuple[int | None, ...]) -> np.ndarray | None:
    """Return the elements of `dims` that `node`, a Gather or Slice of a Shape, selects, as int64.

    None for another operator, for a selection that is not constant, or if one of the elements is
    unknown.
    """
    if node.domain:
        return None
    axes: np.ndarray | None = None
    if node.op_type == "Gather":
        axes = _gathered_positions(node, len(dims))
    elif node.op_type == "Slice":
        axes = _sliced_positions(node, len(dims))
    if axes is None:
        return None
    selected = [dims[axis] for axis in axes.reshape(-1)]
    if None in selected:
        return None
    return np.array(selected, np.int64).reshape(axes.shape)


def _gathered_positions(node: ir.Node, length: int) -> np.ndarray | None:
    """Return the indices of a Gather from `length` elements, with negative ones made positive.

    None if the indices are computed at run time, empty, or out of range.
    """
    indices = ir.const_value(node.inputs[1])
    if indices is None or not indices.size:
        return None
    if (indices < -length).any() or (indices >= length).any():
        return None
    return np.asarray(np.arange(length)[indices])


def _sliced_positions(node: ir.Node, length: int) -> np.ndarray | None:
    """Return the positions that a Slice selects from `length` elements, or None if unknown.

    None also for a negative step and for several axes.
    """
    arrays = [ir.const_value(value) for value in node.inputs[1:]]
    bounds = [int(array.reshape(())) for array in arrays if array is not None and array.size == 1]
    if len(bounds) != len(arrays) or len(bounds) < 2:
        return None
    step = bounds[3] if len(bounds) > 3 else 1
    return np.arange(length)[bounds[0] : bounds[1] : step] if step > 0 else None


def _replace_with_constant(model: ir.Model, node: ir.Node, array: np.ndarray) -> int:
    """Remove `node` and let all consumers of its output read a new initializer `array`.

    Returns 1, or 0 without a change if the output is a graph output.
    """
    result = node.outputs[0]
    if result.is_graph_output():
        return 0
    uses = list(result.uses())
    if uses:
        name = ir.unique_tensor_name(model, f"{result.name}_known")
        value = ir.add_initializer(model, name, array)
        for user, index in uses:
            user.replace_input_with(index, value)
    model.graph.remove(node, safe=True)
    return 1
