"""Makes the nodes that take a node's place, or stand on the way to it.

Named after it, of known sizes.
Knows what moves data (Slice, Reshape) and nothing else of operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import ir

__all__ = ["SubgraphBuilder", "convert_attributes_to_inputs"]


class SubgraphBuilder:
    """Nodes and constants made for `node`, which they are marked to come from.

    A node is called ``<node>_<what>`` (`ir.assign_node_names` makes that unique); what it writes
    and constants ``<base>_<what>``, with a number where that is taken. base : default the name of
    the node's first output. Nodes are kept in `nodes`; they come into the graph with
    `replace_node`, or by the caller's hand. Outputs have the type of the node's first one.
    """

    def __init__(self, model: ir.Model, node: ir.Node, base: str = "") -> None:
        self.model, self.node = model, node
        self.result = node.outputs[0]
        self.nodes: list[ir.Node] = []
        self._base = base or str(self.result.name)
        self._constants: list[ir.Value] = []
        self._int_constants: dict[int, ir.Value] = {}
        self._used_names = ir.get_tensor_names(model)

    def __call__(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: Sequence[ir.Dim],
        suffix: str,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Append a node; return its output, of size `shape`."""
        node = ir.make_node(
            op_type,
            inputs,
            attributes,
            origin=self.node,
            suffix=suffix,
            output=self._make_name(suffix),
            domain=domain,
            like=self.result,
        )
        node.outputs[0].shape = ir.make_shape(list(shape))
        self.nodes.append(node)
        return node.outputs[0]

    def _make_name(self, suffix: str) -> str:
        return ir.reserve_name(f"{self._base}_{suffix}", self._used_names)

    def constant(self, array: np.ndarray, suffix: str) -> ir.Value:
        """Return an initializer with `array`."""
        value = ir.add_initializer(self.model, self._make_name(suffix), array)
        self._constants.append(value)
        return value

    def int_constant(self, value: int) -> ir.Value:
        """Return the integer `value` as an initializer [1], one for all nodes."""
        if value not in self._int_constants:
            self._int_constants[value] = self.constant(
                np.array([value], np.int64), f"number{value}"
            )
        return self._int_constants[value]

    def slice_axis(
        self, source: ir.Value, axis: int, start: int, end: int, suffix: str
    ) -> ir.Value:
        """Return the positions start..end-1 of `source` along `axis`.

        `source` itself where that is all of it.
        """
        shape: list[ir.Dim] = list(source.shape or ())
        if (start, end) == (0, shape[axis]):
            return source
        shape[axis] = end - start
        return self("Slice", [source, *map(self.int_constant, (start, end, axis))], shape, suffix)

    def reshape(self, source: ir.Value, sizes: Sequence[int], suffix: str) -> ir.Value:
        """Return `source` as [batch, *sizes]."""
        batch = source.shape[0] if source.shape is not None else "N"
        target = self.constant(np.array([0, *sizes], np.int64), f"{suffix}_shape")
        return self("Reshape", [source, target], [batch, *sizes], suffix)

    def discard(self) -> None:
        """Forget what was made."""
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
        for value in self._constants:
            del self.model.graph.initializers[str(value.name)]
        self.nodes.clear()

    def replace_node(self) -> None:
        """Put the nodes where the old one was.

        The last one takes over its name and its output's.
        """
        self.nodes[-1].name = self.node.name
        for index, value in enumerate(self.node.inputs):
            if value is not None and ir.is_exclusive_initializer(value):
                self.node.replace_input_with(index, None)
                del self.model.graph.initializers[str(value.name)]
        ir.replace_nodes(self.model, [self.node], self.nodes)


def convert_attributes_to_inputs(
    model: ir.Model, node: ir.Node, arrays: Sequence[np.ndarray | None], names: Sequence[str]
) -> None:
    """Give `node` the constants `arrays` as inputs 1, 2 ...

    In place of its attributes `names`; None stays absent.
    """
    while arrays and arrays[-1] is None:
        arrays = arrays[:-1]
    node.resize_inputs(1 + len(arrays))
    for index, (array, name) in enumerate(zip(arrays, names, strict=False), start=1):
        if array is not None:
            fresh = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{name}")
            node.replace_input_with(index, ir.add_initializer(model, fresh, array))
    for name in names:
        node.attributes.pop(name, None)
