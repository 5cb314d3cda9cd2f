"""Windows that stand in tiles of rows or columns side by side, as one over the whole map again: exact.

A limit of one layer is met by tiles of that layer alone. A run of such layers can only be cut into rows and columns
from its first to its last layer when each of them is whole.
"""

from __future__ import annotations

import itertools

from .....formats import CONCAT
from .....formats.moves.select import taken_along
from .....graph import ir
from .runs import WINDOWS, Rows, TiledRun, length

__all__ = ["whole_windows"]


def whole_windows(graph: ir.Graph) -> ir.Graph | None:
    """Return a copy of an integer graph with these windows whole; None where it has none."""
    copy = ir.clone(graph)
    joins = [node for node in copy.graph if node.op_type == CONCAT.name]
    made = [node for node in joins if _made_whole(copy, node)]
    if not made:
        return None
    ir.remove_unused(copy)
    return copy


def _made_whole(graph: ir.Graph, join: ir.Node) -> bool:
    """Put one window in place of `join` and of what it joins, where they are tiles of one; return whether they are."""
    tiles = [ir.producer(value) for value in join.inputs]
    first, axis = tiles[0], ir.attr(join, "dim")
    if first is None or first.op_type not in WINDOWS or axis not in (2, 3):
        return False
    source, _ = _read(first, axis)
    if not all(t is not None and _read(t, axis)[0] is source and _like(t, first, axis) for t in tiles):
        return False
    whole = _window(graph, join, first, source)
    pads = _pads(first)
    pads[axis] = _pads(ir.maker(join.inputs[-1]))[axis]
    ir.set_attr(whole, "pads", pads)
    if not _are_parts([tile for tile in tiles if tile is not None], whole, axis):
        for place in range(len(whole.inputs)):
            whole.replace_input_with(place, None)  # what stands in no graph shall read nothing
        return False
    ir.replace(graph, [join], [whole])
    return True


def _window(graph: ir.Graph, join: ir.Node, like: ir.Node, source: ir.Value) -> ir.Node:
    """Return a window like `like` over all of `source`, to be inserted for `join`."""
    whole = ir.make_node(
        like.op_type,
        [source, *like.inputs[1:]],
        name=str(join.name),
        output=ir.fresh_name(graph, f"{join.outputs[0].name}_whole"),
        domain=like.domain,
        like=join.outputs[0],
    )
    whole.attributes.update(like.attributes)
    return whole


def _are_parts(tiles: list[ir.Node], whole: ir.Node, axis: int) -> bool:
    """Whether `tiles`, side by side along `axis`, read what the parts of `whole` read, with their paddings."""
    run = TiledRun((whole,), axis)
    bounds = itertools.accumulate((length(tile.outputs[0], axis) for tile in tiles), initial=0)
    for node, part in zip(tiles, itertools.pairwise(bounds), strict=True):
        tile, pads = run.tile(part), _pads(node)
        if tile is None or (tile.reads[whole, 0], tile.pads[whole]) != (
            _read(node, axis)[1],
            (pads[axis - 2], pads[axis]),
        ):
            return False
    return True


def _pads(window: ir.Node) -> list[int]:
    return list(ir.attr(window, "pads") or [0] * 4)


def _like(tile: ir.Node, first: ir.Node, axis: int) -> bool:
    """Whether two windows differ in their places and their paddings along `axis` alone."""
    if (tile.op_type, tile.domain, tile.inputs[1:]) != (first.op_type, first.domain, first.inputs[1:]):
        return False
    kept = [{name: ir.attr(node, name) for name in node.attributes if name != "pads"} for node in (tile, first)]
    beside = [_pads(node)[3 - axis :: 2] for node in (tile, first)]
    return kept[0] == kept[1] and beside[0] == beside[1] and len(tile.outputs[0].uses()) == 1


def _read(tile: ir.Node, axis: int) -> tuple[ir.Value, Rows]:
    """Return the map of which a window reads a part, and which rows or columns that are."""
    reads = ir.source(tile)
    node = reads.producer()
    taken = None if node is None else taken_along(node, axis)
    if node is None or taken is None or taken.step != 1:
        return reads, (0, length(reads, axis))
    return ir.source(node), (taken.start, taken.stop)
