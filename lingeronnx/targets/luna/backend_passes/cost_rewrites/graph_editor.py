"""The graph that forms are written into.

Nodes that move data, each transpose of a tensor made once.
Matrices are seen through Reshapes, which cost nothing: [1, C, H, W] is one of C rows, of C*H rows
and so on. Turning one is a Transpose of two axes, the only one whose price is known.
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

__all__ = ["MAX_CONCAT_INPUTS", "Matrix", "RewriteEditor", "element_count", "static_shape"]

#: Inputs of an iqCat that were measured right.
MAX_CONCAT_INPUTS = 5


def static_shape(value: ir.Value | None) -> list[int] | None:
    """Return the sizes of a tensor, an open batch as 1; None where one is not known."""
    shape = ir.get_shape(value)
    return None if shape is None or None in shape[1:] else [int(d or 1) for d in shape]


def element_count(value: ir.Value) -> int:
    """Return how many elements a tensor of known sizes has."""
    return math.prod(static_shape(value) or [0])


@dataclass(frozen=True)
class Matrix:
    """A tensor seen as a matrix of so many rows."""

    value: ir.Value
    rows: int

    @property
    def columns(self) -> int:
        """How many elements a row has."""
        return element_count(self.value) // self.rows

    @property
    def shape(self) -> list[int]:
        """Rows and columns."""
        return [self.rows, self.columns]


class RewriteEditor:
    """A graph with room for new nodes, which stand before the node that is written in another form."""

    def __init__(self, graph: ir.Model, target: Target, costs: NodeCostModel) -> None:
        self.graph, self.target, self.costs = graph, target, costs
        self._support_cache: dict[str, bool] = {}
        self._used_tensor_names = ir.get_tensor_names(graph)
        self._used_node_names = {str(node.name) for node in graph.graph}
        self._replaced_names: set[str] = (
            set()
        )  # names of nodes that stand in another's place by now
        self._transposed_values: dict[tuple[ir.Value, int], ir.Value] = {}
        self._reshaped_constants: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def for_graph(self, graph: ir.Model) -> RewriteEditor:
        """Return another graph with room for new nodes, which knows what was asked for this one."""
        sheet = RewriteEditor(graph, self.target, self.costs)
        sheet._support_cache = self._support_cache
        return sheet

    def is_layer_supported(
        self,
        op: str,
        over: Sequence[int],
        weight: Sequence[int],
        result: Sequence[int],
        attributes: Mapping[str, object],
    ) -> bool:
        """Whether the chip takes a layer of these sizes; layers that are alike are asked once."""
        key = repr((op, over, weight, result, sorted(attributes.items())))
        if key not in self._support_cache:
            held = make_detached_value(weight, constant=np.zeros(tuple(weight), np.int8))
            node = make_detached_node(
                op, [make_detached_value(over, computed=True), held], list(result), attributes
            )
            limits = get_layer_limits(op) if self.target.is_computed_correctly(op) else ()
            self._support_cache[key] = self.target.is_computed_correctly(op) and all(
                limit(node, self.target) is None for limit in limits
            )
        return self._support_cache[key]

    # ---- what is there already -------------------------------------------------------------------------------------

    def _find_transposed(self, matrix: Matrix) -> ir.Value | None:
        """Return what is the matrix turned, where that exists."""
        if 1 in matrix.shape:
            return matrix.value
        known = self._transposed_values.get((matrix.value, matrix.rows))
        if known is not None:
            return known
        value = matrix.value
        while (maker := ir.producer(value)) is not None and maker.op_type == RESHAPE.name:
            value = ir.require_input(maker)
            if (known := self._transposed_values.get((value, matrix.rows))) is not None:
                return known
        if (
            maker is None
            or maker.op_type != TRANSPOSE.name
            or list(ir.get_attr(maker, "perm") or []) != [1, 0]
        ):
            return None
        return ir.require_input(maker) if static_shape(value) == matrix.shape else None

    def estimate_transpose_cycles(self, *matrices: Matrix) -> float:
        """Return what it costs to turn matrices.

        Nothing for those that are there, and once for equal ones.
        """
        wanted = {(m.value, m.rows): m for m in matrices if self._find_transposed(m) is None}
        return sum(self.costs.estimate_transpose_cycles(*m.shape) for m in wanted.values())

    @staticmethod
    def find_scale(value: ir.Value) -> float | None:
        """Return the scale that a tensor is held at; None where no node before it says so."""
        while (maker := ir.producer(value)) is not None:
            stated = ir.get_attr(maker, "scale_x" if maker.op_type == QUANT.name else "scale_o")
            if stated is not None:
                return float(stated)
            if not maker.inputs or maker.inputs[0] is None:
                return None
            value = maker.inputs[0]
        return None

    # ---- new nodes -------------------------------------------------------------------------------------------------

    def name(self, base: str) -> str:
        """Return a name for a tensor that no other has."""
        return ir.reserve_name(base, self._used_tensor_names)

    def _make_node_name(self, base: str) -> str:
        """Return a name for a node that no other has."""
        return ir.reserve_name(base, self._used_node_names)

    def add_constant(self, base: str, array: np.ndarray) -> ir.Value:
        """Return a constant."""
        return ir.add_initializer(self.graph, self.name(base), array)

    def held(self, value: ir.Value, shape: Sequence[int], array: np.ndarray) -> ir.Value:
        """Return `array`, which is the constant `value` in other sizes.

        One for all that share it.
        """
        key = (value, tuple(shape))
        if key not in self._reshaped_constants:
            name = f"{value.name}_as_{'x'.join(map(str, shape))}"
            self._reshaped_constants[key] = self.add_constant(
                name, np.ascontiguousarray(array.reshape(shape))
            )
        return self._reshaped_constants[key]

    def remove_unused(self) -> None:
        """Take out what nobody needs.

        Constants in other sizes get the names of those that are gone.
        """
        ir.remove_unused(self.graph)
        for (value, _), new in self._reshaped_constants.items():
            name = str(value.name)
            if (
                str(new.name) in self.graph.graph.initializers
                and name not in self.graph.graph.initializers
            ):
                ir.rename_initializer(self.graph, new, name)

    def reshape(self, value: ir.Value, shape: Sequence[int], before: ir.Node) -> ir.Value:
        """Return `value` in other sizes."""
        if static_shape(value) == list(shape):
            return value
        return self.insert(self._reshape(value, shape, f"{before.name}_seen"), before)

    def _reshape(self, value: ir.Value, shape: Sequence[int], node_name: str) -> ir.Node:
        name = self.name(f"{value.name}_as_{'x'.join(map(str, shape))}")
        held = self.add_constant(f"{name}_shape", np.array(shape, np.int64))
        node = ir.make_node(
            RESHAPE.name,
            [value, held],
            name=self._make_node_name(node_name),
            output=name,
            like=value,
        )
        node.outputs[0].shape = ir.make_shape(list(shape))
        return node

    def transpose(self, matrix: Matrix, before: ir.Node) -> ir.Value:
        """Return the matrix turned, of sizes [columns, rows]."""
        found = self._find_transposed(matrix)
        if found is None:
            rows, columns = matrix.shape
            flat = self.reshape(matrix.value, [rows, columns], before)
            output = self.name(f"{matrix.value.name}_turned")
            title = self._make_node_name(f"{before.name}_turned")
            node = ir.make_node(
                TRANSPOSE.name, [flat], {"perm": [1, 0]}, name=title, output=output, like=flat
            )
            node.outputs[0].shape = ir.make_shape([columns, rows])
            found = self._transposed_values[matrix.value, rows] = self.insert(node, before)
        else:
            self._move_producer_before(found, before)
        return self.reshape(found, matrix.shape[::-1], before)

    def slice_rows(
        self, value: ir.Value, start: int, end: int, before: ir.Node, name: str = ""
    ) -> ir.Value:
        """Return the rows `start` ..

        `end` - 1 of a matrix; name : of the node whose place the Slice takes.
        """
        node = make_slice(
            self.graph, value, 0, start, end, f"{value.name}_from{start}", self._used_tensor_names
        )
        node.name = name or self._make_node_name(str(node.name))
        return self.insert(node, before)

    def concat_rows(self, values: Sequence[ir.Value], scale: float, before: ir.Node) -> ir.Value:
        """Return the rows of matrices that are held at one scale, one below the other."""
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
        """Return what an integer operator gives that stands for the node `replaced`.

        The first one has its name.
        """
        output, name = self.name(f"{replaced.outputs[0].name}_as_{op}"), str(replaced.name)
        title = self._make_node_name(name) if name in self._replaced_names else name
        self._replaced_names.add(name)
        node = ir.make_node(
            op,
            inputs,
            dict(sorted(attributes.items())),
            name=title,
            output=output,
            domain=replaced.domain,
            like=inputs[0],
        )
        node.outputs[0].shape = ir.make_shape(list(shape))
        return self.insert(node, replaced)

    def insert(self, node: ir.Node, before: ir.Node) -> ir.Value:
        """Insert a node of one output; return that."""
        self.graph.graph.insert_before(before, node)
        return node.outputs[0]

    def _move_producer_before(self, value: ir.Value, before: ir.Node) -> None:
        """Let what makes `value`, for a reader further behind, stand in front of `before`, which reads it as well."""
        behind = set(itertools.dropwhile(lambda node: node is not before, self.graph.graph))
        while (maker := ir.producer(value)) is not None and maker in behind:
            self.graph.graph.remove(maker)
            self.graph.graph.insert_before(before, maker)
            value, before = ir.require_input(maker), maker

    def replace_output(self, value: ir.Value, node: ir.Node) -> None:
        """Let `value` be what `node` gives, in the same sizes and under the same name.

        The node goes.
        """
        last = self._reshape(value, static_shape(node.outputs[0]) or [], f"{node.name}_back")
        self._transposed_values = {
            key: found
            for key, found in self._transposed_values.items()
            if key[0] is not node.outputs[0]
        }
        ir.replace_nodes(self.graph, [node], [last])
