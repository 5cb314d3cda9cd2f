"""Trace shapes by a run: every tensor gets its actual shape, with the batch axis as `N`.

onnx's inference cannot handle computed targets; a run can. Two batch sizes reveal the batch axes,
if the model accepts any batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...run.runners import FloatRunner, ShapeRunner, get_input_specs

_BATCH_SYMBOL = "N"

_Shapes = dict[str, tuple[int, ...]]


def trace_shapes(model: ir.Model, feed: Mapping[str, np.ndarray]) -> None:
    """Set shape and type of every tensor of `model` in place, from runs on `feed` (one sample).

    A run on two samples tells the batch axis, which becomes symbolic; an axis that mixes the batch
    with other sizes is marked as folded. Known types stay.
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
        value.shape = ir.make_shape(dims)
        if value.dtype is None:
            value.type = ir.make_tensor_type(traced.dtypes[str(value.name)])


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
    """Shapes of all tensors in runs on one sample, and on two if possible.

    `dtypes` are element types of tensors for which the model does not declare all of them.
    """

    single: _Shapes
    doubled: _Shapes | None
    dtypes: dict[str, np.dtype]


def _run_traces(model: ir.Model, feed: Mapping[str, np.ndarray]) -> _TracedShapes:
    """Run `model` on `feed` and on `feed` twice; return the shapes of all tensors in both.

    If all types can be inferred, only shapes are traced; otherwise the tensors are computed and
    their types recorded. The second run is None if the batch is fixed or the model fails on it.
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
    """Return the shapes of a run on `feed`, or None if it is absent or the model fails on it."""
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
    """Whether all shapes and types of `model` are known, traced or set by passes.

    False if the batch is folded with other axes anywhere: then the tensors that a pass created must
    be traced too.
    """
    for value in ir.iter_values(model):
        if value.shape is None or value.dtype is None or ir.has_folded_batch(value):
            return False
        if not all(isinstance(size, int) or size.value is not None for size in value.shape):
            return False
    return True
