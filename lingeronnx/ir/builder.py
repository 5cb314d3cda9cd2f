"""Build the nodes that replace a node or convert its operands, with known shapes and derived names.

Knows the operators that move data (Slice, Reshape), and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import ir

__all__ = ["SubgraphBuilder", "convert_attributes_to_inputs"]


class SubgraphBuilder:
    """Builder of the nodes and constants that replace `node`.

    A new node is called ``<node>_<suffix>`` (`ir.assign_node_names` makes that unique) and marked
    as created for `node`. Its output and constants are called ``<base>_<suffix>``, with a number if
    that is taken; `base` defaults to the name of the node's first output. New nodes are collected
    in `nodes` until `replace_node`, or the caller, inserts them into the graph. Outputs have the
    element type of the node's first output.
    """

    def __init__(self, model: ir.Model, node: ir.Node, base: str = "") -> None:
        """Prepare to replace `node`; names begin with `base`, "" for that of its first output."""
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
        """Append a node to `nodes` and return its only output.

        `shape` is the shape of the output, and `suffix` is for the names of node and output; the
        element type is that of the replaced node's first output.
        """
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
        node.outputs[0].shape = ir.Shape(list(shape))
        self.nodes.append(node)
        return node.outputs[0]

    def _make_name(self, suffix: str) -> str:
        """Reserve and return the tensor name "<base>_<suffix>", with a number if it is taken.

        The base is usually the name of the replaced node's output.
        """
        return ir.reserve_name(f"{self._base}_{suffix}", self._used_names)

    def constant(self, array: np.ndarray, suffix: str) -> ir.Value:
        """Add `array` to the model as initializer "<base>_<suffix>", and return its value."""
        value = ir.add_initializer(self.model, self._make_name(suffix), array)
        self._constants.append(value)
        return value

    def int_constant(self, value: int) -> ir.Value:
        """Return `value` as an int64 initializer of shape [1], created once per builder."""
        if value not in self._int_constants:
            self._int_constants[value] = self.constant(
                np.array([value], np.int64), f"number{value}"
            )
        return self._int_constants[value]

    def slice_axis(
        self, source: ir.Value, axis: int, start: int, end: int, suffix: str
    ) -> ir.Value:
        """Append a Slice of `source` to start..end-1 along `axis` and return its output.

        Returns `source` itself, and appends nothing, if that is the full axis. The shape of
        `source` must be known.
        """
        shape: list[ir.Dim] = list(source.shape or ())
        if (start, end) == (0, shape[axis]):
            return source
        shape[axis] = end - start
        return self("Slice", [source, *map(self.int_constant, (start, end, axis))], shape, suffix)

    def reshape(self, source: ir.Value, sizes: Sequence[int], suffix: str) -> ir.Value:
        """Append a Reshape of `source` to [batch, *sizes] and return its output.

        Axis 0 keeps its size (0 in the target shape).
        """
        batch = source.shape[0] if source.shape is not None else "N"
        target = self.constant(np.array([0, *sizes], np.int64), f"{suffix}_shape")
        return self("Reshape", [source, target], [batch, *sizes], suffix)

    def discard(self) -> None:
        """Undo the builder: detach the new nodes from their inputs and forget them.

        The constants that it added are removed from the model. The original node is unchanged.
        """
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
        for value in self._constants:
            del self.model.graph.initializers[str(value.name)]
        self.nodes.clear()

    def replace_node(self, other_outputs: Mapping[int, ir.Value] | None = None) -> None:
        """Replace the original node by the new ones, in place.

        The last one takes over its name and the name and consumers of its first output;
        `other_outputs` maps indices of further outputs to values of new nodes that replace them.
        Initializers that only the original node reads are removed from the model.
        """
        self.nodes[-1].name = self.node.name
        for index, value in enumerate(self.node.inputs):
            if value is not None and ir.is_exclusive_initializer(value):
                self.node.replace_input_with(index, None)
                del self.model.graph.initializers[str(value.name)]
        ir.replace_nodes(self.model, [self.node], self.nodes, other_outputs)


def convert_attributes_to_inputs(
    model: ir.Model, node: ir.Node, arrays: Sequence[np.ndarray | None], names: Sequence[str]
) -> None:
    """Replace the attributes `names` of `node` by initializers as inputs 1, 2, ..., in place.

    `arrays` are their values, in the order of `names`. An array of None leaves the input absent;
    trailing ones are dropped. All attributes in `names` are removed.
    """
    while arrays and arrays[-1] is None:
        arrays = arrays[:-1]
    node.resize_inputs(1 + len(arrays))
    for index, (array, name) in enumerate(zip(arrays, names, strict=False), start=1):
        if array is not None:
            input_name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{name}")
            node.replace_input_with(index, ir.add_initializer(model, input_name, array))
    for name in names:
        node.attributes.pop(name, None)
