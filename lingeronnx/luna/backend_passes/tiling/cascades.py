"""Cascades of layers that can be computed tile by tile, and the input rows that each tile needs.

A cascade is a set of layers of an integer graph of which only the last one's output is read
outside. The rows a .. b-1 of that output need the rows ``a*s - p .. (b-1)*s - p + (k-1)*d`` of the
input of a window with k rows (stride s, padding p, dilation d), and the same rows of the inputs of
elementwise operators; rows outside the map are the tile's own padding. Every integer of a tile
therefore equals that of the untiled layer. The same holds for columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ....ir import ir
from ....operators.integer_ops import (
    ADD,
    AVG_POOL2D,
    BATCH_NORM2D,
    CONCAT,
    CONV2D,
    MUL,
    SIGMOID,
    SUB,
    TANH,
    find_integer_op,
)

__all__ = [
    "WINDOW_OPERATORS",
    "RowRange",
    "Cascade",
    "CascadeLayer",
    "TensorSize",
    "Tile",
    "axis_length",
    "find_cascades",
    "sample_bytes",
    "is_tileable",
]

#: Operators that slide a window over the rows.
WINDOW_OPERATORS = (CONV2D.name, "MaxPool", AVG_POOL2D.name)
_AXIS_OPERATORS = ("Slice", CONCAT.name)  # tileable along another axis than the rows
_ELEMENTWISE_OPERATORS = (
    "Relu",
    "Prelu",
    "Clip",
    BATCH_NORM2D.name,
    ADD.name,
    SUB.name,
    MUL.name,
    SIGMOID.name,
    TANH.name,
)

RowRange = tuple[int, int]


@dataclass(frozen=True)
class Cascade:
    """Layers in graph order, the last of which writes the only tensor that other layers read.

    Attributes
    ----------
    axis
        Axis of the tiles: 2 for rows or 3 for columns. Descriptions of rows also apply to columns.
    """

    nodes: tuple[ir.Node, ...]
    axis: int = 2

    @property
    def result(self) -> ir.Value:
        """The output tensor of the last layer."""
        return self.nodes[-1].outputs[0]

    @property
    def external_inputs(self) -> list[ir.Value]:
        """The data inputs that no layer of the cascade produces, each once, in order of use."""
        produced = {node.outputs[0] for node in self.nodes}
        inputs: dict[ir.Value, None] = {}  # an ordered set
        for node in self.nodes:
            inputs.update(dict.fromkeys(v for v in _get_data_inputs(node) if v not in produced))
        return list(inputs)

    @property
    def along_columns(self) -> Cascade | None:
        """The same layers, to be tiled by columns (axis 3), or None if that is not possible.

        It is not if the result has fewer than two columns, or if a Slice or iqCat works on another
        axis than the channels.
        """
        if axis_length(self.result, 3) < 2:
            return None
        for node in self.nodes:
            if node.op_type in _AXIS_OPERATORS and _get_axis(node) != 1:
                return None
        return replace(self, axis=3)

    def tile(self, rows: RowRange) -> Tile | None:
        """Return the tile that computes `rows` (start, end) of the result.

        It lists the rows that it needs of every tensor. Rows are columns for axis 3. None if a
        window would cover padding only.
        """
        held_rows: dict[ir.Value, RowRange] = {self.result: rows}
        read_rows: dict[tuple[ir.Node, int], RowRange] = {}
        pads: dict[ir.Node, tuple[int, int]] = {}
        for layer in reversed(self.layers):
            needed, pads[layer.node] = layer.compute_input_rows(held_rows[layer.output])
            first, last = needed
            if layer.inputs and not 0 <= first < last:
                return None
            for index, value in enumerate(layer.inputs):
                read_rows[layer.node, index] = needed
                start, end = held_rows.get(value, needed)
                held_rows[value] = (min(start, first), max(end, last))
        return Tile(held_rows, read_rows, pads, self.axis)

    @cached_property
    def tensor_sizes(self) -> dict[ir.Value, TensorSize]:
        """Size of one sample of each tensor that a layer reads or writes, constants left out."""
        values: set[ir.Value] = set()
        for layer in self.layers:
            values.update((*layer.inputs, layer.output))
        return {value: TensorSize.from_value(value) for value in values}

    @cached_property
    def layers(self) -> tuple[CascadeLayer, ...]:
        """The rows that each layer reads, in graph order: every tile needs them."""
        return tuple(CascadeLayer.from_node(node, self.axis) for node in self.nodes)


class TensorSize(NamedTuple):
    """Bytes of one int8 sample of a tensor, bytes of one of its rows, and number of columns."""

    size_bytes: int
    row_bytes: int
    columns: int

    @classmethod
    def from_value(cls, value: ir.Value) -> TensorSize:
        """Read the size of `value`, whose shape must be known."""
        size_bytes = sample_bytes(value)
        return cls(size_bytes, size_bytes // axis_length(value, 2), axis_length(value, 3))


class CascadeLayer(NamedTuple):
    """A layer of a cascade, with the geometry of its window along the axis of the tiles.

    Attributes
    ----------
    inputs
        The inputs that are not constant, in order.
    length
        Number of input rows.
    stride, padding, reach
        Of a window: its stride, its padding before the first row, and the rows from its first to
        its last. 1, 0 and 1 for other operators, which read the rows that they write.
    """

    node: ir.Node
    inputs: tuple[ir.Value, ...]
    output: ir.Value
    length: int
    stride: int = 1
    padding: int = 0
    reach: int = 1

    @classmethod
    def from_node(cls, node: ir.Node, axis: int) -> CascadeLayer:
        """Read the geometry of `node` along `axis`, 2 for rows or 3 for columns."""
        inputs = tuple(_get_data_inputs(node))
        output = node.outputs[0]
        if node.op_type not in WINDOW_OPERATORS:
            return cls(node, inputs, output, axis_length(output, axis))
        spatial_axis = axis - 2
        kernel = ir.get_attr(node, "kernel_shape") or (ir.get_shape(node.inputs[1]) or ())[2:]
        dilation = (ir.get_attr(node, "dilations") or [1, 1])[spatial_axis]
        return cls(
            node,
            inputs,
            output,
            axis_length(inputs[0], axis),
            (ir.get_attr(node, "strides") or [1, 1])[spatial_axis],
            (ir.get_attr(node, "pads") or [0, 0])[spatial_axis],
            (int(kernel[spatial_axis] or 1) - 1) * dilation + 1,
        )

    def compute_input_rows(self, rows: RowRange) -> tuple[RowRange, tuple[int, int]]:
        """Return ((start, end) of the input rows that `rows` of the output need, paddings).

        The paddings are those before and after the rows. A layer that is no window needs the same
        rows and no padding.
        """
        begin = rows[0] * self.stride - self.padding
        end = begin + (rows[1] - rows[0] - 1) * self.stride + self.reach
        length = self.length
        return (max(begin, 0), min(end, length)), (max(-begin, 0), max(end - length, 0))


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows of the tensors of one tile, or columns if `axis` is 3.

    Attributes
    ----------
    held_rows
        Rows of each tensor that the tile holds.
    read_rows
        Rows that a node reads, by node and index of the activation input.
    pads
        Padding of each node above and below, or left and right.
    """

    held_rows: Mapping[ir.Value, RowRange]
    read_rows: Mapping[tuple[ir.Node, int], RowRange]
    pads: Mapping[ir.Node, tuple[int, int]]
    axis: int = 2

    def count_rows(self, value: ir.Value) -> int:
        """Return the number of rows (columns for axis 3) of tensor `value` in the tile."""
        start, end = self.held_rows[value]
        return end - start


def sample_bytes(value: ir.Value | None) -> int:
    """Return the bytes of one int8 sample of `value`: all sizes but the batch multiplied.

    0 if its shape is unknown.
    """
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:]:
        return 0
    return math.prod(int(dim or 1) for dim in shape[1:])


def axis_length(value: ir.Value, axis: int) -> int:
    """Return the size of `value` on `axis`, 2 for rows or 3 for columns; 1 if it is unknown."""
    return int((ir.get_shape(value) or (1, 1, 1, 1))[axis] or 1)


def find_cascades(nodes: Sequence[ir.Node], first: int, required_node: ir.Node) -> list[Cascade]:
    """Return the cascades that begin with node `first` and contain `required_node`, shortest first.

    `nodes` are in graph order. A cascade grows by tileable consumers of its tensors, and ends
    wherever only its last tensor is read outside and has more than one row.
    """
    cascades = []
    members: list[ir.Node] = []
    outside_uses: dict[ir.Value, int] = {}  # of each tensor of the members, by other nodes
    for node in nodes[first:]:
        if members and not any(value in outside_uses for value in node.inputs):
            continue
        if not is_tileable(node):
            if not members:
                break
            continue
        members.append(node)
        for value in node.inputs:
            if value in outside_uses:
                outside_uses[value] -= 1
        result = node.outputs[0]
        outside_uses[result] = len(result.uses())
        if required_node in members and _has_single_output(result, outside_uses):
            cascades.append(Cascade(tuple(members)))
    return cascades


def _has_single_output(result: ir.Value, outside_uses: Mapping[ir.Value, int]) -> bool:
    """Whether of the tensors in `outside_uses` only `result` is read by other nodes, or is output.

    It must also have more than one row.
    """
    for value, use_count in outside_uses.items():
        if value is not result and (use_count or value.is_graph_output()):
            return False
    return axis_length(result, 2) > 1


def is_tileable(node: ir.Node) -> bool:
    """Whether rows of the output of `node` can be computed from some rows of its inputs.

    The node must be an integer operator whose data are 8-bit images of known size: a 2-D window, an
    elementwise operator with equal shapes and scalar constants, or a Slice or iqCat along channels
    or columns with equal heights.
    """
    if find_integer_op(node) is None or len(node.outputs) != 1:
        return False
    tensors = [*_get_data_inputs(node), node.outputs[0]]
    if not all(map(_is_8bit_image, tensors)):
        return False
    shapes = set(map(ir.require_shape, tensors))
    if node.op_type in _AXIS_OPERATORS:
        return len({shape[2] for shape in shapes}) == 1 and _get_axis(node) in (1, 3)
    if node.op_type in _ELEMENTWISE_OPERATORS:
        return len(shapes) == 1 and _has_scalar_constants(node)
    return node.op_type in WINDOW_OPERATORS and _is_2d_window(node)


def _has_scalar_constants(node: ir.Node) -> bool:
    """Whether the constants after the first input of `node` have at most one element per sample."""
    constants = [v for v in node.inputs[1:] if v is not None and ir.is_constant(v)]
    return all(sample_bytes(value) <= 1 for value in constants)


def _is_2d_window(node: ir.Node) -> bool:
    """Whether a convolution or pool has a 2-D kernel and no `ceil_mode`."""
    if ir.get_attr(node, "ceil_mode", 0):
        return False
    if node.op_type == CONV2D.name:
        return len(ir.get_shape(node.inputs[1]) or ()) == 4
    return len(ir.get_attr(node, "kernel_shape") or ()) == 2


def _is_8bit_image(value: ir.Value) -> bool:
    """Whether `value` has rank 4, known sizes besides the batch, and an 8-bit or unknown type."""
    shape = ir.get_shape(value)
    if shape is None or len(shape) != 4 or None in shape[1:]:
        return False
    return value.dtype is None or value.dtype.name in ("INT8", "UINT8")


def _get_axis(node: ir.Node) -> int | None:
    """Return the axis (0 to 3) of an iqCat or a Slice.

    None for a Slice of several axes or without constant axes.
    """
    if node.op_type == CONCAT.name:
        return int(ir.get_attr(node, "dim", ir.get_attr(node, "axis", 1))) % 4
    axes = ir.const_value(node.inputs[3]) if len(node.inputs) > 3 else None
    return int(axes[0]) % 4 if axes is not None and axes.size == 1 else None


def _get_data_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are not constant, in order."""
    return [v for v in node.inputs if v is not None and not ir.is_constant(v)]
