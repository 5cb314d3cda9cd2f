"""Shapes from one traced run: every tensor gets the shape it really has, the batch axis as `N`.

onnx's own inference gives up on computed targets; a run does not. Two batch sizes tell which axes are the batch where
the model takes any.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import ModelError
from ..graph import ir
from ..run.runners import FloatRunner, input_specs

_BATCH = "N"


def trace_shapes(model: ir.Graph, feed: Mapping[str, np.ndarray], runner: FloatRunner | None = None) -> None:
    """Set shape and type of every tensor of `model` in place, from runs on `feed` (one sample).

    runner : of all tensors of `model`, where there is one already.
    """
    runner = FloatRunner(model) if runner is None else runner
    one = {name: (array.shape, array.dtype) for name, array, _ in runner.run(feed)}
    two = _doubled(model, runner, feed)
    for value in ir.values(model):
        if str(value.name) not in one:
            continue
        shape, dtype = one[str(value.name)]
        other = two.get(str(value.name)) if two is not None else None
        dims: list[int | str | None] = list(shape)
        if other is not None and len(other) == len(shape):
            pairs = zip(shape, other, strict=True)
            dims = [d if d == e else _BATCH if i == 0 else None for i, (d, e) in enumerate(pairs)]
            ir.mark_folded_batch(value, bool(dims) and dims[0] == _BATCH and (shape[0], other[0]) != (1, 2))
        value.shape = ir.oir_shape(dims)
        if value.dtype is None:
            value.type = ir.tensor_type(dtype)


def all_traced(model: ir.Graph) -> bool:
    """Whether all shapes and types of `model` are known: those that were traced, and those that passes gave.

    Not where rows of a sample are folded into the batch: there what a pass made has to be traced, too.
    """
    return all(
        value.shape is not None
        and value.dtype is not None
        and not ir.has_folded_batch(value)
        and all(isinstance(size, int) or size.value is not None for size in value.shape)
        for value in ir.values(model)
    )


def _doubled(model: ir.Graph, runner: FloatRunner, feed: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of a run on two samples; None where the batch is fixed or the model fails on two."""
    specs = {spec.name: spec for spec in input_specs(model)}
    if any(spec.single or not spec.batched for spec in specs.values() if spec.axis is not None):
        return None
    twice = {name: specs[name].joined([array, array]) for name, array in feed.items()}
    try:
        return {name: array.shape for name, array, _ in runner.run(twice)}
    except ModelError:
        return None
