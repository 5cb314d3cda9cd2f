"""Windows that stand in tiles of rows or columns side by side, as one over the whole map again: exact.

A limit of one layer is met by tiles of that layer alone. A run of such layers can only be cut into rows and columns
from its first to its last layer when each of them is whole.
"""

from __future__ import annotations

import itertools

from .....formats import CONCAT
from .....formats.moves.select import taken_along
from .....graph import ir
from .runs import WINDOWS, TiledRun, length

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
    tiles = [value.producer() for value in join.inputs if value is not None]
    first = tiles[0]
    axis = ir.attr(join, "dim")
    if first is None or first.op_type not in WINDOWS or axis not in (2, 3):
        return False
    source, whole = _source(first, axis), None
    if all(tile is not None and _source(tile, axis) is source and _like(tile, first, axis) for tile in tiles):
        whole = _window(graph, join, [tile for tile in tiles if tile is not None], source)
    if whole is None:
        return False
    ir.replace(graph, [join], [whole])
    return True


def _window(graph: ir.Graph, join: ir.Node, tiles: list[ir.Node], source: ir.Value) -> ir.Node | None:
    """Return the window over `source` of which `tiles` are parts, to be inserted; None where they are not."""
    first, last = tiles[0], tiles[-1]
    whole = ir.make_node(
        first.op_type,
        [source, *first.inputs[1:]],
        name=str(join.name),
        output=ir.fresh_name(graph, f"{join.outputs[0].name}_whole"),
        domain=first.domain,
        like=join.outputs[0],
    )
    for name, attribute in first.attributes.items():
        whole.attributes[name] = attribute
    axis = int(ir.attr(join, "dim"))
    pads = _pads(first)
    pads[axis] = _pads(last)[axis]
    ir.set_attr(whole, "pads", pads)
    run = TiledRun((whole,), axis)
    bounds = itertools.accumulate((length(tile.outputs[0], axis) for tile in tiles), initial=0)
    for node, part in zip(tiles, itertools.pairwise(bounds), strict=True):
        tile = run.tile(part)
        if tile is None or tile.reads[whole, 0] != _read(node, axis):
            return None
        if tile.pads[whole] != (_pads(node)[axis - 2], _pads(node)[axis]):
            return None
    return whole


def _pads(window: ir.Node) -> list[int]:
    return list(ir.attr(window, "pads") or [0] * 4)


def _like(tile: ir.Node, first: ir.Node, axis: int) -> bool:
    """Whether two windows differ in their places and their paddings along `axis` alone."""
    if (tile.op_type, tile.domain, tile.inputs[1:]) != (first.op_type, first.domain, first.inputs[1:]):
        return False
    kept = [{name: ir.attr(node, name) for name in node.attributes if name != "pads"} for node in (tile, first)]
    beside = [_pads(node)[3 - axis :: 2] for node in (tile, first)]
    return kept[0] == kept[1] and beside[0] == beside[1] and len(tile.outputs[0].uses()) == 1


def _source(tile: ir.Node, axis: int) -> ir.Value:
    """Return the map of which a window reads a part."""
    reads = ir.source(tile)
    node = reads.producer()
    return reads if node is None or taken_along(node, axis) is None else ir.source(node)


def _read(tile: ir.Node, axis: int) -> tuple[int, int]:
    """Return the rows or columns of the map that a window reads."""
    reads = ir.source(tile)
    if reads is _source(tile, axis):
        return 0, length(reads, axis)
    taken = taken_along(ir.maker(reads), axis)
    assert taken is not None
    return taken.start, taken.stop
