"""Transposes of many axes as transposes of few: axes that stay together are merged before and told apart after.

``[N, g, c, H, W] -> [N, c, g, H, W]``, the shuffling of channels, moves two blocks of ``H*W`` and is a transpose of
``[N, g, c, H*W]``. A Reshape in front or behind is merged with the new ones. Needs static sizes; from five axes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph import ir
from ...graph.builder import Builder
from .._pass import Answer, Reason

_FEW = 4


def merge_axes(model: ir.Graph) -> Answer:
    """Merge axes of the Transpose nodes of `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        perm = ir.attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
        shape = ir.shape(node.inputs[0]) if perm is not None else None
        if shape is None or perm is None or len(perm) <= _FEW:
            continue
        groups = _groups(perm)
        if perm[0] != 0 or None in shape[1:]:
            why.append(Reason(node, "it moves the batch, or sizes are not known"))
        elif len(groups) > _FEW:
            why.append(Reason(node, f"{len(groups)} groups of its axes move apart, at most {_FEW} may"))
        else:
            _rewrite(model, node, groups, [int(d or 0) for d in shape])
            changed += 1
    return Answer(changed, why)


def _groups(perm: Sequence[int]) -> list[list[int]]:
    """Return runs of axes that follow each other before and after, in the order after; the batch is one of its own."""
    groups = [[0]]
    for axis in perm[1:]:
        if groups[-1][-1] == axis - 1 != 0:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _rewrite(model: ir.Graph, node: ir.Node, groups: list[list[int]], shape: list[int]) -> None:
    before = sorted(groups)
    perm = [before.index(group) for group in groups]
    merged = [math.prod(shape[a] for a in group) for group in before[1:]]
    source, result = ir.source(node), node.outputs[0]
    first = _reshape_before(source)
    if first is not None:
        source = ir.source(first)  # a reshape of a reshape is one
    apart = ir.sole_consumer(result)
    build = Builder(model, node)
    narrow = build.reshape(source, merged, "merged")
    batch = result.shape[0] if result.shape is not None else "N"
    turned = build("Transpose", [narrow], [batch, *(merged[p - 1] for p in perm[1:])], "turned", {"perm": perm})
    build.reshape(turned, [shape[axis] for group in groups[1:] for axis in group], "apart")
    build.done()
    target = ir.const(apart.inputs[1]) if apart is not None and apart.op_type == "Reshape" else None
    if apart is not None and target is not None and not np.any(target.reshape(-1)[1:] == 0):
        apart.replace_input_with(0, turned)
        model.graph.remove(build.nodes[-1], safe=True)
    if first is not None and not first.outputs[0].uses() and not first.outputs[0].is_graph_output():
        model.graph.remove(first, safe=True)


def _reshape_before(value: ir.Value | None) -> ir.Node | None:
    """Return the Reshape that makes `value` and keeps the batch axis, or None."""
    node = ir.producer(value)
    if node is None or node.op_type != "Reshape":
        return None
    sizes = [list((ir.shape(v) or (None, None))[1:]) for v in (node.inputs[0], value)]
    known = [math.prod(d for d in each if d is not None) for each in sizes if None not in each]
    return node if len(known) == 2 and known[0] == known[1] else None
