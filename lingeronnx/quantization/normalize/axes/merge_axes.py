"""Merge axes of Transposes with many axes.

Axes that stay adjacent are merged before the Transpose and split after it. The channel shuffle
``[N, g, c, H, W] -> [N, c, g, H, W]`` moves two blocks of ``H*W`` and is a Transpose of
``[N, g, c, H*W]``. If too many groups of axes move, the shortest sequence of Transposes of three
blocks is used: windows of an image, ``[N, a, h, b, w*C] -> [N, a, b, h, w*C]``, take two. A Reshape
before or after is merged with the new ones. Needs static sizes; applies to five axes or more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

_MIN_RANK = 4
_MAX_GROUPS = 6  # larger numbers of axis groups would make the search too long

_AxisGroups = tuple[tuple[int, ...], ...]


class _TransposeStep(NamedTuple):
    """A Transpose of at most three blocks of adjacent axes."""

    blocks: _AxisGroups
    order: tuple[int, ...]


def merge_axes(model: ir.Model) -> PassResult:
    """Replace Transposes of more than `_MIN_RANK` axes by ones of fewer axes between Reshapes.

    In place. Those that move the batch, have unknown sizes or too many groups of axes are skipped
    with a reason. Transposes without `perm` or shape, and identity permutations, are left alone
    silently.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Transpose"):
            continue
        perm, shape = ir.get_attr(node, "perm"), ir.get_shape(node.inputs[0])
        if shape is None or perm is None or len(perm) <= _MIN_RANK or perm == sorted(perm):
            continue
        groups = _group_axes(perm)
        reason = _explain_unchanged(perm, shape, groups)
        if reason is not None:
            skipped.append(SkipReason(node, reason))
            continue
        sizes = [1, *ir.get_sample_dims(node.inputs[0])]
        _emit_transposes(model, node, _find_transpose_steps(groups), sizes)
        changes += 1
    return PassResult(changes, skipped)


def _explain_unchanged(
    perm: Sequence[int], shape: tuple[int | None, ...], groups: _AxisGroups
) -> str | None:
    """Return the reason why a Transpose by `perm` of this `shape` cannot use fewer axes, or None.

    Reasons: it moves axis 0, a dimension after axis 0 is unknown, or `groups`, the axes that stay
    adjacent, are more than `_MAX_GROUPS`.
    """
    if perm[0] != 0 or None in shape[1:]:
        return "it moves the batch, or its shape is not known"
    if len(groups) > _MAX_GROUPS:
        return f"{len(groups)} groups of its axes move separately; the limit is {_MAX_GROUPS}"
    return None


def _group_axes(perm: Sequence[int]) -> _AxisGroups:
    """Group the axes after the batch that are adjacent and ascending in both input and output.

    `perm` is that of a Transpose with the batch first. Groups are in the order of the output:
    [0, 3, 1, 2] -> ((3,), (1, 2)).
    """
    groups: list[list[int]] = []
    for axis in perm[1:]:
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return tuple(map(tuple, groups))


def _find_transpose_steps(target: _AxisGroups) -> list[_TransposeStep]:
    """Find the shortest sequence of Transposes that leads from sorted groups to `target`.

    Breadth-first search; each step moves at most three blocks.
    """
    start = tuple(sorted(target))
    paths: dict[_AxisGroups, list[_TransposeStep]] = {start: []}
    frontier = [start]
    while target not in paths:
        next_frontier: list[_AxisGroups] = []
        for groups in frontier:
            next_frontier += _expand_orders(groups, paths)
        frontier = next_frontier
    return paths[target]


def _expand_orders(
    groups: _AxisGroups, paths: dict[_AxisGroups, list[_TransposeStep]]
) -> Iterator[_AxisGroups]:
    """Yield the orders that one Transpose of at most three blocks makes of `groups`.

    Orders that are already keys of `paths` are omitted; the path of each yielded one, that of
    `groups` and one more step, is added to `paths`.
    """
    for first, second in itertools.combinations(range(1, len(groups) + 1), 2):
        parts = [part for part in (groups[:first], groups[first:second], groups[second:]) if part]
        blocks = tuple(tuple(itertools.chain.from_iterable(part)) for part in parts)
        for order in itertools.permutations(range(len(parts))):
            reordered = tuple(itertools.chain.from_iterable(parts[index] for index in order))
            if reordered not in paths:
                paths[reordered] = [*paths[groups], _TransposeStep(blocks, order)]
                yield reordered


def _emit_transposes(
    model: ir.Model, node: ir.Node, steps: Sequence[_TransposeStep], shape: list[int]
) -> None:
    """Replace the Transpose `node` by `steps`; `shape` is that of its input.

    Each step is a Reshape and a Transpose; a Reshape restores the shape of the result. Reshapes
    next to the node are merged with these.
    """
    source = ir.require_input(node)
    preceding = _find_preceding_reshape(source)
    if preceding is not None:
        source = ir.require_input(preceding)  # two consecutive Reshapes are one
    consumer = ir.sole_consumer(node.outputs[0])
    build = SubgraphBuilder(model, node)
    value = source
    for index, step in enumerate(steps):
        value = _emit_step(build, value, step, shape, str(index) if index else "")
    last = steps[-1]
    result_axes = itertools.chain.from_iterable(last.blocks[index] for index in last.order)
    build.reshape(value, [shape[axis] for axis in result_axes], "apart")
    build.replace_node()
    if consumer is not None and _has_absolute_target(consumer):
        consumer.replace_input_with(0, value)
        model.graph.remove(build.nodes[-1], safe=True)
    if preceding is not None:
        _remove_if_unused(model, preceding)


def _emit_step(
    build: SubgraphBuilder, value: ir.Value, step: _TransposeStep, shape: list[int], suffix: str
) -> ir.Value:
    """Return `value` with the axes of each block of `step` merged, and then transposed.

    The nodes (a Reshape and a Transpose) are added to `build`. `shape` has the size of each axis of
    the original tensor, by axis index, the batch at index 0. `suffix` is appended to the names.
    """
    batch = "N" if build.result.shape is None else build.result.shape[0]
    sizes = [math.prod(map(shape.__getitem__, block)) for block in step.blocks]
    merged = build.reshape(value, sizes, f"merged{suffix}")
    transposed_shape = [batch, *(sizes[index] for index in step.order)]
    perm = [0, *(index + 1 for index in step.order)]
    return build("Transpose", [merged], transposed_shape, f"turned{suffix}", {"perm": perm})


def _remove_if_unused(model: ir.Model, node: ir.Node) -> None:
    """Remove `node` if its first output has no consumers and is no graph output."""
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        model.graph.remove(node, safe=True)


def _has_absolute_target(node: ir.Node) -> bool:
    """Whether `node` is a Reshape to a constant target that copies no size (0) after the batch."""
    if node.op_type != "Reshape":
        return False
    target = ir.const_value(node.inputs[1])
    return target is not None and not np.any(target.reshape(-1)[1:] == 0)


def _find_preceding_reshape(value: ir.Value | None) -> ir.Node | None:
    """Return the Reshape that computes `value`, or None if another node does.

    None also if a size is unknown or if the Reshape changes the number of elements per sample.
    """
    node = ir.producer(value)
    if node is None or node.op_type != "Reshape":
        return None
    source_size, result_size = _sample_size(node.inputs[0]), _sample_size(value)
    return node if source_size is not None and source_size == result_size else None


def _sample_size(value: ir.Value | None) -> int | None:
    """Return the number of elements per sample of `value`.

    None if a size after axis 0 is not known.
    """
    dims = (ir.get_shape(value) or (None, None))[1:]
    known_dims = [dim for dim in dims if dim is not None]
    return math.prod(known_dims) if len(known_dims) == len(dims) else None
