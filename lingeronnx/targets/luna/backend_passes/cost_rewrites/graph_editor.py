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
from typing import Any

import numpy as np

from .....formats import QUANT, RESHAPE, TRANSPOSE
from .....graph import ir
from .....graph.detached_nodes import make_detached_node, make_detached_value
from .... import Target
from ...packer.limits.limit_tables import get_layer_limits
from ..node_builders import make_concat, make_slice
from .node_costs import NodeCostModel

__all__ = ["Matrix", "RewriteEditor", "element_count", "static_shape"]


def static_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape with an open batch as 1; None if rank or another size is unknown."""
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:]:
        return None
    return [int(dim or 1) for dim in shape]


def element_count(value: ir.Value) -> int:
    """Return the number of elements of a tensor; 0 if its shape is unknown."""
    return math.prod(static_shape(value) or [0])


def _is_matrix_transpose(node: ir.Node) -> bool:
    """Whether a node is a Transpose of two axes."""
    return node.op_type == TRANSPOSE.name and list(ir.get_attr(node, "perm") or []) == [1, 0]


@dataclass(frozen=True)
class Matrix:
    """A tensor viewed as a matrix with `rows` rows."""

    value: ir.Value
    rows: int

    @property
    def columns(self) -> int:
        """Number of elements of a row."""
        return element_count(self.value) // self.rows

    @property
    def shape(self) -> list[int]:
        """Rows and columns."""
        return [self.rows, self.columns]


class RewriteEditor:
    """Editor of a graph.

    New nodes are inserted before the node that they replace.
    """

    def __init__(self, graph: ir.Model, target: Target, costs: NodeCostModel) -> None:
        """Prepare to rewrite `graph` in place; `costs` estimates cycles on `target`."""
        self.graph, self.target, self.costs = graph, target, costs
        self._support_cache: dict[str, bool] = {}
        self._used_tensor_names = ir.get_tensor_names(graph)
        self._used_node_names = {str(node.name) for node in graph.graph}
        self._replaced_names: set[str] = set()  # names that new nodes took over
        self._transposed_values: dict[tuple[ir.Value, int], ir.Value] = {}
        self._reshaped_constants: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def for_graph(self, graph: ir.Model) -> RewriteEditor:
        """Return an editor of another graph that shares the results of support checks."""
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
        """Whether the chip computes a layer with these shapes correctly; cached for equal layers.

        The operator must be correct and the layer within all limits.
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
        """Whether a layer with these shapes and zero weights meets all limits of the chip."""
        source = make_detached_value(input_shape, computed=True)
        weight = make_detached_value(weight_shape, constant=np.zeros(tuple(weight_shape), np.int8))
        node = make_detached_node(op, [source, weight], list(output_shape), attributes)
        return all(limit(node, self.target) is None for limit in get_layer_limits(op))

    # ---- existing tensors ------------------------------------------------------------------------

    def _find_transposed(self, matrix: Matrix) -> ir.Value | None:
        """Return an existing tensor with the transposed matrix, or None.

        Found are a matrix with one row or column itself, an earlier result of `transpose` on the
        tensor or on one that it reshapes, and the input of a Transpose that made it.
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
        """Estimate the cycles of transposing matrices.

        Existing transposes cost nothing; equal matrices count once.
        """
        missing = {(m.value, m.rows): m for m in matrices if self._find_transposed(m) is None}
        return sum(self.costs.estimate_transpose_cycles(*m.shape) for m in missing.values())

    @staticmethod
    def find_scale(value: ir.Value) -> float | None:
        """Return the scale of a tensor, or None if no upstream node declares it.

        Nodes without one are followed to their first input; a Quant declares `scale_x`, others
        `scale_o`.
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
        """Return a unique tensor name."""
        return ir.reserve_name(base_name, self._used_tensor_names)

    def _make_node_name(self, base_name: str) -> str:
        """Return a unique node name."""
        return ir.reserve_name(base_name, self._used_node_names)

    def add_constant(self, base_name: str, array: np.ndarray) -> ir.Value:
        """Add a constant with a unique name and return it."""
        return ir.add_initializer(self.graph, self.name(base_name), array)

    def reshape_constant(
        self, constant: ir.Value, shape: Sequence[int], array: np.ndarray
    ) -> ir.Value:
        """Return the constant in another shape, once for all nodes that share it.

        `array` holds its elements in any shape.
        """
        key = (constant, tuple(shape))
        if key not in self._reshaped_constants:
            name = f"{constant.name}_as_{'x'.join(map(str, shape))}"
            self._reshaped_constants[key] = self.add_constant(
                name, np.ascontiguousarray(array.reshape(shape))
            )
        return self._reshaped_constants[key]

    def remove_unused(self) -> None:
        """Remove unused nodes and constants.

        Reshaped constants get the names of originals that are removed.
        """
        ir.remove_unused(self.graph)
        initializers = self.graph.graph.initializers
        for (original, _), reshaped in self._reshaped_constants.items():
            name = str(original.name)
            if str(reshaped.name) in initializers and name not in initializers:
                ir.rename_initializer(self.graph, reshaped, name)

    def reshape(self, value: ir.Value, shape: Sequence[int], before: ir.Node) -> ir.Value:
        """Return `value` in another shape, by a Reshape before node `before` if it differs."""
        if static_shape(value) == list(shape):
            return value
        return self.insert(self._reshape(value, shape, f"{before.name}_seen"), before)

    def _reshape(self, value: ir.Value, shape: Sequence[int], node_name: str) -> ir.Node:
        """Return a new Reshape of `value` to `shape`; it is not inserted, its constant is added."""
        name = self.name(f"{value.name}_as_{'x'.join(map(str, shape))}")
        shape_constant = self.add_constant(f"{name}_shape", np.array(shape, np.int64))
        node = ir.make_node(
            RESHAPE.name,
            [value, shape_constant],
            name=self._make_node_name(node_name),
            output=name,
            like=value,
        )
        node.outputs[0].shape = ir.make_shape(list(shape))
        return node

    def transpose(self, matrix: Matrix, before: ir.Node) -> ir.Value:
        """Return the transposed matrix [columns, rows], reusing an existing one.

        A new one is inserted before `before`; a producer of a reused tensor is moved before
        `before` if it comes later.
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
        node.outputs[0].shape = ir.make_shape([columns, rows])
        transposed = self.insert(node, before)
        self._transposed_values[matrix.value, rows] = transposed
        return self.reshape(transposed, matrix.shape[::-1], before)

    def slice_rows(
        self, value: ir.Value, start: int, end: int, before: ir.Node, node_name: str = ""
    ) -> ir.Value:
        """Return the rows start .. end-1 of a matrix.

        node_name : name of the node that the Slice replaces, if it replaces one.
        """
        node = make_slice(
            self.graph, value, 0, start, end, f"{value.name}_from{start}", self._used_tensor_names
        )
        node.name = node_name or self._make_node_name(str(node.name))
        return self.insert(node, before)

    def concat_rows(self, values: Sequence[ir.Value], scale: float, before: ir.Node) -> ir.Value:
        """Insert an iqCat of `values` on axis 0 before `before`; return its output.

        All have the same `scale`, which is also that of the output.
        """
        output = self.name(f"{values[0].name}_joined")
        node = make_concat(values, 0, scale, before, output, output)
        node.name = self._make_node_name(str(node.name))
        for key, value in self.target.node_attributes.get("", {}).items():
            ir.set_attr(node, key, value)
        return self.insert(node, before)

    def add_operator(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, Any],
        shape: Sequence[int],
        replaced: ir.Node,
    ) -> ir.Value:
        """Insert an integer operator in place of the node `replaced` and return its output.

        The first such operator takes over the node's name.
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
        node.outputs[0].shape = ir.make_shape(list(shape))
        return self.insert(node, replaced)

    def insert(self, node: ir.Node, before: ir.Node) -> ir.Value:
        """Insert a node with one output before another node and return its output."""
        self.graph.graph.insert_before(before, node)
        return node.outputs[0]

    def _move_producer_before(self, value: ir.Value, before: ir.Node) -> None:
        """Move the producers of `value` that come after node `before` to the place before it.

        Follows first inputs upstream as long as their producer comes after.
        """
        downstream = set(itertools.dropwhile(lambda node: node is not before, self.graph.graph))
        while (producer := ir.producer(value)) is not None and producer in downstream:
            self.graph.graph.remove(producer)
            self.graph.graph.insert_before(before, producer)
            value, before = ir.require_input(producer), producer

    def replace_output(self, value: ir.Value, node: ir.Node) -> None:
        """Replace `node` by `value`, reshaped and renamed to the node's output.

        Cached transposes of the old output are forgotten.
        """
        old_output = node.outputs[0]
        reshape = self._reshape(value, static_shape(old_output) or [], f"{node.name}_back")
        self._transposed_values = {
            key: transposed
            for key, transposed in self._transposed_values.items()
            if key[0] is not old_output
        }
        ir.replace_nodes(self.graph, [node], [reshape])
