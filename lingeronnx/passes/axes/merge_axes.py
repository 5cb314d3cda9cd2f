"""Transposes of many axes as transposes of few.

Axes that stay together are merged before and told apart after.
``[N, g, c, H, W] -> [N, c, g, H, W]``, the shuffling of channels, moves two blocks of ``H*W`` and
is a transpose of ``[N, g, c, H*W]``. Where too many groups of axes move, it is as few transposes of
three groups as lead there: windows of an image, ``[N, a, h, b, w*C] -> [N, a, b, h, w*C]``, are
two. A Reshape in front or behind is merged with the new ones. Needs static sizes; from five axes
on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...graph import ir
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

_MIN_RANK = 4
_MAX_GROUPS = 6  # groups of axes that are told apart in the search for steps

_AxisGroups = tuple[tuple[int, ...], ...]


def merge_axes(model: ir.Model) -> PassResult:
    """Merge axes of the Transpose nodes of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        perm = (
            ir.get_attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
        )
        shape = ir.get_shape(node.inputs[0]) if perm is not None else None
        if shape is None or perm is None or len(perm) <= _MIN_RANK or perm == sorted(perm):
            continue
        groups = _group_axes(perm)
        if perm[0] != 0 or None in shape[1:]:
            why.append(SkipReason(node, "it moves the batch, or sizes are not known"))
        elif len(groups) > _MAX_GROUPS:
            why.append(
                SkipReason(
                    node, f"{len(groups)} groups of its axes move apart, at most {_MAX_GROUPS} may"
                )
            )
        else:
            _emit_transposes(
                model, node, _find_transpose_steps(groups), [int(d or 0) for d in shape]
            )
            changed += 1
    return PassResult(changed, why)


def _group_axes(perm: Sequence[int]) -> _AxisGroups:
    """Return runs of axes that follow each other before and after, in the order after, but for the batch."""
    groups: list[list[int]] = []
    for axis in perm[1:]:
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return tuple(map(tuple, groups))


def _find_transpose_steps(wanted: _AxisGroups) -> list[tuple[_AxisGroups, tuple[int, ...]]]:
    """Return the fewest transposes of three blocks at most.

    [(blocks of axes, their order)], from sorted groups on.
    """
    start = tuple(sorted(wanted))
    ways: dict[_AxisGroups, list[tuple[_AxisGroups, tuple[int, ...]]]] = {start: []}
    line = [start]
    while wanted not in ways:
        line = [new for have in line for new in _expand_orders(have, ways)]
    return ways[wanted]


def _expand_orders(
    have: _AxisGroups, ways: dict[_AxisGroups, list[tuple[_AxisGroups, tuple[int, ...]]]]
) -> Iterator[_AxisGroups]:
    """Yield the orders of groups that one transpose makes of `have`, the new ones, and note how in `ways`."""
    for first, second in itertools.combinations(range(1, len(have) + 1), 2):
        parts = [part for part in (have[:first], have[first:second], have[second:]) if part]
        blocks = tuple(tuple(axis for group in part for axis in group) for part in parts)
        for order in itertools.permutations(range(len(parts))):
            new = tuple(group for place in order for group in parts[place])
            if new not in ways:
                ways[new] = [*ways[have], (blocks, order)]
                yield new


def _emit_transposes(
    model: ir.Model,
    node: ir.Node,
    steps: Sequence[tuple[_AxisGroups, tuple[int, ...]]],
    shape: list[int],
) -> None:
    source, result = ir.require_input(node), node.outputs[0]
    first = _find_preceding_reshape(source)
    if first is not None:
        source = ir.require_input(first)  # a reshape of a reshape is one
    apart = ir.sole_consumer(result)
    build = SubgraphBuilder(model, node)
    batch = result.shape[0] if result.shape is not None else "N"
    value = source
    for number, (blocks, order) in enumerate(steps):
        step = str(number) if number else ""
        sizes = [math.prod(shape[axis] for axis in block) for block in blocks]
        narrow = build.reshape(value, sizes, f"merged{step}")
        perm = [0, *(place + 1 for place in order)]
        value = build(
            "Transpose",
            [narrow],
            [batch, *(sizes[p] for p in order)],
            f"turned{step}",
            {"perm": perm},
        )
    blocks, order = steps[-1]
    build.reshape(value, [shape[axis] for place in order for axis in blocks[place]], "apart")
    build.replace_node()
    target = (
        ir.const_value(apart.inputs[1])
        if apart is not None and apart.op_type == "Reshape"
        else None
    )
    if apart is not None and target is not None and not np.any(target.reshape(-1)[1:] == 0):
        apart.replace_input_with(0, value)
        model.graph.remove(build.nodes[-1], safe=True)
    if first is not None and not first.outputs[0].uses() and not first.outputs[0].is_graph_output():
        model.graph.remove(first, safe=True)


def _find_preceding_reshape(value: ir.Value | None) -> ir.Node | None:
    """Return the Reshape that makes `value` and keeps the batch axis, or None."""
    node = ir.producer(value)
    if node is None or node.op_type != "Reshape":
        return None
    sizes = [list((ir.get_shape(v) or (None, None))[1:]) for v in (node.inputs[0], value)]
    known = [math.prod(d for d in each if d is not None) for each in sizes if None not in each]
    return node if len(known) == 2 and known[0] == known[1] else None
