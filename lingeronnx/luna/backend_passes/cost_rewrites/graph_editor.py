"""Editor of a graph for cost rewrites: inserts data movement, and transposes each tensor only once.

Tensors are viewed as matrices through Reshapes, which cost nothing: [1, C, H, W] is a matrix of C
rows, of C*H rows and so on. A matrix is transposed by a Transpose of two axes, the only one with a
known cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ....ir import ir
from ....ir.detached_nodes import make_detached_node, make_detached_value
from ....operators.integer_ops import QUANT, RESHAPE, TRANSPOSE
from ....targets import Target
from ...packer.limits.limit_tables import get_layer_limits
from ..node_builders import MAX_CONCAT_INPUTS, make_concat, make_slice
from .node_costs import NodeCostModel

__all__ = ["Matrix", "RewriteEditor", "element_count", "static_shape"]

_T = TypeVar("_T")


def static_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape of `value` with an unknown batch as 1.

    None if rank or another size is unknown.
    """
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:]:
        return None
    return [int(dim or 1) for dim in shape]


def element_count(value: ir.Value) -> int:
    """Return the number of elements of `value`.

    An unknown batch counts as 1, an unknown shape as 0.
    """
    return math.prod(static_shape(value) or [0])


def _group_for_concat(operands: Sequence[_T]) -> list[Sequence[_T]]:
    """Group `operands` into lists of at most `MAX_CONCAT_INPUTS`."""
    starts = range(0, len(operands), MAX_CONCAT_INPUTS)
    return [operands[start : start + MAX_CONCAT_INPUTS] for start in starts]


def _is_matrix_transpose(node: ir.Node) -> bool:
    """Whether `node` is a Transpose with perm [1, 0]."""
    return node.op_type == TRANSPOSE.name and list(ir.get_attr(node, "perm") or []) == [1, 0]


@dataclass(frozen=True)
class Matrix:
    """A tensor viewed as a matrix with `rows` rows."""

    value: ir.Value
    rows: int

    @property
    def columns(self) -> int:
        """Number of elements of a row, elements // rows."""
        return element_count(self.value) // self.rows

    @property
    def shape(self) -> list[int]:
        """[rows, columns]."""
        return [self.rows, self.columns]


class RewriteEditor:
    """Editor of a graph for cost rewrites.

    New nodes are inserted before the node that they replace; transposes and reshaped constants are
    reused.
    """

    def __init__(self, graph: ir.Model, target: Target, costs: NodeCostModel) -> None:
        """Prepare to rewrite `graph` in place; `costs` estimates cycles on `target`.

        Nothing is changed yet.
        """
        self.graph, self.target, self.costs = graph, target, costs
        self._support_cache: dict[str, bool] = {}
        self._used_tensor_names = ir.get_tensor_names(graph)
        self._used_node_names = {str(node.name) for node in graph.graph}
        self._replaced_names: set[str] = set()  # names that new nodes took over
        self._transposed_values: dict[tuple[ir.Value, int], ir.Value] = {}
        self._reshaped_constants: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def for_graph(self, graph: ir.Model) -> RewriteEditor:
        """Return an editor of `graph` with the same target and costs.

        It shares this editor's cache of support checks, but no other state.
        """
        editor = RewriteEditor(graph, self.target, self.costs)
        editor._support_cache = self._support_cache
        return editor

    def is_layer_supported(
        self,
        op: str,
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        output_shape: Sequence[int],
        attributes: Mapping[str, object],
    ) -> bool:
        """Whether the chip computes a layer with these shapes and attributes correctly.

        Operator `op` must be computed correctly and the layer within all limits; results are
        cached.
        """
        key = repr((op, input_shape, weight_shape, output_shape, sorted(attributes.items())))
        if key not in self._support_cache:
            self._support_cache[key] = self.target.is_computed_correctly(op) and self._is_in_limits(
                op, input_shape, weight_shape, output_shape, attributes
            )
        return self._support_cache[key]

    def _is_in_limits(
        self,
        op: str,
        input_shape: Sequence[int],
        weight_shape: Sequence[int],
        output_shape: Sequence[int],
        attributes: Mapping[str, object],
    ) -> bool:
        """Whether a layer of operator `op` with these shapes meets the limits of the chip.

        Limits that tiling satisfies do not count; the weights are zeros. The node is detached, so
        the graph does not change.
        """
        source = make_detached_value(input_shape, computed=True)
        weight = make_detached_value(weight_shape, constant=np.zeros(tuple(weight_shape), np.int8))
        node = make_detached_node(op, [source, weight], list(output_shape), attributes)
        return all(limit(node, self.target) is None for limit in get_layer_limits(op))

    # ---- existing tensors ------------------------------------------------------------------------

    def _find_transposed(self, matrix: Matrix) -> ir.Value | None:
        """Return an existing tensor that holds the transposed `matrix`, or None.

        That is the tensor itself for one row or column, an earlier transpose by this editor of the
        tensor or one that it reshapes, or the input of the Transpose that produced it. Its shape
        may differ.
        """
        if 1 in matrix.shape:
            return matrix.value
        value: ir.Value = matrix.value
        while True:
            transposed = self._transposed_values.get((value, matrix.rows))
            if transposed is not None:
                return transposed
            producer = ir.producer(value)
            if producer is None or producer.op_type != RESHAPE.name:
                break
            value = ir.require_input(producer)
        if producer is None or not _is_matrix_transpose(producer):
            return None
        return ir.require_input(producer) if static_shape(value) == matrix.shape else None

    def estimate_transpose_cycles(self, *matrices: Matrix) -> float:
        """Estimate the total cycles of transposing `matrices`.

        One that exists already in transposed form costs nothing; equal matrices count once.
        """
        missing = {(m.value, m.rows): m for m in matrices if self._find_transposed(m) is None}
        return sum(self.costs.estimate_transpose_cycles(*m.shape) for m in missing.values())

    @staticmethod
    def find_scale(value: ir.Value) -> float | None:
        """Return the scale of `value`, or None if no upstream node declares it.

        A Quant declares `scale_x`, other nodes `scale_o`; nodes without one are followed to their
        first input.
        """
        while (producer := ir.producer(value)) is not None:
            key = "scale_x" if producer.op_type == QUANT.name else "scale_o"
            scale = ir.get_attr(producer, key)
            if scale is not None:
                return float(scale)
            if not producer.inputs or producer.inputs[0] is None:
                return None
            value = producer.inputs[0]
        return None

    # ---- new nodes -------------------------------------------------------------------------------

    def name(self, base_name: str) -> str:
        """Reserve and return a unique tensor name that begins with `base_name`."""
        return ir.reserve_name(base_name, self._used_tensor_names)

    def _make_node_name(self, base_name: str) -> str:
        """Reserve and return a unique node name that begins with `base_name`."""
        return ir.reserve_name(base_name, self._used_node_names)

    def add_constant(self, base_name: str, array: np.ndarray) -> ir.Value:
        """Add `array` to the graph as a constant with a unique name; return its value."""
        return ir.add_initializer(self.graph, self.name(base_name), array)

    def reshape_constant(
        self, constant: ir.Value, shape: Sequence[int], array: np.ndarray
    ) -> ir.Value:
        """Return `constant` as a new constant of `shape`; equal requests give the same one.

        `array` holds its elements, in any shape.
        """
        key = (constant, tuple(shape))
        if key not in self._reshaped_constants:
            name = f"{constant.name}_as_{'x'.join(map(str, shape))}"
            self._reshaped_constants[key] = self.add_constant(
                name, np.ascontiguousarray(array.reshape(shape))
            )
        return self._reshaped_constants[key]

    def remove_unused(self) -> None:
        """Remove unused nodes and constants of the graph.

        A reshaped constant gets the name of its original if that is removed.
        """
        ir.remove_unused(self.graph)
        initializers = self.graph.graph.initializers
        for (original, _), reshaped in self._reshaped_constants.items():
            name = str(original.name)
            if str(reshaped.name) in initializers and name not in initializers:
                ir.rename_initializer(self.graph, reshaped, name)

    def reshape(self, value: ir.Value, shape: Sequence[int], before: ir.Node) -> ir.Value:
        """Return `value` in another shape, by a new Reshape before node `before`.

        Returns `value` itself if it has that shape.
        """
        if static_shape(value) == list(shape):
            return value
        return self.insert(self._reshape(value, shape, f"{before.name}_seen"), before)

    def _reshape(self, value: ir.Value, shape: Sequence[int], node_name: str) -> ir.Node:
        """Make a Reshape of `value` to `shape` without inserting it.

        The constant with the shape is added to the graph; names become unique.
        """
        name = self.name(f"{value.name}_as_{'x'.join(map(str, shape))}")
        shape_constant = self.add_constant(f"{name}_shape", np.array(shape, np.int64))
        node = ir.make_node(
            RESHAPE.name,
            [value, shape_constant],
            name=self._make_node_name(node_name),
            output=name,
            like=value,
        )
        node.outputs[0].shape = ir.Shape(list(shape))
        return node

    def transpose(self, matrix: Matrix, before: ir.Node) -> ir.Value:
        """Return the transposed matrix [columns, rows], reusing an existing one.

        A new Transpose is inserted before node `before`; the producer of a reused tensor is moved
        before `before` if it comes later.
        """
        transposed = self._find_transposed(matrix)
        if transposed is not None:
            self._move_producer_before(transposed, before)
            return self.reshape(transposed, matrix.shape[::-1], before)
        rows, columns = matrix.shape
        source = self.reshape(matrix.value, [rows, columns], before)
        output_name = self.name(f"{matrix.value.name}_turned")
        node_name = self._make_node_name(f"{before.name}_turned")
        node = ir.make_node(
            TRANSPOSE.name,
            [source],
            {"perm": [1, 0]},
            name=node_name,
            output=output_name,
            like=source,
        )
        node.outputs[0].shape = ir.Shape([columns, rows])
        transposed = self.insert(node, before)
        self._transposed_values[matrix.value, rows] = transposed
        return self.reshape(transposed, matrix.shape[::-1], before)

    def slice_rows(
        self, value: ir.Value, start: int, end: int, before: ir.Node, node_name: str = ""
    ) -> ir.Value:
        """Insert a Slice of rows `start` to `end` - 1 of `value` before `before`.

        Return its output. `node_name` is the name of the node that the Slice replaces; "" gives a
        new unique name.
        """
        node = make_slice(
            self.graph, value, 0, start, end, f"{value.name}_from{start}", self._used_tensor_names
        )
        node.name = node_name or self._make_node_name(str(node.name))
        return self.insert(node, before)

    def concat_rows(self, values: Sequence[ir.Value], scale: float, before: ir.Node) -> ir.Value:
        """Insert iqCats of `values` on axis 0 before node `before`; return their output.

        All have the same `scale`, which is also that of the output. There are several iqCats, whose
        outputs are joined in turn, for more than `MAX_CONCAT_INPUTS` values.
        """
        while len(values) > MAX_CONCAT_INPUTS:
            values = [
                self.concat_rows(group, scale, before) if len(group) > 1 else group[0]
                for group in _group_for_concat(values)
            ]
        output = self.name(f"{values[0].name}_joined")
        node = make_concat(values, 0, scale, before, output, output)
        node.name = self._make_node_name(str(node.name))
        for key, value in self.target.node_attributes.get("", {}).items():
            ir.set_attr(node, key, value)
        return self.insert(node, before)

    def estimate_concat_cycles(self, sizes: Sequence[int]) -> float:
        """Estimate the cycles of the iqCats that join 8-bit vectors of these sizes."""
        cycles = 0.0
        while len(sizes) > MAX_CONCAT_INPUTS:
            groups = _group_for_concat(sizes)
            cycles += sum(
                self.costs.estimate_concat_cycles(group) for group in groups if len(group) > 1
            )
            sizes = [sum(group) for group in groups]
        return cycles + self.costs.estimate_concat_cycles(sizes)

    def add_operator(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, Any],
        shape: Sequence[int],
        replaced: ir.Node,
    ) -> ir.Value:
        """Insert integer operator `op` before the node `replaced` that it replaces.

        Return its output. The first operator for that node takes over its name, further ones get
        unique names. The output has `shape` and the type of the first input.
        """
        output_name = self.name(f"{replaced.outputs[0].name}_as_{op}")
        node_name = str(replaced.name)
        if node_name in self._replaced_names:
            node_name = self._make_node_name(node_name)
        self._replaced_names.add(str(replaced.name))
        node = ir.make_node(
            op,
            inputs,
            dict(sorted(attributes.items())),
            name=node_name,
            output=output_name,
            domain=replaced.domain,
            like=inputs[0],
        )
        node.outputs[0].shape = ir.Shape(list(shape))
        return self.insert(node, replaced)

    def insert(self, node: ir.Node, before: ir.Node) -> ir.Value:
        """Insert `node`, with one output, before node `before`; return its output."""
        self.graph.graph.insert_before(before, node)
        return node.outputs[0]

    def _move_producer_before(self, value: ir.Value, before: ir.Node) -> None:
        """Move the producer of `value`, if it comes after node `before`, to directly before it.

        Its own first inputs are followed upstream and moved too as long as they come after.
        """
        downstream = set(itertools.dropwhile(lambda node: node is not before, self.graph.graph))
        while (producer := ir.producer(value)) is not None and producer in downstream:
            self.graph.graph.remove(producer)
            self.graph.graph.insert_before(before, producer)
            value, before = ir.require_input(producer), producer

    def replace_output(self, value: ir.Value, node: ir.Node) -> None:
        """Replace `node` by a Reshape of `value` that writes the node's output with its name.

        Transposes of the old output are no longer reused.
        """
        old_output = node.outputs[0]
        reshape = self._reshape(value, static_shape(old_output) or [], f"{node.name}_back")
        self._transposed_values = {
            key: transposed
            for key, transposed in self._transposed_values.items()
            if key[0] is not old_output
        }
        ir.replace_nodes(self.graph, [node], [reshape])
