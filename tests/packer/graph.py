"""The graph as the packer holds it: nodes, tensors with shape, bytes and scale, and constants."""

import dataclasses
import math

import numpy as np
from onnx import TensorProto, helper, numpy_helper

BYTES = {
    TensorProto.FLOAT: 4,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.INT16: 2,
    TensorProto.INT32: 4,
    TensorProto.INT64: 8,
}
#: names of the third generation that the packer reads as those of the first
LATER = {"QConv2d": "Conv2dInt", "w_bits": "parameter_bits", "x_bits": "data_bits"}
MOVES = ("Reshape", "Transpose", "Slice", "Gather", "Squeeze", "Unsqueeze", "Flatten")


class Refused(Exception):
    """The packer ends with an error; the text says why."""


def up(value, multiple):
    """Return `value` rounded up to a multiple."""
    return -(-value // multiple) * multiple


@dataclasses.dataclass
class Tensor:
    """One value: `shape`, `bytes` of an element, `scale` (None if unknown), `const` (its array,
    None if computed).
    """

    name: str
    shape: tuple = ()
    bytes: int = 1
    scale: float | None = None
    const: np.ndarray | None = None
    inserted: bool = False
    late: bool = False

    @property
    def elements(self):
        return math.prod(self.shape)

    @property
    def size(self):
        """Return the planned bytes."""
        return up(self.elements * self.bytes, 16)


@dataclasses.dataclass
class Node:
    """One operator; `attrs` are Python values, strings decoded."""

    op: str
    name: str
    inputs: list
    outputs: list
    attrs: dict
    swapped: bool = False

    def get(self, key, default=None):
        return self.attrs.get(key, default)


@dataclasses.dataclass
class Graph:
    """Nodes in file order until `order_nodes`, tensors by name, names of the graph's inputs and
    outputs; `notes`: what packs and comes out wrong.
    """

    nodes: list
    tensors: dict
    inputs: list
    outputs: list
    notes: list = dataclasses.field(default_factory=list)

    def readers(self, name):
        return [node for node in self.nodes if name in node.inputs]

    def writer(self, name):
        return next((node for node in self.nodes if name in node.outputs), None)

    def const(self, name):
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.const

    def rename(self, old, new):
        """Let every reader of `old` read `new`."""
        for node in self.nodes:
            node.inputs = [new if name == old else name for name in node.inputs]
        self.outputs = [new if name == old else name for name in self.outputs]


def attributes(node):
    """Return the attributes of a NodeProto as Python values."""
    values = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        name = LATER.get(attribute.name, attribute.name)
        values[name] = value.decode() if isinstance(value, bytes) else value
    return values


def read(model, batch):
    """Return the Graph of a ModelProto; `batch` gives the value of each symbolic dimension."""
    proto = model.graph
    tensors, nodes = {}, []
    for initializer in proto.initializer:
        array = numpy_helper.to_array(initializer)
        tensors[initializer.name] = Tensor(
            initializer.name, array.shape, array.itemsize, None, array
        )
    for node in proto.node:
        if node.op_type == "Constant":
            array = numpy_helper.to_array(attributes(node)["value"])
            tensors[node.output[0]] = Tensor(
                node.output[0], array.shape, array.itemsize, None, array
            )
        else:
            name = node.name or f"{node.op_type}_{node.output[0]}"
            op = LATER.get(node.op_type, node.op_type)
            nodes.append(Node(op, name, list(node.input), list(node.output), attributes(node)))
    inputs = []
    for value in proto.input:
        if value.name in tensors:
            continue
        kind = value.type.tensor_type
        shape = tuple(
            batch.get(d.dim_param, 0) if d.dim_param else d.dim_value for d in kind.shape.dim
        )
        if 0 in shape:
            raise Refused(f"graph input '{value.name}': a symbolic dimension without a value")
        tensors[value.name] = Tensor(value.name, shape, BYTES.get(kind.elem_type, 4))
        inputs.append(value.name)
    return Graph(nodes, tensors, inputs, [value.name for value in proto.output])


def live(graph):
    """Keep the nodes from which a graph output can be reached, depth first from the first
    output.
    """
    writers = {name: node for node in graph.nodes for name in node.outputs}
    done, order = set(), []
    stack = [(name, False) for name in reversed(graph.outputs)]
    while stack:
        name, leave = stack.pop()
        node = writers.get(name)
        if node is None or id(node) in done:
            continue
        if leave:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((name, True))
            stack += [(source, False) for source in reversed(node.inputs)]
    graph.nodes = order
