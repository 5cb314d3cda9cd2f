"""A run of layers in tiles.

Slices with halo, the layers on each tile one after the other, an iqCat at one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .....formats import QUANT
from .....graph import ir
from ..node_builders import make_concat, make_slice
from .cascades import Cascade, RowRange, Tile

__all__ = ["emit_tiles"]

#: What is taken of a tensor, and what is made of a layer, by the axis.
_AXIS_NAMES = {2: ("rows", "tile"), 3: ("columns", "strip")}


def emit_tiles(graph: ir.Model, run: Cascade, tiles: Sequence[Tile]) -> list[Cascade]:
    """Put the tiles in place of the run, in place.

    The result keeps its name, the constants are shared.
    Return the layers of each tile, to be cut along the other axis.
    """
    taken = ir.get_tensor_names(graph)
    written = [_TileEmitter(graph, tile, number, taken) for number, tile in enumerate(tiles)]
    parts = [each.add(run) for each in written]
    new_nodes = [node for each in written for node in (*each.entries, *each.layers)]
    ir.replace_nodes(graph, list(run.nodes), [*new_nodes, _make_output_concat(run, parts, taken)])
    return [Cascade(tuple(each.layers)) for each in written]


@dataclass
class _TileEmitter:
    """The nodes of one tile: Slices of what lies outside, and the layers.

    held : {tensor: what the tile has of it}. taken : names that tensors have; the new ones are
    added.
    """

    graph: ir.Model
    tile: Tile
    number: int
    used_names: set[str]
    entries: list[ir.Node] = field(default_factory=list)
    layers: list[ir.Node] = field(default_factory=list)
    held: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def add(self, run: Cascade) -> ir.Value:
        """Write the layers of the run; return what they make of its result."""
        for node in run.nodes:
            inputs: list[ir.Value | None] = []
            index = 0
            for value in node.inputs:
                if value is None or ir.const_value(value) is not None:
                    inputs.append(value)
                    continue
                inputs.append(self._rows(value, self.tile.read_rows[node, index]))
                index += 1
            self.layers.append(self._copy(node, inputs))
            self.held[node.outputs[0]] = self.layers[-1].outputs[0]
        return self.held[run.result]

    def _rows(self, value: ir.Value, rows: RowRange) -> ir.Value:
        """Return the `rows` of a tensor: what the tile holds of it, or a Slice of that."""
        wanted = self.tile.held_rows[value]
        if value not in self.held:  # from outside: what all readers in the tile need
            whole = (0, int((ir.get_shape(value) or ())[self.tile.axis] or 1))
            self.held[value] = self._slice(self.entries, value, whole, wanted)
        return self._slice(self.layers, self.held[value], wanted, rows)

    def _slice(
        self, nodes: list[ir.Node], value: ir.Value, have: RowRange, rows: RowRange
    ) -> ir.Value:
        if have == rows:
            return value
        axis = self.tile.axis
        name = f"{value.name}_{_AXIS_NAMES[axis][0]}{self.number}"
        nodes.append(
            make_slice(
                self.graph, value, axis, rows[0] - have[0], rows[1] - have[0], name, self.used_names
            )
        )
        return nodes[-1].outputs[0]

    def _copy(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        """Return a copy of `node` on the tile.

        The first one stands for the layer where layers are named.
        """
        value, tile = node.outputs[0], self.tile
        suffix = f"_{_AXIS_NAMES[tile.axis][1]}{self.number}"
        copied = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            name=f"{node.name}{suffix}" if self.number else node.name,
            outputs=[
                ir.Value(
                    name=ir.reserve_name(f"{value.name}{suffix}", self.used_names), type=value.type
                )
            ],
        )
        copied.metadata_props.update(node.metadata_props)
        pads = ir.get_attr(node, "pads")
        if pads is not None:
            pads = list(pads)
            pads[tile.axis - 2], pads[tile.axis] = tile.pads[node]
            ir.set_attr(copied, "pads", pads)
        shape = list(ir.get_shape(value) or ())
        shape[tile.axis] = tile.count_rows(value)
        copied.outputs[0].shape = ir.make_shape(shape)
        return copied


def _make_output_concat(run: Cascade, parts: Sequence[ir.Value], taken: set[str]) -> ir.Node:
    """Return the iqCat of the parts, which are all held at the scale of the result."""
    scale, maker = _find_scale(run.result)
    name = f"{run.result.name}_joined"
    return make_concat(parts, run.axis, scale, maker, name, ir.reserve_name(name, taken))


def _find_scale(value: ir.Value) -> tuple[float, ir.Node]:
    """Return the scale of a tensor and the node that says so.

    Standard operators keep that of what they read.
    """
    node = value.producer()
    while node is not None:
        for key in ("scale_o",) if node.op_type != QUANT.name else ("scale_x",):
            if key in node.attributes:
                return float(ir.get_attr(node, key)), node
        node = ir.require_input(node).producer()
    raise AssertionError(f"no node says the scale of '{value.name}'")
