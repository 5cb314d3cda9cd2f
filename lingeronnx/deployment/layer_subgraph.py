"""The part of a graph between tensors that agree and the first that does not, to be computed again in other ways.

A `LayerSubgraph` is usually one node, or a node and the Relu fused into it; where a device shows
few of its tensors, more. It is a value: `with_attribute` and its like return another one. `compute`
runs it in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from ..errors import LingerOnnxError
from ..graph import ir
from ..run.integer.runner import IntegerRunner
from .simulation import SimulatedGraph

__all__ = ["LayerSubgraph", "extract_layer"]


@dataclass(frozen=True)
class LayerSubgraph:
    """Nodes that compute `output` from `inputs`.

    nodes : in order. operators : the integer operator of each. inputs : integers that are known to
    be right, by name. constants : of the nodes. like : the whole model, whose metadata and opsets
    say whose arithmetic counts.
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
    )  # by kinds of inputs

    def compute(self) -> np.ndarray | None:
        """Return the integers of `output`; None where the changed layer cannot be computed."""
        key = tuple((name, array.dtype, array.shape) for name, array in self.inputs.items())
        try:
            if key not in self._runners:
                self._runners[key] = IntegerRunner(ir.from_proto(self._model()), "executor")
            found = {
                name: array for name, array, _ in self._runners[key].run(self.inputs, {self.output})
            }
        except (
            LingerOnnxError,
            ValueError,
            IndexError,
        ):  # a change that makes no sense here explains nothing
            return None
        return found[self.output].copy() if self.output in found else None

    def _model(self) -> onnx.ModelProto:
        graph = onnx.GraphProto(name="layer", node=self.nodes)
        for name, array in self.inputs.items():
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
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
        """Return the attributes of node `index`."""
        return {a.name: onnx.helper.get_attribute_value(a) for a in self.nodes[index].attribute}

    def with_attribute(self, index: int, name: str, value: object) -> LayerSubgraph:
        """Return the layer with another attribute of node `index`."""
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[index])
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        return self.with_node(index, node)

    def with_node(self, index: int, node: onnx.NodeProto) -> LayerSubgraph:
        """Return the layer with another node at `index`."""
        return replace(
            self, nodes=(*self.nodes[:index], node, *self.nodes[index + 1 :]), _runners={}
        )

    def with_inputs(self, index: int, names: Sequence[str]) -> LayerSubgraph:
        """Return the layer with other inputs of node `index`."""
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[index])
        del node.input[:]
        node.input.extend(names)
        return self.with_node(index, node)

    def with_input(self, name: str, array: np.ndarray) -> LayerSubgraph:
        """Return the layer fed another array as `name`."""
        return replace(self, inputs={**self.inputs, name: np.ascontiguousarray(array)})

    def with_constant(self, name: str, array: np.ndarray) -> LayerSubgraph:
        """Return the layer with another constant."""
        return replace(self, constants={**self.constants, name: array}, _runners={})

    def without(self, index: int) -> LayerSubgraph | None:
        """Return the layer without node `index`, what it read in place of what it wrote.

        None where nothing is left.
        """
        gone = self.nodes[index]
        if len(self.nodes) == 1:
            return None
        found = self
        for other, node in enumerate(self.nodes):
            if gone.output[0] in node.input:
                found = found.with_inputs(
                    other, [gone.input[0] if n == gone.output[0] else n for n in node.input]
                )
        nodes, kinds = list(found.nodes), list(found.operators)
        del nodes[index], kinds[index]
        output = gone.input[0] if self.output == gone.output[0] else self.output
        return replace(
            found, nodes=tuple(nodes), operators=tuple(kinds), output=output, _runners={}
        )

    def for_platform(self, platform: str) -> LayerSubgraph:
        """Return the layer as another chip computes it."""
        found = replace(self, platform=platform, _runners={})
        for index in range(len(self.nodes)):
            if "platform" in self.attributes(index):
                found = found.with_attribute(index, "platform", platform)
        return found

    def iterate_activations(self, index: int) -> Iterator[str]:
        """Yield the inputs of node `index` that are no constants."""
        yield from (name for name in self.nodes[index].input if name and name not in self.constants)


def extract_layer(
    graph: SimulatedGraph,
    output: str,
    known_tensors: Mapping[str, np.ndarray],
    max_nodes: int = 100,
) -> LayerSubgraph | None:
    """Return the nodes that compute `output` from tensors in `known_tensors`, and from what Quants write.

    None where there are more than `max_nodes`, or where a node reads floats.
    """
    everything = graph.proto.graph
    makers = {name: node for node in everything.node for name in node.output}
    constants = {c.name: onnx.numpy_helper.to_array(c) for c in everything.initializer}
    for node in everything.node:
        if (
            node.op_type == "Constant"
            and not node.domain
            and node.attribute
            and node.attribute[0].name == "value"
        ):
            constants[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    wanted, inside, inputs, used = [output], set(), {}, {}
    while wanted:
        name = wanted.pop()
        node = makers[name]
        if node.output[0] in inside:
            continue
        inside.add(node.output[0])
        for read in node.input:
            if read in constants:
                used[read] = constants[read]
            elif read in known_tensors:
                inputs[read] = known_tensors[read]
            elif read in makers and read not in graph.quantized_inputs:
                wanted.append(read)
            elif read:
                return None
        if len(inside) > max_nodes:
            return None
    nodes = tuple(node for node in everything.node if node.output and node.output[0] in inside)
    kinds = tuple(graph.operators[node.output[0]] for node in nodes)
    return LayerSubgraph(nodes, kinds, inputs, used, output, graph.proto, graph.target.name)
