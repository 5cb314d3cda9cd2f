"""Windows that stand in tiles of rows or columns side by side, as one over the whole map again.

Exact.
A limit of one layer is met by tiles of that layer alone. A run of such layers can only be cut into
rows and columns from its first to its last layer when each of them is whole.
"""

from __future__ import annotations

import itertools

from .....formats import CONCAT
from .....formats.data_movement.selection import sliced_positions
from .....graph import ir
from .cascades import WINDOW_OPERATORS, Cascade, RowRange, axis_length

__all__ = ["merge_tiled_windows"]


def merge_tiled_windows(graph: ir.Model) -> ir.Model | None:
    """Return a copy of an integer graph with these windows whole; None where it has none."""
    copy = ir.clone(graph)
    joins = [node for node in copy.graph if node.op_type == CONCAT.name]
    made = [node for node in joins if _merge_tiles(copy, node)]
    if not made:
        return None
    ir.remove_unused(copy)
    return copy


def _merge_tiles(graph: ir.Model, join: ir.Node) -> bool:
    """Put one window in place of `join` and of what it joins, where they are tiles of one.

    Return whether they are.
    """
    tiles = [ir.producer(value) for value in join.inputs]
    first, axis = tiles[0], ir.get_attr(join, "dim")
    if first is None or first.op_type not in WINDOW_OPERATORS or axis not in (2, 3):
        return False
    source, _ = _get_read_range(first, axis)
    if not all(
        t is not None
        and _get_read_range(t, axis)[0] is source
        and _differ_only_in_position(t, first, axis)
        for t in tiles
    ):
        return False
    whole = _make_window_node(graph, join, first, source)
    pads = _get_pads(first)
    pads[axis] = _get_pads(ir.require_producer(join.inputs[-1]))[axis]
    ir.set_attr(whole, "pads", pads)
    if not _are_adjacent_tiles([tile for tile in tiles if tile is not None], whole, axis):
        for place in range(len(whole.inputs)):
            whole.replace_input_with(place, None)  # what stands in no graph shall read nothing
        return False
    ir.replace_nodes(graph, [join], [whole])
    return True


def _make_window_node(graph: ir.Model, join: ir.Node, like: ir.Node, source: ir.Value) -> ir.Node:
    """Return a window like `like` over all of `source`, to be inserted for `join`."""
    whole = ir.make_node(
        like.op_type,
        [source, *like.inputs[1:]],
        name=str(join.name),
        output=ir.unique_tensor_name(graph, f"{join.outputs[0].name}_whole"),
        domain=like.domain,
        like=join.outputs[0],
    )
    whole.attributes.update(like.attributes)
    return whole


def _are_adjacent_tiles(tiles: list[ir.Node], whole: ir.Node, axis: int) -> bool:
    """Whether `tiles`, side by side along `axis`, read what the parts of `whole` read, with their paddings."""
    run = Cascade((whole,), axis)
    bounds = itertools.accumulate((axis_length(tile.outputs[0], axis) for tile in tiles), initial=0)
    for node, part in zip(tiles, itertools.pairwise(bounds), strict=True):
        tile, pads = run.tile(part), _get_pads(node)
        if tile is None or (tile.read_rows[whole, 0], tile.pads[whole]) != (
            _get_read_range(node, axis)[1],
            (pads[axis - 2], pads[axis]),
        ):
            return False
    return True


def _get_pads(window: ir.Node) -> list[int]:
    return list(ir.get_attr(window, "pads") or [0] * 4)


def _differ_only_in_position(tile: ir.Node, first: ir.Node, axis: int) -> bool:
    """Whether two windows differ in their places and their paddings along `axis` alone."""
    if (tile.op_type, tile.domain, tile.inputs[1:]) != (
        first.op_type,
        first.domain,
        first.inputs[1:],
    ):
        return False
    kept = [
        {name: ir.get_attr(node, name) for name in node.attributes if name != "pads"}
        for node in (tile, first)
    ]
    beside = [_get_pads(node)[3 - axis :: 2] for node in (tile, first)]
    return kept[0] == kept[1] and beside[0] == beside[1] and len(tile.outputs[0].uses()) == 1


def _get_read_range(tile: ir.Node, axis: int) -> tuple[ir.Value, RowRange]:
    """Return the map of which a window reads a part, and which rows or columns that are."""
    reads = ir.require_input(tile)
    node = reads.producer()
    taken = None if node is None else sliced_positions(node, axis)
    if node is None or taken is None or taken.step != 1:
        return reads, (0, axis_length(reads, axis))
    return ir.require_input(node), (taken.start, taken.stop)
