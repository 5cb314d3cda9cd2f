"""Runs of layers that can be computed tile by tile, and the rows or columns that each layer of a tile needs.

A run is some layers of an integer graph of which only the last one's output is read outside. The
rows a .. b-1 of that output need the rows ``a*s - p .. (b-1)*s - p + (k-1)*d`` of what a window of
k rows slides over (stride s, padding p, dilation d), and the same rows of what is computed element
by element; what lies outside of the map is the tile's own padding. So every integer of a tile is
that of the layer in one piece. The same holds of columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .....formats import (
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
from .....graph import ir

__all__ = [
    "WINDOW_OPERATORS",
    "RowRange",
    "Cascade",
    "Tile",
    "axis_length",
    "find_cascades",
    "sample_bytes",
    "is_tileable",
]

#: What slides a window over the rows, and what is computed element by element.
WINDOW_OPERATORS = (CONV2D.name, "MaxPool", AVG_POOL2D.name)
_AXIS_OPERATORS = ("Slice", CONCAT.name)  # along another axis than the rows
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
    """Layers in graph order; the last one writes the only tensor that others read.

    axis : along which it is cut: 2, the rows, or 3, the columns. What is said of rows holds of
    columns, too.
    """

    nodes: tuple[ir.Node, ...]
    axis: int = 2

    @property
    def result(self) -> ir.Value:
        """What the run is for."""
        return self.nodes[-1].outputs[0]

    @property
    def external_inputs(self) -> list[ir.Value]:
        """The tensors that are read from outside."""
        written = {node.outputs[0] for node in self.nodes}
        return list(
            dict.fromkeys(
                v for node in self.nodes for v in _get_data_inputs(node) if v not in written
            )
        )

    @property
    def along_columns(self) -> Cascade | None:
        """The same layers to be cut along the columns.

        None where one of them moves columns or rows.
        """
        across = any(
            node.op_type in _AXIS_OPERATORS and _get_axis(node) != 1 for node in self.nodes
        )
        return None if across or axis_length(self.result, 3) < 2 else replace(self, axis=3)

    def tile(self, rows: RowRange) -> Tile | None:
        """Return what the rows of the result need.

        None where a window would lie in the padding alone.
        """
        wanted: dict[ir.Value, RowRange] = {self.result: rows}
        reads: dict[tuple[ir.Node, int], RowRange] = {}
        pads: dict[ir.Node, tuple[int, int]] = {}
        for node in reversed(self.nodes):
            need, pads[node] = _compute_input_rows(node, wanted[node.outputs[0]], self.axis)
            for index, value in enumerate(_get_data_inputs(node)):
                if not 0 <= need[0] < need[1]:
                    return None
                reads[node, index] = need
                first, last = wanted.get(value, need)
                wanted[value] = (min(first, need[0]), max(last, need[1]))
        return Tile(wanted, reads, pads, self.axis)


@dataclass(frozen=True, eq=False)
class Tile:
    """Rows of one tile.

    held_rows : {tensor: rows of it that are held}. reads : {(node, data input): rows of it that are
    read} pads : {node: padding above and below}. axis : 3 where these are columns, left and right
    """

    held_rows: Mapping[ir.Value, RowRange]
    read_rows: Mapping[tuple[ir.Node, int], RowRange]
    pads: Mapping[ir.Node, tuple[int, int]]
    axis: int = 2

    def count_rows(self, value: ir.Value) -> int:
        """Return how many rows of a tensor are held."""
        first, last = self.held_rows[value]
        return last - first


def sample_bytes(value: ir.Value | None) -> int:
    """Return the bytes of one sample of a tensor of int8; 0 where its shape is not known."""
    shape = ir.get_shape(value)
    return 0 if shape is None or None in shape[1:] else math.prod(int(d or 1) for d in shape[1:])


def axis_length(value: ir.Value, axis: int) -> int:
    """Return how many rows a tensor has, or with axis 3 columns; 1 where that is not known."""
    return int((ir.get_shape(value) or (1, 1, 1, 1))[axis] or 1)


def find_cascades(nodes: Sequence[ir.Node], first: int, required_node: ir.Node) -> list[Cascade]:
    """Return the runs of `nodes` from `first` on that contain `required_node`, shortest first.

    A run grows by what reads from it; it ends where nothing but its last tensor is read outside.
    """
    runs = []
    inside: list[ir.Node] = []
    written: set[ir.Value] = set()
    for node in nodes[first:]:
        if inside and not any(v in written for v in node.inputs):
            continue
        if not is_tileable(node):
            if not inside:
                break
            continue
        inside.append(node)
        written.add(node.outputs[0])
        if required_node in inside and _has_single_output(inside):
            runs.append(Cascade(tuple(inside)))
    return runs


def _has_single_output(nodes: Sequence[ir.Node]) -> bool:
    """Whether only the last of `nodes` writes something that is read outside."""
    members = set(nodes)
    for node in nodes[:-1]:
        value = node.outputs[0]
        if value.is_graph_output() or any(use.node not in members for use in value.uses()):
            return False
    return axis_length(nodes[-1].outputs[0], 2) > 1


def is_tileable(node: ir.Node) -> bool:
    """Whether rows of the output can be computed from rows of the inputs, all of them known and of 8 bits."""
    known = (
        node.op_type in (*WINDOW_OPERATORS, *_ELEMENTWISE_OPERATORS, *_AXIS_OPERATORS)
        and find_integer_op(node) is not None
    )
    if not known or len(node.outputs) != 1:
        return False
    shapes = [ir.get_shape(v) for v in (*_get_data_inputs(node), node.outputs[0])]
    if any(s is None or len(s) != 4 or None in s[1:] for s in shapes):
        return False
    if any(
        v.dtype is not None and v.dtype.name not in ("INT8", "UINT8")
        for v in (*_get_data_inputs(node), node.outputs[0])
    ):
        return False
    if node.op_type in _AXIS_OPERATORS:
        return len({s[2] for s in shapes if s is not None}) == 1 and _get_axis(node) in (1, 3)
    if node.op_type in _ELEMENTWISE_OPERATORS:
        constants = [v for v in node.inputs[1:] if v is not None and ir.const_value(v) is not None]
        return len(set(shapes)) == 1 and all(sample_bytes(v) <= 1 for v in constants)
    weight = (
        ir.get_shape(node.inputs[1])
        if node.op_type == CONV2D.name
        else (1, 1, *(ir.get_attr(node, "kernel_shape") or ()))
    )
    return not ir.get_attr(node, "ceil_mode", 0) and weight is not None and len(weight) == 4


def _get_axis(node: ir.Node) -> int | None:
    """Return the one axis along which a Slice or an iqCat works; None for several."""
    if node.op_type == CONCAT.name:
        return int(ir.get_attr(node, "dim", ir.get_attr(node, "axis", 1))) % 4
    axes = ir.const_value(node.inputs[3]) if len(node.inputs) > 3 else None
    return int(axes[0]) % 4 if axes is not None and axes.size == 1 else None


def _get_data_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node that are computed at run time."""
    return [v for v in node.inputs if v is not None and ir.const_value(v) is None]


def _compute_input_rows(
    node: ir.Node, rows: RowRange, axis: int
) -> tuple[RowRange, tuple[int, int]]:
    """Return the rows of the inputs that `rows` of the output need, and how many above and below are padding."""
    if node.op_type not in WINDOW_OPERATORS:
        return rows, (0, 0)
    whole, place = axis_length(_get_data_inputs(node)[0], axis), axis - 2
    kernel = ir.get_attr(node, "kernel_shape") or (ir.get_shape(node.inputs[1]) or ())[2:]
    side = int(kernel[place] or 1)
    stride = (ir.get_attr(node, "strides") or [1, 1])[place]
    dilation = (ir.get_attr(node, "dilations") or [1, 1])[place]
    begin = rows[0] * stride - (ir.get_attr(node, "pads") or [0, 0])[place]
    end = begin + (rows[1] - rows[0] - 1) * stride + (side - 1) * dilation + 1
    return (max(begin, 0), min(end, whole)), (max(-begin, 0), max(end - whole, 0))
