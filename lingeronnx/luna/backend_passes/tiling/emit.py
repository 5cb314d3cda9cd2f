"""Emit a cascade in tiles: Slices with halo, the layers of each tile in turn, and an iqCat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....ir import ir
from ..node_builders import find_scale, make_concat, make_slice
from .cascades import Cascade, RowRange, Tile

__all__ = ["emit_tiles"]

#: Name suffixes of slices of tensors and of copies of layers, by axis.
_AXIS_NAMES = {2: ("rows", "tile"), 3: ("columns", "strip")}


def emit_tiles(graph: ir.Model, run: Cascade, tiles: Sequence[Tile]) -> list[Cascade]:
    """Replace cascade `run` by its tiles and an iqCat of their results, in place.

    The result keeps its name, and the tiles share the constants.

    Returns
    -------
    list of Cascade
        The layers of each tile, which can be tiled along the other axis.
    """
    used_names = ir.get_tensor_names(graph)
    emitters = [_TileEmitter(graph, tile, index, used_names) for index, tile in enumerate(tiles)]
    parts = [emitter.emit_layers(run) for emitter in emitters]
    new_nodes: list[ir.Node] = []
    for emitter in emitters:
        new_nodes += [*emitter.input_slices, *emitter.layers]
    concat = _make_output_concat(run, parts, used_names)
    ir.replace_nodes(graph, list(run.nodes), [*new_nodes, concat])
    return [Cascade(tuple(emitter.layers)) for emitter in emitters]


@dataclass
class _TileEmitter:
    """Emits the nodes of one tile.

    Attributes
    ----------
    index
        Index of the tile.
    used_names
        Tensor names in use; the new names are added.
    input_slices
        Slices of tensors from outside.
    layers
        The layers, with Slices of tensors of the tile between them.
    tile_values
        The tile's part of each tensor.
    """

    graph: ir.Model
    tile: Tile
    index: int
    used_names: set[str]
    input_slices: list[ir.Node] = field(default_factory=list)
    layers: list[ir.Node] = field(default_factory=list)
    tile_values: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def emit_layers(self, run: Cascade) -> ir.Value:
        """Make the layers of cascade `run` for this tile and return the tile's part of its result.

        Each layer reads the rows that the tile needs; constants are shared. Slices and layers are
        collected, not inserted into the graph.
        """
        for node in run.nodes:
            inputs: list[ir.Value | None] = []
            data_index = 0
            for value in node.inputs:
                if value is None or ir.const_value(value) is not None:
                    inputs.append(value)
                    continue
                inputs.append(self._get_rows(value, self.tile.read_rows[node, data_index]))
                data_index += 1
            layer = self._copy_layer(node, inputs)
            self.layers.append(layer)
            self.tile_values[node.outputs[0]] = layer.outputs[0]
        return self.tile_values[run.result]

    def _get_rows(self, value: ir.Value, rows: RowRange) -> ir.Value:
        """Return `rows` of tensor `value`, by a Slice if the tile holds more rows of it.

        A tensor from outside the cascade is first sliced to the rows that all consumers in the tile
        need.
        """
        held_rows = self.tile.held_rows[value]
        if value not in self.tile_values:  # from outside: a Slice for all consumers in the tile
            all_rows = (0, int((ir.get_shape(value) or ())[self.tile.axis] or 1))
            self.tile_values[value] = self._slice(self.input_slices, value, all_rows, held_rows)
        return self._slice(self.layers, self.tile_values[value], held_rows, rows)

    def _slice(
        self, nodes: list[ir.Node], value: ir.Value, value_rows: RowRange, rows: RowRange
    ) -> ir.Value:
        """Return `rows` of `value`, which holds `value_rows`; both count in the complete tensor.

        Appends a Slice to `nodes`, unless both ranges are equal.
        """
        if value_rows == rows:
            return value
        axis, offset = self.tile.axis, value_rows[0]
        name = f"{value.name}_{_AXIS_NAMES[axis][0]}{self.index}"
        start, end = rows[0] - offset, rows[1] - offset
        slice_node = make_slice(self.graph, value, axis, start, end, name, self.used_names)
        nodes.append(slice_node)
        return slice_node.outputs[0]

    def _copy_layer(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        """Make a copy of `node` on `inputs`, with the pads and the output shape of this tile.

        The copy of the first tile keeps the layer's name.
        """
        value, tile = node.outputs[0], self.tile
        suffix = f"_{_AXIS_NAMES[tile.axis][1]}{self.index}"
        output_name = ir.reserve_name(f"{value.name}{suffix}", self.used_names)
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            name=f"{node.name}{suffix}" if self.index else node.name,
            outputs=[ir.Value(name=output_name, type=value.type)],
        )
        copy.metadata_props.update(node.metadata_props)
        pads = ir.get_attr(node, "pads")
        if pads is not None:
            pads = list(pads)
            pads[tile.axis - 2], pads[tile.axis] = tile.pads[node]
            ir.set_attr(copy, "pads", pads)
        shape = list(ir.get_shape(value) or ())
        shape[tile.axis] = tile.count_rows(value)
        copy.outputs[0].shape = ir.Shape(shape)
        return copy


def _make_output_concat(run: Cascade, parts: Sequence[ir.Value], used_names: set[str]) -> ir.Node:
    """Make the iqCat that joins `parts` along the axis of cascade `run`, at its result's scale."""
    scale, scale_node = find_scale(run.result)
    name = f"{run.result.name}_joined"
    return make_concat(parts, run.axis, scale, scale_node, name, ir.reserve_name(name, used_names))
