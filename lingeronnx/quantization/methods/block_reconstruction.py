"""Blockwise reconstruction: round a layer's weights by the error at the output of the next layer.

An error d [O] of a layer's outputs leaves the next layer, with weights V, as ``V d``. Its squared
norm is ``d^T G d`` with ``G = V^T V``. Errors that cancel in the next layer cost nothing, and
errors of channels with small weights there cost little. If a Relu is in between, channels o and p
both pass only in a fraction of the samples, by which ``G[o, p]`` is weighted. With D the rounding
error of the weights and H the second moments of the inputs, the error of the block is the trace of
``G D H D^T``. Coordinate descent reduces it. The mean of its diagonal is added to G as a multiple
of the identity, so that the layer's own outputs keep the same weight: the next layer's weights are
rounded as well, and the errors of both add up.

After Li et al. 2021 (BRECQ), who optimize this with gradients.
"""

from __future__ import annotations

import numpy as np

from ...ir import float_ops, ir
from ...operators.lowerings import is_relu_like
from .rounding import regularize_moments, round_half_to_even, sweep_columns

__all__ = ["compute_block_metric", "minimize_block_error"]

_TRANSPARENT_OPS = float_ops.POOL_KINDS.keys() | {"Flatten"}  # keep channels apart
_OWN_OUTPUT_WEIGHT = 1.0  # weight of the layer's own outputs, times the mean diagonal of G


def compute_block_metric(node: ir.Node, values: np.ndarray) -> np.ndarray | None:
    """Return the weights G of output errors of a layer that follow from the layer after it.

    An error d of the outputs costs d^T G d there, with G = V^T V for the next layer's weights V. If
    a Relu is between, G[o, p] is weighted by the fraction of samples in which both are positive.
    The mean diagonal is added to the diagonal.

    Parameters
    ----------
    node
        The layer.
    values
        Float outputs of the layer, [n, O].

    Returns
    -------
    numpy.ndarray or None
        G, float64 [O, O]; None if the output does not feed exactly one layer with constant
        weights, directly or over Relus, pools and Flatten, or if the channels of the two do not
        match.
    """
    value, passes_relu = node.outputs[0], False
    consumer = ir.sole_consumer(value)
    while consumer is not None and (is_relu_like(consumer) or consumer.op_type in _TRANSPARENT_OPS):
        passes_relu |= is_relu_like(consumer)
        value = consumer.outputs[0]
        consumer = ir.sole_consumer(value)
    if consumer is None or not _is_layer_of(consumer, value):
        return None
    weight = ir.const_value(consumer.inputs[1])
    group = int(ir.get_attr(consumer, "group", 1)) if consumer.op_type == "Conv" else 1
    outputs = values.shape[1]
    if weight is None or weight.shape[1] * group != outputs:
        return None
    shape = ir.get_shape(value)
    is_flat = shape is not None and len(shape) == 2  # then the channels are on the same axis
    if consumer.op_type != node.op_type and not is_flat:
        return None
    metric = _gram_by_input_channel(weight, group)
    if passes_relu:
        is_positive = (values > 0).astype(np.float32)
        metric *= is_positive.T @ is_positive / len(is_positive)
    return np.asarray(metric + _OWN_OUTPUT_WEIGHT * np.trace(metric) / outputs * np.eye(outputs))


def _is_layer_of(node: ir.Node, value: ir.Value) -> bool:
    """Whether `node` is a Conv or Linear with `value` as input 0."""
    return node.op_type in ("Conv", "Linear") and node.inputs[0] is value


def _gram_by_input_channel(weight: np.ndarray, group: int) -> np.ndarray:
    """Return V^T V, float64 [I, I], of a `weight` [O, I/group, ...], zero between groups.

    Sums run over outputs and kernel positions.
    """
    depth = weight.shape[1]
    weights_by_group = weight.astype(np.float64).reshape(group, len(weight) // group, depth, -1)
    gram = np.zeros((group * depth, group * depth))
    for g, group_weights in enumerate(weights_by_group):
        channels = slice(g * depth, (g + 1) * depth)
        gram[channels, channels] = np.tensordot(group_weights, group_weights, axes=((0, 2), (0, 2)))
    return gram


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
    """Reduce the error that rounded weights cause after the next layer, by coordinate descent.

    The error is the trace of G D H D^T, with D the change by rounding, H the moments of the inputs
    and G the metric of the outputs.

    Parameters
    ----------
    rounded
        Integers times `step`, [G, O, K], to start from; not changed.
    weight
        Exact weights [G, O, K], in integer counts.
    moments
        Second moments of the inputs of each group, [G, K, K].
    metric
        [G * O, G * O], of which each group uses the block of its own channels.
    samples
        Number of inputs that the moments are the mean of; with few, they are shrunk towards their
        diagonal.
    low, high
        Range of the integers, inclusive.
    step
        Counts per integer, [G, O, K], or None for 1.

    Returns
    -------
    numpy.ndarray
        Integers times `step`, [G, O, K], whose block error is not above that of `rounded`. A group
        stays as it is if its moments are 0 or its metric has a diagonal element of at most 0.
    """
    result = rounded.copy()
    outputs = rounded.shape[1]
    for g, group_moments in enumerate(moments):
        channels = slice(g * outputs, (g + 1) * outputs)
        group_metric = metric[channels, channels]
        if np.trace(group_moments) <= 0 or np.diagonal(group_metric).min() <= 0:
            continue
        h = regularize_moments(group_moments[None], samples)[0]
        columns = np.argsort(-np.diagonal(h), kind="stable")  # as for `round_with_compensation`
        rows = np.argsort(-np.diagonal(group_metric), kind="stable")
        order = np.ix_(rows, columns)
        integers = rounded[g][order]
        _descend(
            integers,
            weight[g][order],
            h[np.ix_(columns, columns)],
            group_metric[np.ix_(rows, rows)],
            low,
            high,
            None if step is None else step[g][order],
        )
        result[g][order] = integers
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
    """Minimize the error after the next layer over the `integers` [O, K] of one group, in place.

    Columns are moved one after the other. `weight` are the exact weights, `h` [K, K] the moments of
    the inputs, `metric` [O, O] the weights of the outputs' errors, and `steps` the distances of
    allowed integers (None for 1).
    """

    def move(k: int, column: np.ndarray, slope: np.ndarray, curvature: float) -> np.ndarray:
        """Move the elements of column `k` in place, one after the other; return their changes."""
        column_steps = None if steps is None else steps[:, k]
        return _descend_column(column, slope.copy(), metric, curvature, low, high, column_steps)

    slope = metric @ (integers - weight) @ h
    sweep_columns(integers, slope, h, move, lambda change: metric @ change)


def _descend_column(
    column: np.ndarray,
    slope: np.ndarray,
    metric: np.ndarray,
    h: float,
    low: int,
    high: int,
    step: np.ndarray | None,
) -> np.ndarray:
    """Move the integers `column` [O] in place, one after the other, and return their changes.

    Each becomes the allowed integer in low..high nearest to the minimum of the error along its own
    axis.

    Parameters
    ----------
    slope
        Half the gradient of the error after the next layer, [O]; overwritten.
    metric
        Weights of the outputs' errors, [O, O].
    h
        Diagonal element of the input moments for this column.
    step
        Counts per integer, [O], or None for 1.
    """
    before, curvature = column.copy(), np.diagonal(metric) * h
    start = 0
    while start < len(column):
        remaining_step = None if step is None else step[start:]
        targets = column[start:] - slope[start:] / curvature[start:]
        new = round_half_to_even(targets, low, high, remaining_step)
        (changed,) = np.nonzero(new != column[start:])
        if not len(changed):
            break
        first = start + int(changed[0])  # the rows before it stay
        change = new[changed[0]] - column[first]
        column[first] += change
        slope += metric[:, first] * (change * h)
        start = first + 1
    return np.asarray(column - before)
