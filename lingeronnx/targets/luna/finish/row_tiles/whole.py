"""Windows that stand in tiles of columns side by side, as one over the whole map again: exact.

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
    if first is None or first.op_type not in WINDOWS or ir.attr(join, "dim") != 3:
        return False
    source, whole = _source(first), None
    if all(tile is not None and _source(tile) is source and _like(tile, first) for tile in tiles):
        whole = _window(graph, join, [tile for tile in tiles if tile is not None], source)
    if whole is None:
        return False
    ir.replace(graph, [join], [whole])
    return True


def _window(graph: ir.Graph, join: ir.Node, tiles: list[ir.Node], source: ir.Value) -> ir.Node | None:
    """Return the window over `source` of which `tiles` are the columns, to be inserted; None where they are not."""
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
    above, left, below, _ = ir.attr(first, "pads") or [0] * 4
    ir.set_attr(whole, "pads", [above, left, below, (ir.attr(last, "pads") or [0] * 4)[3]])
    run = TiledRun((whole,), axis=3)
    bounds = itertools.accumulate((length(tile.outputs[0], 3) for tile in tiles), initial=0)
    for node, columns in zip(tiles, itertools.pairwise(bounds), strict=True):
        tile = run.tile(columns)
        pads = ir.attr(node, "pads") or [0] * 4
        if tile is None or tile.reads[whole, 0] != _columns(node) or tile.pads[whole] != (pads[1], pads[3]):
            return None
    return whole


def _like(tile: ir.Node, first: ir.Node) -> bool:
    """Whether two windows differ in their places and their paddings beside them alone."""
    if (tile.op_type, tile.domain, tile.inputs[1:]) != (first.op_type, first.domain, first.inputs[1:]):
        return False
    kept = [{name: ir.attr(node, name) for name in node.attributes if name != "pads"} for node in (tile, first)]
    above = [(ir.attr(node, "pads") or [0] * 4)[::2] for node in (tile, first)]
    return kept[0] == kept[1] and above[0] == above[1] and len(tile.outputs[0].uses()) == 1


def _source(tile: ir.Node) -> ir.Value:
    """Return the map of which a window reads columns."""
    reads = ir.source(tile)
    node = reads.producer()
    return reads if node is None or taken_along(node, 3) is None else ir.source(node)


def _columns(tile: ir.Node) -> tuple[int, int]:
    """Return the columns of the map that a window reads."""
    reads = ir.source(tile)
    if reads is _source(tile):
        return 0, length(reads, 3)
    taken = taken_along(ir.maker(reads), 3)
    assert taken is not None
    return taken.start, taken.stop
