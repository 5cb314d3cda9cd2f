"""Merge windows that are tiled by rows or columns into one window over the whole map, exactly.

A limit of one layer is met by tiling that layer alone. A cascade of such layers can only be tiled
from its first to its last layer if each of them is whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ....ir import ir
from ....operators.integer_ops import CONCAT
from ....operators.selection.integer_op import sliced_positions
from .cascades import WINDOW_OPERATORS, Cascade, RowRange, axis_length

__all__ = ["merge_tiled_windows"]


def merge_tiled_windows(graph: ir.Model) -> ir.Model | None:
    """Return a copy of an integer graph with tiled windows merged, or None if it has none.

    A merged convolution or pool replaces an iqCat and the tiles that it joins.
    """
    copy = graph.clone()
    concats = [node for node in copy.graph if node.op_type == CONCAT.name]
    merged = [concat for concat in concats if _merge_tiles(copy, concat)]
    if not merged:
        return None
    ir.remove_unused(copy)
    return copy


def _merge_tiles(graph: ir.Model, concat: ir.Node) -> bool:
    """Replace an iqCat and its inputs by one window if they are tiles of it; return whether.

    They must be equal windows (convolutions or pools) on adjacent parts of one tensor, joined along
    rows or columns. In place.
    """
    axis = ir.get_attr(concat, "dim")
    tiles = [ir.producer(value) for value in concat.inputs]
    if axis not in (2, 3) or not _are_similar_windows(tiles, axis):
        return False
    windows = [tile for tile in tiles if tile is not None]
    source, _ = _get_read_range(windows[0], axis)
    merged = _make_window_node(graph, concat, windows[0], source)
    pads = _get_pads(windows[0])
    pads[axis] = _get_pads(windows[-1])[axis]
    ir.set_attr(merged, "pads", pads)
    if not _are_tiles_of(windows, merged, axis):
        for index in range(len(merged.inputs)):
            merged.replace_input_with(index, None)  # it is not inserted, so it must use nothing
        return False
    ir.replace_nodes(graph, [concat], [merged])
    return True


def _are_similar_windows(nodes: Sequence[ir.Node | None], axis: int) -> bool:
    """Whether all nodes are windows over parts of one tensor that differ along `axis` only.

    False if one is None.
    """
    first = nodes[0]
    if first is None or first.op_type not in WINDOW_OPERATORS:
        return False
    source, _ = _get_read_range(first, axis)
    return all(
        node is not None
        and _get_read_range(node, axis)[0] is source
        and _differ_only_in_position(node, first, axis)
        for node in nodes
    )


def _make_window_node(graph: ir.Model, concat: ir.Node, like: ir.Node, source: ir.Value) -> ir.Node:
    """Make a window like `like` over all of `source`, to replace the iqCat `concat`.

    It has the name of `concat`; it is not inserted.
    """
    window = ir.make_node(
        like.op_type,
        [source, *like.inputs[1:]],
        name=str(concat.name),
        output=ir.unique_tensor_name(graph, f"{concat.outputs[0].name}_whole"),
        domain=like.domain,
        like=concat.outputs[0],
    )
    window.attributes.update(like.attributes)
    return window


def _are_tiles_of(tiles: list[ir.Node], merged: ir.Node, axis: int) -> bool:
    """Whether `tiles` read the rows, with the pads, that tiles of window `merged` would.

    `tiles` are in order along `axis`; their outputs give the sizes.
    """
    cascade = Cascade((merged,), axis)
    bounds = itertools.accumulate((axis_length(tile.outputs[0], axis) for tile in tiles), initial=0)
    for node, rows in zip(tiles, itertools.pairwise(bounds), strict=True):
        expected, pads = cascade.tile(rows), _get_pads(node)
        begin_pad, end_pad = pads[axis - 2], pads[axis]  # [top, left, bottom, right]
        if expected is None or expected.pads[merged] != (begin_pad, end_pad):
            return False
        if expected.read_rows[merged, 0] != _get_read_range(node, axis)[1]:
            return False
    return True


def _get_pads(window: ir.Node) -> list[int]:
    """Return the pads (top, left, bottom, right) of a window as a new list, 0 by default."""
    return list(ir.get_attr(window, "pads") or [0] * 4)


def _differ_only_in_position(tile: ir.Node, first: ir.Node, axis: int) -> bool:
    """Whether two windows differ only in their position and their padding along `axis`.

    Their constants must be the same tensors, and `tile` must have one consumer.
    """
    if (tile.op_type, tile.domain) != (first.op_type, first.domain):
        return False
    if tile.inputs[1:] != first.inputs[1:] or len(tile.outputs[0].uses()) != 1:
        return False
    if _get_pads(tile)[3 - axis :: 2] != _get_pads(first)[3 - axis :: 2]:
        return False
    return _get_other_attributes(tile) == _get_other_attributes(first)


def _get_other_attributes(window: ir.Node) -> dict[str, object]:
    """Return the attributes of a window by name, without its pads."""
    return {name: ir.get_attr(window, name) for name in window.attributes if name != "pads"}


def _get_read_range(tile: ir.Node, axis: int) -> tuple[ir.Value, RowRange]:
    """Return (tensor, (start, end)) that window `tile` reads along `axis`.

    If its input is a Slice of step 1 along `axis`, the tensor is the Slice's input; otherwise it is
    the complete input.
    """
    source = ir.require_input(tile)
    producer = source.producer()
    positions = None if producer is None else sliced_positions(producer, axis)
    if producer is None or positions is None or positions.step != 1:
        return source, (0, axis_length(source, axis))
    return ir.require_input(producer), (positions.start, positions.stop)
