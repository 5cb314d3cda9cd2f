"""Means, maxima and sums over neighbouring axes of a sample as pools.

ReduceMean, ReduceMax, ReduceSum.
A tensor is seen as [N, A, R, B], the R places of the axes that go between the places before and
behind them:

    B = 1       [N, A, 1, R] under a window of 1 x R
    A = 1       Transpose -> [N, B, R], then likewise: a mean over the channels of a map
    otherwise   [N, A, R, B] under windows of R x 1

A sum is a mean times R. Scores [N, R] stay: their largest is what a host asks for at the end.
`sequence_pool` and `average_pool` see to what they know: one axis of [N, A, B], a whole map.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["convert_reductions_to_pools"]

_POOL_BY_REDUCTION = {"mean": "AveragePool", "sum": "AveragePool", "max": "MaxPool"}
_POOL_BY_OP = {
    kind: _POOL_BY_REDUCTION[how]
    for kind, how in operators.REDUCTION_KINDS.items()
    if how in _POOL_BY_REDUCTION
}


def convert_reductions_to_pools(model: ir.Model) -> PassResult:
    """Rewrite the reductions of `model` that are not seen to elsewhere."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in _POOL_BY_OP or node.domain or _is_handled_elsewhere(node):
            continue
        done = _replace_with_pool(model, node)
        changed += done
        if not done:
            why.append(
                SkipReason(
                    node, "its axes are no neighbours within a sample, or a size is not known"
                )
            )
    return PassResult(changed, why)


def _is_handled_elsewhere(node: ir.Node) -> bool:
    """Whether `sequence_pool` or `average_pool` sees to it."""
    rank = len(ir.get_shape(node.inputs[0]) or ())
    axes = sorted(axis % rank for axis in ir.get_axes(node) or ()) if rank else []
    return node.op_type != "ReduceSum" and (
        rank == 3 and len(axes) == 1 or rank == 4 and axes == [2, 3]
    )


def _replace_with_pool(model: ir.Model, node: ir.Node) -> bool:
    source, kind = ir.get_shape(node.inputs[0]), ir.require_input(node).dtype
    told = ir.get_axes(node)
    if (
        source is None
        or len(source) < 3
        or None in source[1:]
        or not told
        or kind is None
        or kind.name != "FLOAT"
    ):
        return False
    axes = sorted(axis % len(source) for axis in told)
    if (
        axes[0] == 0
        or axes != list(range(axes[0], axes[-1] + 1))
        or ir.get_shape(node.outputs[0]) is None
    ):
        return False
    sizes = [int(d or 1) for d in source]
    before, length, behind = (
        math.prod(each)
        for each in (sizes[1 : axes[0]], sizes[axes[0] : axes[-1] + 1], sizes[axes[-1] + 1 :])
    )
    make = SubgraphBuilder(model, node)
    value, batch = ir.require_input(node), source[0] if source[0] is not None else "N"
    if behind > 1 and before > 1:
        map_, window = [before, length, behind], [length, 1]
    else:
        if behind > 1:
            value = make.reshape(value, [length, behind], "rows")
            value = make(
                "Transpose", [value], [batch, behind, length], "turned", {"perm": [0, 2, 1]}
            )
        map_, window = [max(before, behind), 1, length], [1, length]
    value = make.reshape(value, map_, "map")
    pooled = [batch, *(n // k for n, k in zip(map_, [1, *window], strict=True))]
    value = make(
        _POOL_BY_OP[node.op_type],
        [value],
        pooled,
        "pool",
        {"kernel_shape": window, "strides": window},
    )
    if node.op_type == "ReduceSum":
        value = make(
            "Mul", [value, make.constant(np.array(length, np.float32), "places")], pooled, "sum"
        )
    make.reshape(value, [int(d or 1) for d in (ir.get_shape(node.outputs[0]) or ())[1:]], "reduced")
    make.replace_node()
    return True
