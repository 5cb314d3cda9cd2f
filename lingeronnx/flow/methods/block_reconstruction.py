"""Blockwise reconstruction.

Round a layer's weights by the error at the output of the layer behind it.
An error d [O] of a layer's outputs comes out of the next layer, weights V, as ``V d``: its squared
size is ``d^T G d`` with ``G = V^T V``. Errors that cancel in the next layer cost nothing, and those
of channels that it weighs little cost little. Where a Relu lies between, channels o and p both pass
only in a share of the samples, by which ``G[o, p]`` is weighed. With D the rounding error of the
weights and H the second moments of the inputs, the error of the block is the trace of ``G D H
D^T``. Coordinate descent lowers it. To G comes its mean diagonal, so that the layer's own outputs
keep as much weight: the next layer's weights are rounded in their turn, and its own error adds up.

After Li et al. 2021 (BRECQ), who learn this with gradients.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...ops import is_relu_like
from .rounding import regularize_moments, round_half_to_even, sweep_columns

__all__ = ["compute_block_metric", "minimize_block_error"]

_TRANSPARENT_OPS = operators.POOL_KINDS.keys() | {"Flatten"}  # keep channels apart
_OWN_OUTPUT_WEIGHT = 1.0  # of the mean diagonal: what the layer's own outputs count


def compute_block_metric(node: ir.Node, values: np.ndarray) -> np.ndarray | None:
    """Return G [O, O] of the module's docstring for the layer `node`, None where no layer alone reads it.

    values : what the float model gives at the layer's output, [n, O].
    """
    value, masked = node.outputs[0], False
    reader = ir.sole_consumer(value)
    while reader is not None and (is_relu_like(reader) or reader.op_type in _TRANSPARENT_OPS):
        masked |= is_relu_like(reader)
        value = reader.outputs[0]
        reader = ir.sole_consumer(value)
    if reader is None or reader.op_type not in ("Conv", "Linear") or reader.inputs[0] is not value:
        return None
    weight, shape = ir.const_value(reader.inputs[1]), ir.get_shape(value)
    outputs = values.shape[1]
    group = int(ir.get_attr(reader, "group", 1)) if reader.op_type == "Conv" else 1
    alike = reader.op_type == node.op_type or (
        shape is not None and len(shape) == 2
    )  # channels on one axis
    if weight is None or not alike or weight.shape[1] * group != outputs:
        return None
    parts = weight.astype(np.float64).reshape(group, len(weight) // group, outputs // group, -1)
    metric = np.zeros((outputs, outputs))
    for g, part in enumerate(parts):
        of = slice(g * outputs // group, (g + 1) * outputs // group)
        metric[of, of] = np.tensordot(part, part, axes=((0, 2), (0, 2)))
    if masked:
        passes = (values > 0).astype(np.float32)
        metric *= passes.T @ passes / len(passes)
    return np.asarray(metric + _OWN_OUTPUT_WEIGHT * np.trace(metric) / outputs * np.eye(outputs))


def minimize_block_error(
    rounded: np.ndarray,
    weight: np.ndarray,
    moments: np.ndarray,
    metric: np.ndarray,
    samples: int,
    low: int,
    high: int,
    step: np.ndarray | None = None,
) -> np.ndarray:
    """Return integers [G, O, K] in low..high whose error behind the block is not above that of `rounded`.

    Coordinate descent from `rounded` towards `weight`, in counts. moments, samples, step : as for
    `round_with_compensation`. metric : [G * O, G * O], of which each group takes its own channels.
    """
    result = rounded.copy()
    outputs = rounded.shape[1]
    for g, moment in enumerate(moments):
        own = metric[g * outputs : (g + 1) * outputs, g * outputs : (g + 1) * outputs]
        if np.trace(moment) <= 0 or np.diagonal(own).min() <= 0:
            continue
        h = regularize_moments(moment[None], samples)[0]
        columns = np.argsort(-np.diagonal(h), kind="stable")  # as for `round_with_compensation`
        rows = np.argsort(-np.diagonal(own), kind="stable")
        place = np.ix_(rows, columns)
        integers = rounded[g][place]
        steps = None if step is None else step[g][place]
        _descend(
            integers,
            weight[g][place],
            h[np.ix_(columns, columns)],
            own[np.ix_(rows, rows)],
            low,
            high,
            steps,
        )
        result[g][place] = integers
    return result


def _descend(
    integers: np.ndarray,
    weight: np.ndarray,
    h: np.ndarray,
    metric: np.ndarray,
    low: int,
    high: int,
    steps: np.ndarray | None,
) -> None:
    """Move the `integers` [O, K] of one group in place, column by column, each from its first row to its last."""

    def move(k: int, column: np.ndarray, slope: np.ndarray, own: float) -> np.ndarray:
        return _descend_column(
            column, slope.copy(), metric, own, low, high, None if steps is None else steps[:, k]
        )

    sweep_columns(
        integers, metric @ (integers - weight) @ h, h, move, lambda change: metric @ change
    )


def _descend_column(
    column: np.ndarray,
    slope: np.ndarray,
    metric: np.ndarray,
    h: float,
    low: int,
    high: int,
    step: np.ndarray | None,
) -> np.ndarray:
    """Move the integers `column` [O] in place, one after another; return their steps.

    `slope` [O] is used up.
    """
    before, bend = column.copy(), np.diagonal(metric) * h
    start = 0
    while start < len(column):
        own = None if step is None else step[start:]
        new = round_half_to_even(column[start:] - slope[start:] / bend[start:], low, high, own)
        (where,) = np.nonzero(new != column[start:])
        if not len(where):
            break
        first = start + int(where[0])  # rows before it stay
        change = new[where[0]] - column[first]
        column[first] += change
        slope += metric[:, first] * (change * h)
        start = first + 1
    return np.asarray(column - before)
