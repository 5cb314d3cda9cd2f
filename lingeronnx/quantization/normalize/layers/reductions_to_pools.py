"""Convert ReduceMean, ReduceMax and ReduceSum over adjacent axes of a sample to pools.

A tensor is viewed as [N, A, R, B]: R is the number of elements along the reduced axes, A and B
along the axes before and after them:

    B = 1       [N, A, 1, R] with a window of 1 x R
    A = 1       Transpose -> [N, B, R], then as above: a mean over the channels of a feature map
    otherwise   [N, A, R, B] with windows of R x 1

A sum is a mean times R. Reductions of scores [N, R] are not converted: an application asks for the
largest score at the end of a model. `sequence_pool` and `spatial_pool` convert one axis of [N, A,
B], and complete feature maps.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["convert_reductions_to_pools"]

_POOL_BY_REDUCTION = {"mean": "AveragePool", "sum": "AveragePool", "max": "MaxPool"}
_POOL_BY_OP = {
    op_type: _POOL_BY_REDUCTION[reduction]
    for op_type, reduction in float_ops.REDUCTION_KINDS.items()
    if reduction in _POOL_BY_REDUCTION
}


def convert_reductions_to_pools(model: ir.Model) -> PassResult:
    """Convert ReduceMean, ReduceMax and ReduceSum over adjacent axes of a sample to pools.

    In place. The sizes must be known; other nodes are skipped with a reason. Left to other passes,
    without a reason, are means and maxima over one axis of three, or over the last two axes of
    four.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in _POOL_BY_OP or node.domain or _is_handled_elsewhere(node):
            continue
        axes = _adjacent_sample_axes(node)
        if axes is None:
            reason = "its axes are not adjacent within a sample, or a size is not known"
            skipped.append(SkipReason(node, reason))
            continue
        _replace_with_pool(model, node, axes)
        changes += 1
    return PassResult(changes, skipped)


def _is_handled_elsewhere(node: ir.Node) -> bool:
    """Whether another pass converts the reduction `node` to a pool.

    That is a mean or maximum over one axis of three, or over the last two axes of four; a sum
    never.
    """
    rank = len(ir.get_shape(node.inputs[0]) or ())
    if node.op_type == "ReduceSum" or not rank:
        return False
    axes = sorted(axis % rank for axis in ir.get_axes(node) or ())
    return (rank == 3 and len(axes) == 1) or (rank == 4 and axes == [2, 3])


def _adjacent_sample_axes(node: ir.Node) -> range | None:
    """Return the axes that `node` reduces, if they are adjacent and without the batch.

    None otherwise, and also for an input that is not float32, has fewer than three axes or an
    unknown dimension after the batch.
    """
    shape = ir.get_shape(node.inputs[0])
    if shape is None or len(shape) < 3 or None in shape[1:]:
        return None
    if not ir.is_float32(node.inputs[0]) or ir.get_shape(node.outputs[0]) is None:
        return None
    axes = sorted(axis % len(shape) for axis in ir.get_axes(node) or ())
    if not axes or axes[0] == 0 or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    return range(axes[0], axes[-1] + 1)


def _replace_with_pool(model: ir.Model, node: ir.Node, axes: range) -> None:
    """Replace `node`, a reduction over the consecutive `axes`, by a Reshape, a pool and a Reshape.

    Axes before `axes` become channels, axes after them the width; without axes before, a Transpose
    makes the latter channels. A sum is the average pool times the number of elements.
    """
    shape = ir.require_shape(node.inputs[0])
    sizes = [1, *ir.get_sample_dims(node.inputs[0])]
    size_before = math.prod(sizes[1 : axes.start])
    length = math.prod(sizes[axes.start : axes.stop])
    size_after = math.prod(sizes[axes.stop :])
    build = SubgraphBuilder(model, node)
    value, batch = ir.require_input(node), shape[0] if shape[0] is not None else "N"
    if size_after > 1 and size_before > 1:
        map_sizes, window = [size_before, length, size_after], [length, 1]
    else:
        if size_after > 1:
            value = build.reshape(value, [length, size_after], "rows")
            value = build(
                "Transpose", [value], [batch, size_after, length], "turned", {"perm": [0, 2, 1]}
            )
        map_sizes, window = [max(size_before, size_after), 1, length], [1, length]
    value = build.reshape(value, map_sizes, "map")
    pooled_shape = [batch, *(n // k for n, k in zip(map_sizes, [1, *window], strict=True))]
    attributes = {"kernel_shape": window, "strides": window}
    value = build(_POOL_BY_OP[node.op_type], [value], pooled_shape, "pool", attributes)
    if node.op_type == "ReduceSum":
        factor = build.constant(np.array(length, np.float32), "places")
        value = build("Mul", [value, factor], pooled_shape, "sum")
    build.reshape(value, ir.get_sample_dims(node.outputs[0]), "reduced")
    build.replace_node()
