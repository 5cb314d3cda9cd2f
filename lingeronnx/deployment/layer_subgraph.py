"""Extract the subgraph between tensors that agree and the first that does not, to compute variants.

A `LayerSubgraph` is usually one node, or a node and the Relu fused into it; it has more nodes if a
device dumps few tensors. It is a value: `with_attribute` and the like return a changed copy.
`compute` runs it in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from ..common.errors import LingerOnnxError
from ..ir import ir
from ..runtime.integer.runner import IntegerRunner
from .simulation import SimulatedGraph

__all__ = ["LayerSubgraph", "extract_layer"]


@dataclass(frozen=True)
class LayerSubgraph:
    """Nodes that compute `output` from `inputs`.

    nodes : in graph order. operators : the integer operator of each. inputs : integers that are
    known to be correct, by name. constants : of the nodes, by name. source_model : the model of the
    nodes, whose opsets are used. platform : the chip whose arithmetic is used.
    """

    nodes: tuple[onnx.NodeProto, ...]
    operators: tuple[str, ...]
    inputs: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    output: str
    source_model: onnx.ModelProto
    platform: str
    _runners: dict[object, IntegerRunner] = field(
        default_factory=dict, repr=False, compare=False
    )  # by types and shapes of inputs

    def compute(self) -> np.ndarray | None:
        """Run the layer in the simulator and return the tensor `output`.

        None if the layer, which may have been changed, cannot be computed. The runner is kept for
        inputs of the same types and shapes.
        """
        key = tuple((name, array.dtype, array.shape) for name, array in self.inputs.items())
        try:
            if key not in self._runners:
                self._runners[key] = IntegerRunner(ir.from_proto(self._build_model()), "executor")
            tensors = self._runners[key].run(self.inputs, {self.output})
            arrays = {name: array for name, array, _ in tensors}
        except (LingerOnnxError, ValueError, IndexError):  # an invalid change explains nothing
            return None
        return arrays[self.output].copy() if self.output in arrays else None

    def _build_model(self) -> onnx.ModelProto:
        """Build a model of the nodes with the graph inputs `inputs` and the output `output`.

        Shapes and types are those of the input arrays; opsets are the source model's.
        """
        graph = onnx.GraphProto(name="layer", node=self.nodes)
        for name, array in self.inputs.items():
            elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, elem_type, array.shape))
        for name, array in self.constants.items():
            graph.initializer.append(
                onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
            )
        graph.output.append(onnx.ValueInfoProto(name=self.output))
        model = onnx.ModelProto(ir_version=max(self.source_model.ir_version, 8), graph=graph)
        model.opset_import.extend(self.source_model.opset_import)
        model.metadata_props.add(key="lingeronnx.platform", value=self.platform)
        return model

    def attributes(self, index: int) -> dict[str, object]:
        """Return {name: value} of the attributes of node `index`."""
        return {a.name: onnx.helper.get_attribute_value(a) for a in self.nodes[index].attribute}

    def with_attribute(self, index: int, name: str, value: object) -> LayerSubgraph:
        """Return a copy with attribute `name` of node `index` set to `value`."""
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[index])
        unchanged = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*unchanged, onnx.helper.make_attribute(name, value)])
        return self.with_node(index, node)

    def with_node(self, index: int, node: onnx.NodeProto) -> LayerSubgraph:
        """Return a copy with `node` in place of the node at `index`; its integer operator stays."""
        return replace(
            self, nodes=(*self.nodes[:index], node, *self.nodes[index + 1 :]), _runners={}
        )

    def with_inputs(self, index: int, names: Sequence[str]) -> LayerSubgraph:
        """Return a copy in which node `index` has the inputs `names`."""
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[index])
        del node.input[:]
        node.input.extend(names)
        return self.with_node(index, node)

    def with_input(self, name: str, array: np.ndarray) -> LayerSubgraph:
        """Return a copy with `array` as the value of input `name`."""
        return replace(self, inputs={**self.inputs, name: np.ascontiguousarray(array)})

    def with_constant(self, name: str, array: np.ndarray) -> LayerSubgraph:
        """Return a copy with `array` as the value of constant `name`."""
        return replace(self, constants={**self.constants, name: array}, _runners={})

    def without(self, index: int) -> LayerSubgraph | None:
        """Return a copy without node `index`, whose first input replaces its first output.

        None if no node remains.
        """
        removed = self.nodes[index]
        if len(self.nodes) == 1:
            return None
        source, removed_output = removed.input[0], removed.output[0]
        layer = self
        for position, node in enumerate(self.nodes):
            if removed_output in node.input:
                names = [source if name == removed_output else name for name in node.input]
                layer = layer.with_inputs(position, names)
        nodes, operators = list(layer.nodes), list(layer.operators)
        del nodes[index], operators[index]
        output = source if self.output == removed_output else self.output
        return replace(
            layer, nodes=tuple(nodes), operators=tuple(operators), output=output, _runners={}
        )

    def for_platform(self, platform: str) -> LayerSubgraph:
        """Return a copy with another chip's arithmetic, also in the nodes' attribute `platform`.

        Nodes without that attribute do not get it.
        """
        layer = replace(self, platform=platform, _runners={})
        for index in range(len(self.nodes)):
            if "platform" in self.attributes(index):
                layer = layer.with_attribute(index, "platform", platform)
        return layer

    def iterate_activations(self, index: int) -> Iterator[str]:
        """Yield the names of the inputs of node `index` that are neither constants nor absent."""
        yield from (name for name in self.nodes[index].input if name and name not in self.constants)


def extract_layer(
    graph: SimulatedGraph,
    output: str,
    known_tensors: Mapping[str, np.ndarray],
    max_nodes: int = 100,
) -> LayerSubgraph | None:
    """Extract the nodes that compute `output` from tensors in `known_tensors` and constants.

    A known tensor ends the search, but for `output` itself. Returns None if there are more than
    `max_nodes`, or if a node depends on a graph input or an output of a Quant that is not known.
    """
    full_graph = graph.proto.graph
    producers = {name: node for node in full_graph.node for name in node.output}
    constants = _collect_constants(full_graph)
    pending, inside, inputs, used_constants = [output], set(), {}, {}
    while pending:
        node = producers[pending.pop()]
        if node.output[0] in inside:
            continue
        inside.add(node.output[0])
        for name in node.input:
            if name in constants:
                used_constants[name] = constants[name]
            elif name in known_tensors:
                inputs[name] = known_tensors[name]
            elif name in producers and name not in graph.quantized_inputs:
                pending.append(name)
            elif name:
                return None
        if len(inside) > max_nodes:
            return None
    nodes = tuple(node for node in full_graph.node if node.output and node.output[0] in inside)
    operators = tuple(graph.operators[node.output[0]] for node in nodes)
    return LayerSubgraph(
        nodes, operators, inputs, used_constants, output, graph.proto, graph.target.name
    )


def _collect_constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Return {name: array} of the initializers and the Constant nodes with attribute `value`."""
    constants = {c.name: onnx.numpy_helper.to_array(c) for c in graph.initializer}
    for node in graph.node:
        if node.op_type != "Constant" or node.domain:
            continue
        if node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    return constants
