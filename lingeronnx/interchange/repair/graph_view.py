"""View of a possibly damaged model: the producer and the consumers of each tensor, in all scopes.

The view looks up names through nested scopes and offers the few protobuf edits that must keep names
consistent (renaming a tensor, sorting and removing nodes). It does not modify the model by itself,
knows no operators and assumes nothing about the graph: a tensor may have no producer, no consumer
or several producers, or depend on itself. A new view is built after each repair.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

__all__ = [
    "GraphView",
    "NodeView",
    "Scope",
    "TensorRead",
    "TensorView",
    "attribute_values",
    "fresh_name",
    "index_of_node",
    "is_scale",
    "node_label",
    "remove_node",
    "same_scale",
    "sort_all",
    "sort_nodes",
]

#: Spellings of the domain of the standard ONNX operators.
_STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(eq=False)
class NodeView:
    """A node of a model with its tensors and subgraphs; an omitted input or output is None."""

    proto: NodeProto
    scope: Scope
    inputs: list[TensorView | None] = field(default_factory=list)
    outputs: list[TensorView | None] = field(default_factory=list)
    subgraphs: list[Scope] = field(default_factory=list)

    @property
    def is_standard(self) -> bool:
        """Whether the operator is of the standard ONNX domain ("" or "ai.onnx")."""
        return self.proto.domain in _STANDARD_DOMAINS

    @property
    def label(self) -> str:
        """Name of the node in reports: its operator, and its name or else its first output."""
        return node_label(self.proto)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Values of the numeric, list and string attributes of the node, by name.

        Others are omitted.
        """
        return attribute_values(self.proto)


@dataclass(frozen=True, eq=False)
class TensorRead:
    """A use of a tensor: input `index` of `node`, or graph output `index` (`node` is None)."""

    node: NodeView | None
    index: int
    output: ValueInfoProto | None = None
    scope: Scope | None = None

    @property
    def label(self) -> str:
        """Name of the consumer in reports: the node's label, or "graph output 'NAME'"."""
        if self.node is not None:
            return self.node.label
        assert self.output is not None
        return f"graph output '{self.output.name}'"


@dataclass(eq=False)
class TensorView:
    """A tensor name in a scope: a node output, a graph input, a constant, or an undefined name.

    Attributes
    ----------
    producer, index
        The node that computes the tensor, and the index of the node's output.
    graph_input
        The declaration, if the tensor is a graph input.
    constant_type
        ONNX element type, if the tensor is a constant.
    is_undefined
        Whether the tensor is read but is none of these.
    """

    name: str
    scope: Scope
    producer: NodeView | None = None
    index: int = 0
    graph_input: ValueInfoProto | None = None
    constant_type: int | None = None
    is_undefined: bool = False
    reads: list[TensorRead] = field(default_factory=list)


@dataclass(eq=False)
class Scope:
    """A main graph or subgraph of a model, with its own tensors and nodes.

    It also sees the names of the graphs around it, its `parent`. `owner` is the node that has the
    subgraph as attribute `attribute`; both are empty for the main graph.
    """

    graph: GraphProto
    parent: Scope | None = None
    owner: NodeView | None = None
    attribute: str = ""
    tensors: dict[str, TensorView] = field(default_factory=dict)
    nodes: list[NodeView] = field(default_factory=list)

    def find(self, name: str) -> TensorView | None:
        """Return the tensor `name` of this graph or of the nearest graph around it.

        None if it is undefined.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tensors:
                return scope.tensors[name]
            scope = scope.parent
        return None

    def can_see(self, target: Scope) -> bool:
        """Whether `target` is this graph or one around it, so that its tensors can be read here."""
        scope: Scope | None = self
        while scope is not None and scope is not target:
            scope = scope.parent
        return scope is target


class GraphView:
    """Scopes, nodes and tensors of a model.

    The model is not copied: editing the protobuf of a node edits the model.

    Attributes
    ----------
    order : list of NodeView
        All nodes in topological order, the nodes of a subgraph before its owner. Nodes of a cycle
        are omitted.
    cycle : NodeView or None
        A node of a cycle, if there is one.
    undefined_tensors : list of TensorView
        Tensors that are read but not defined anywhere.
    cache : dict
        Analyses of this view, by name.
    """

    def __init__(self, model: ModelProto) -> None:
        """Index the tensors, nodes and reads of `model` and its subgraphs, and sort the nodes.

        The model is not modified.
        """
        self.model = model
        self.main = Scope(model.graph)
        self.scopes: list[Scope] = []
        self.undefined_tensors: list[TensorView] = []
        self.cache: dict[str, Any] = {}
        self.cycle: NodeView | None = None
        self._register_scope(self.main)
        for scope in self.scopes:
            self._connect_reads(scope)
        self.order = list(self._iter_ordered(self.main))
        self.order_index = {node: index for index, node in enumerate(self.order)}

    def _register_scope(self, scope: Scope) -> None:
        """Add `scope` with its inputs, initializers and nodes, then recursively their subgraphs."""
        self.scopes.append(scope)
        graph, tensors = scope.graph, scope.tensors
        for value in graph.input:
            tensors.setdefault(value.name, TensorView(value.name, scope, graph_input=value))
        for constant in graph.initializer:
            tensor = tensors.setdefault(constant.name, TensorView(constant.name, scope))
            tensor.constant_type = constant.data_type
        for proto in graph.node:
            _register_node(proto, scope)
        for node in scope.nodes:
            for attribute in node.proto.attribute:
                graphs = list(attribute.graphs)
                if attribute.HasField("g"):
                    graphs.insert(0, attribute.g)
                for inner_graph in graphs:
                    subgraph = Scope(inner_graph, scope, node, attribute.name)
                    node.subgraphs.append(subgraph)
                    self._register_scope(subgraph)

    def _connect_reads(self, scope: Scope) -> None:
        """Record each node input and graph output of `scope` as a read of the tensor that it names.

        A name without a tensor becomes an undefined tensor of the main graph. Omitted inputs are
        None.
        """
        for node in scope.nodes:
            for index, name in enumerate(node.proto.input):
                tensor = self._find_or_add_undefined(scope, name) if name else None
                node.inputs.append(tensor)
                if tensor is not None:
                    tensor.reads.append(TensorRead(node, index, scope=scope))
        for index, value in enumerate(scope.graph.output):
            self._find_or_add_undefined(scope, value.name).reads.append(
                TensorRead(None, index, value, scope)
            )

    def _find_or_add_undefined(self, scope: Scope, name: str) -> TensorView:
        """Return the tensor that `name` refers to in `scope` or a graph around it.

        If there is none, an undefined tensor is added to the main graph and to `undefined_tensors`.
        """
        tensor = scope.find(name)
        if tensor is None:
            tensor = self.main.tensors[name] = TensorView(name, self.main, is_undefined=True)
            self.undefined_tensors.append(tensor)
        return tensor

    def _iter_ordered(self, scope: Scope) -> Iterator[NodeView]:
        """Yield the nodes of `scope` in topological order, each after those of its subgraphs.

        Sets `cycle` if the nodes have a cycle and none was found before.
        """
        order, cycle = sort_topologically(scope)
        if cycle is not None and self.cycle is None:
            self.cycle = cycle
        for node in order:
            for subgraph in node.subgraphs:
                yield from self._iter_ordered(subgraph)
            yield node

    @property
    def nodes(self) -> Iterator[NodeView]:
        """All nodes of the model in file order, those of subgraphs after the graph around."""
        for scope in self.scopes:
            yield from scope.nodes

    def names(self) -> set[str]:
        """Return the names of all tensors in the main graph and all subgraphs."""
        return {name for scope in self.scopes for name in scope.tensors}

    def is_output(self, tensor: TensorView) -> bool:
        """Whether `tensor` is an output of a graph or subgraph."""
        return any(read.output is not None for read in tensor.reads)

    def rename(self, tensor: TensorView, name: str) -> None:
        """Rename `tensor`, a node output, to `name` in the model, for all its consumers.

        Outputs of its own graph are not renamed, but outputs of subgraphs that pass it on and
        value_info are. This view itself still has the old name.
        """
        assert tensor.producer is not None
        tensor.producer.proto.output[tensor.index] = name
        for read in tensor.reads:
            if read.node is not None:
                read.node.proto.input[read.index] = name
            elif read.output is not None and read.scope is not tensor.scope:
                read.output.name = name
        for value in tensor.scope.graph.value_info:
            if value.name == tensor.name:
                value.name = name


def _register_node(proto: NodeProto, scope: Scope) -> None:
    """Append a node for `proto` to `scope`, and register its outputs as tensors there.

    If a name has several producers, the first one wins. Empty output names become None.
    """
    node = NodeView(proto, scope)
    scope.nodes.append(node)
    is_constant = proto.op_type == "Constant" and node.is_standard
    for index, name in enumerate(proto.output):
        if not name:
            node.outputs.append(None)
            continue
        tensor = scope.tensors.setdefault(name, TensorView(name, scope, node, index))
        if is_constant and tensor.producer is node:
            tensor.constant_type = _constant_element_type(proto)
        node.outputs.append(tensor)


def fresh_name(base: str, used_names: Container[str], number: int = 1) -> str:
    """Return `base` or, if it is in `used_names`, ``base_N`` with the first free N > `number`.

    The name is not added to `used_names`.
    """
    name = base
    while name in used_names:
        number += 1
        name = f"{base}_{number}"
    return name


def _constant_element_type(proto: NodeProto) -> int:
    """Return the ONNX element type of `proto`, a Constant node.

    That of its attribute `value`; FLOAT for `value_float` and `value_floats`, INT64 for anything
    else.
    """
    for attribute in proto.attribute:
        if attribute.name == "value":
            return int(attribute.t.data_type)
        if attribute.name in ("value_float", "value_floats"):
            return int(onnx.TensorProto.FLOAT)
    return int(onnx.TensorProto.INT64)


def node_label(proto: NodeProto) -> str:
    """Return the label of a node in reports: its operator and its name or first output."""
    if proto.name:
        return f"{proto.op_type} {proto.name}"
    return f"{proto.op_type} {proto.output[0] if proto.output else 'without a name'}"


def attribute_values(proto: NodeProto) -> dict[str, Any]:
    """Return attribute name -> value, for numbers, lists of numbers and strings.

    Other attributes (tensors, graphs) are omitted.
    """
    values: dict[str, Any] = {}
    for attribute in proto.attribute:
        kind = attribute.type
        if kind == AttributeProto.INT:
            values[attribute.name] = int(attribute.i)
        elif kind == AttributeProto.FLOAT:
            values[attribute.name] = float(attribute.f)
        elif kind == AttributeProto.STRING:
            values[attribute.name] = attribute.s.decode("utf-8", "replace")
        elif kind == AttributeProto.INTS:
            values[attribute.name] = list(attribute.ints)
        elif kind == AttributeProto.FLOATS:
            values[attribute.name] = list(attribute.floats)
    return values


def is_scale(value: object) -> TypeGuard[float]:
    """Whether `value` is a valid scale: a finite positive number."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def same_scale(first: object, second: object) -> bool:
    """Whether `first` and `second` are valid scales (finite, > 0) and equal within 1e-6."""
    return is_scale(first) and is_scale(second) and math.isclose(first, second, rel_tol=1e-6)


def sort_topologically(scope: Scope) -> tuple[list[NodeView], NodeView | None]:
    """Sort the nodes of `scope` topologically, keeping the file order where possible.

    Does not change the scope.

    Returns
    -------
    order : list of NodeView
        The sorted nodes; nodes of a cycle and those downstream of it are missing.
    cycle : NodeView or None
        The first missing node; None if there is no cycle.
    """
    dependency_counts, consumers = _collect_dependencies(scope)
    order: list[NodeView] = []
    is_sorted = [False] * len(scope.nodes)
    # Emit the first ready node, then the earlier nodes in the file that it made ready.
    for start in range(len(scope.nodes)):
        stack = [start]
        while stack:
            index = stack.pop()
            if is_sorted[index] or dependency_counts[index]:
                continue
            is_sorted[index] = True
            order.append(scope.nodes[index])
            for consumer in sorted(consumers.get(index, ()), reverse=True):
                dependency_counts[consumer] -= 1
                if not dependency_counts[consumer] and consumer < start:
                    stack.append(consumer)
    if all(is_sorted):
        return order, None
    return order, scope.nodes[is_sorted.index(False)]


def _collect_dependencies(scope: Scope) -> tuple[list[int], dict[int, list[int]]]:
    """Count the nodes of `scope` that each node depends on, and list the consumers of each node.

    Nodes are identified by their index in `scope.nodes`; what their subgraphs read counts too.
    """
    index_of = {node: index for index, node in enumerate(scope.nodes)}
    dependency_counts: list[int] = []
    consumers: dict[int, list[int]] = {}
    for index, node in enumerate(scope.nodes):
        producers = set()
        for tensor in _iter_read_tensors(node):
            if tensor.producer is not None and tensor.scope is scope:
                producers.add(index_of[tensor.producer])
        dependency_counts.append(len(producers))
        for producer in producers:
            consumers.setdefault(producer, []).append(index)
    return dependency_counts, consumers


def _iter_read_tensors(node: NodeView) -> Iterator[TensorView]:
    """Yield the tensors that `node` reads, then those that nodes and outputs of its subgraphs read.

    Absent inputs are omitted; a tensor may come several times.
    """
    yield from (tensor for tensor in node.inputs if tensor is not None)
    for subgraph in node.subgraphs:
        for inner_node in subgraph.nodes:
            yield from _iter_read_tensors(inner_node)
        for value in subgraph.graph.output:
            tensor = subgraph.find(value.name)
            if tensor is not None:
                yield tensor


def sort_nodes(graph: GraphProto, order: Iterable[NodeView]) -> None:
    """Replace all nodes of `graph` by copies of the nodes in `order`, in place."""
    copies = []
    for node in order:
        copy = NodeProto()
        copy.CopyFrom(node.proto)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def sort_all(view: GraphView) -> None:
    """Sort the nodes of each graph of the model of `view` topologically, in place.

    Subgraphs are sorted first, since sorting replaces the nodes of the enclosing graph with copies;
    `view` no longer describes them afterwards.
    """
    for scope in reversed(view.scopes):
        order, _ = sort_topologically(scope)
        if order != scope.nodes:
            sort_nodes(scope.graph, order)


def remove_node(graph: GraphProto, proto: NodeProto) -> None:
    """Remove the node `proto` from `graph`, in place; equal nodes are told apart by identity."""
    del graph.node[index_of_node(graph, proto)]


def index_of_node(graph: GraphProto, proto: NodeProto) -> int:
    """Return the index of the node `proto` in `graph`; equal nodes are told apart by identity.

    StopIteration if it is not there.
    """
    return next(index for index, node in enumerate(graph.node) if node is proto)
