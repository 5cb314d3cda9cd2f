"""A run of layers in tiles: Slices with halo, the layers on each tile one after the other, an iqCat at one scale."""

from __future__ import annotations

from collections.abc import Sequence

from .....formats import QUANT
from .....graph import ir
from ..nodes import join, part
from .runs import Rows, Tile, TiledRun

__all__ = ["emit"]


def emit(graph: ir.Graph, run: TiledRun, tiles: Sequence[tuple[Rows, Tile]]) -> None:
    """Put the tiles in place of the run, in place; the result keeps its name, the constants are shared."""
    new_nodes: list[ir.Node] = []
    parts = []
    taken = ir.names(graph)
    for number, (_, tile) in enumerate(tiles):
        tile_tensors: dict[ir.Value, ir.Value] = {}
        for node in run.nodes:
            inputs: list[ir.Value | None] = []
            index = 0
            for value in node.inputs:
                if value is None or ir.const(value) is not None:
                    inputs.append(value)
                    continue
                rows = tile.reads[node, index]
                inputs.append(
                    _rows(graph, new_nodes, tile_tensors, value, tile=tile, rows=rows, taken=taken, number=number)
                )
                index += 1
            tile_tensors[node.outputs[0]] = _copy(node, inputs, tile, taken, number)
            new_nodes.append(tile_tensors[node.outputs[0]].producer())  # type: ignore[arg-type]
        parts.append(tile_tensors[run.result])
    new_nodes.append(_joined(run, parts, taken))
    ir.replace(graph, list(run.nodes), new_nodes)


def _rows(
    graph: ir.Graph,
    new_nodes: list[ir.Node],
    tile_tensors: dict[ir.Value, ir.Value],
    value: ir.Value,
    tile: Tile,
    rows: Rows,
    taken: set[str],
    number: int,
) -> ir.Value:
    """Return the `rows` of a tensor: what the tile holds of it, or a Slice of that."""
    shape = list(ir.shape(value) or ())
    if value not in tile_tensors:  # from outside: what all readers in the tile need
        tile_tensors[value] = _slice(
            graph, new_nodes, value, (0, int(shape[2] or 1)), tile.wanted[value], taken, number
        )
    return _slice(graph, new_nodes, tile_tensors[value], tile.wanted[value], rows, taken, number)


def _slice(
    graph: ir.Graph, new_nodes: list[ir.Node], value: ir.Value, have: Rows, rows: Rows, taken: set[str], number: int
) -> ir.Value:
    if have == rows:
        return value
    new_nodes.append(part(graph, value, 2, rows[0] - have[0], rows[1] - have[0], f"{value.name}_rows{number}", taken))
    return new_nodes[-1].outputs[0]


def _copy(node: ir.Node, inputs: Sequence[ir.Value | None], tile: Tile, taken: set[str], number: int) -> ir.Value:
    """Return the output of a copy of `node` on a tile."""
    value = node.outputs[0]
    name = ir.take_name(f"{value.name}_tile{number}", taken)
    label = (
        f"{node.name}_tile{number}" if number else node.name
    )  # the first stands for the layer where layers are named
    copied = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        name=label,
        outputs=[ir.Value(name=name, type=value.type)],
    )
    copied.metadata_props.update(node.metadata_props)
    pads = ir.attr(node, "pads")
    if pads is not None:
        above, below = tile.pads[node]
        ir.set_attr(copied, "pads", [above, pads[1], below, pads[3]])
    shape = list(ir.shape(value) or ())
    first, last = tile.wanted[value]
    shape[2] = last - first
    copied.outputs[0].shape = ir.oir_shape(shape)
    return copied.outputs[0]


def _joined(run: TiledRun, parts: Sequence[ir.Value], taken: set[str]) -> ir.Node:
    """Return the iqCat of the parts, which are all held at the scale of the result."""
    scale, maker = _scale(run.result)
    name = f"{run.result.name}_joined"
    return join(parts, 2, scale, maker, name, ir.take_name(name, taken))


def _scale(value: ir.Value) -> tuple[float, ir.Node]:
    """Return the scale of a tensor and the node that says so: standard operators keep that of what they read."""
    node = value.producer()
    while node is not None:
        for key in ("scale_o",) if node.op_type != QUANT.name else ("scale_x",):
            if key in node.attributes:
                return float(ir.attr(node, key)), node
        node = ir.source(node).producer()
    raise AssertionError(f"no node says the scale of '{value.name}'")
