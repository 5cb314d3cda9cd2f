"""Shapes from one traced run: every tensor gets the shape it really has, the batch axis as `N`.

onnx's own inference gives up on computed targets; a run does not. Two batch sizes tell which axes
are the batch where the model takes any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...run.runners import FloatRunner, ShapeRunner, get_input_specs

_BATCH_SYMBOL = "N"

_Shapes = dict[str, tuple[int, ...]]


def trace_shapes(model: ir.Model, feed: Mapping[str, np.ndarray]) -> None:
    """Set shape and type of every tensor of `model` in place, from runs on `feed` (one sample)."""
    one, two, types = _trace_shapes(model, feed)
    for value in ir.iter_values(model):
        if (shape := one.get(str(value.name))) is None:
            continue
        other = two.get(str(value.name)) if two is not None else None
        dims: list[int | str | None] = list(shape)
        if other is not None and len(other) == len(shape):
            pairs = zip(shape, other, strict=True)
            dims = [
                d if d == e else _BATCH_SYMBOL if i == 0 else None for i, (d, e) in enumerate(pairs)
            ]
            ir.mark_folded_batch(
                value, bool(dims) and dims[0] == _BATCH_SYMBOL and (shape[0], other[0]) != (1, 2)
            )
        value.shape = ir.make_shape(dims)
        if value.dtype is None:
            value.type = ir.make_tensor_type(types[str(value.name)])


def _trace_shapes(
    model: ir.Model, feed: Mapping[str, np.ndarray]
) -> tuple[_Shapes, _Shapes | None, dict[str, np.dtype]]:
    """Return the shapes of a run on `feed`, those of one on it twice, and the types that the model does not say.

    Where types are unknown, or shapes of what may be no tensor, tensors are looked at, else their
    shapes alone.
    """
    twice = _double_feed(model, feed)
    ir.infer_types(model)
    if all(value.dtype is not None for value in ir.iter_values(model)):
        try:
            runner = ShapeRunner(model)
        except ModelError:  # it says what is wrong, or works
            pass
        else:
            return runner.run(feed), _run_if_possible(runner.run, twice), {}
    whole, types = FloatRunner(model), {}

    def run(given: Mapping[str, np.ndarray]) -> _Shapes:
        dtypes = {}
        for name, array, _ in whole.run(given):
            dtypes[name], types[name] = array.shape, array.dtype
        return dtypes

    return run(feed), _run_if_possible(run, twice), types


def _run_if_possible(
    run: Callable[[Mapping[str, np.ndarray]], _Shapes], feed: Mapping[str, np.ndarray] | None
) -> _Shapes | None:
    """Return the shapes of a run on two samples.

    None where there is no such feed or the model fails on it.
    """
    try:
        return None if feed is None else run(feed)
    except ModelError:
        return None


def _double_feed(model: ir.Model, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Return `feed` twice; None where the batch is fixed."""
    specs = {spec.name: spec for spec in get_input_specs(model)}
    if any(
        spec.is_single_sample or not spec.accepts_any_batch
        for spec in specs.values()
        if spec.axis is not None
    ):
        return None
    return {name: specs[name].concatenate([array, array]) for name, array in feed.items()}


def is_fully_shaped(model: ir.Model) -> bool:
    """Whether all shapes and types of `model` are known.

    Those that were traced, and those that passes gave.
    Not where rows of a sample are folded into the batch: there what a pass made has to be traced,
    too.
    """
    return all(
        value.shape is not None
        and value.dtype is not None
        and not ir.has_folded_batch(value)
        and all(isinstance(size, int) or size.value is not None for size in value.shape)
        for value in ir.iter_values(model)
    )
