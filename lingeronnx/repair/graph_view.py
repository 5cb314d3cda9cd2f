"""A damaged model as it lies there.

Who writes a tensor, who reads it, in the graph and its subgraphs.
Owns the lookup of names through scopes and the few edits of the protobuf that keep it consistent
(renaming a tensor, sorting nodes). It changes nothing by itself, knows no operator and believes
nothing: a tensor may be read and written by nobody, written twice or depend on itself. A view is
made anew after every repair.
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

#: Operators that hand on what they are given, whatever it is, and change nothing.
_STANDARD = ("", "ai.onnx")


@dataclass(eq=False)
class NodeView:
    """A node with its tensors; an absent optional input or output is None."""

    proto: NodeProto
    scope: Scope
    inputs: list[TensorView | None] = field(default_factory=list)
    outputs: list[TensorView | None] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)

    @property
    def standard(self) -> bool:
        """Whether the operator is one of ONNX's own domain."""
        return self.proto.domain in _STANDARD

    @property
    def label(self) -> str:
        """How reports name the node."""
        return node_label(self.proto)

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Its numbers, lists and texts by name."""
        return attribute_values(self.proto)


@dataclass(frozen=True, eq=False)
class TensorRead:
    """Somebody who reads a tensor.

    Input `index` of `node`, or `output` of a graph (then `node` is None).
    """

    node: NodeView | None
    index: int
    output: ValueInfoProto | None = None
    scope: Scope | None = None

    @property
    def where(self) -> str:
        """How reports name the reader."""
        if self.node is not None:
            return self.node.label
        assert self.output is not None
        return f"graph output '{self.output.name}'"


@dataclass(eq=False)
class TensorView:
    """A name in a scope: written by `writer`, or a graph input, or a constant, or (missing) by nobody."""

    name: str
    scope: Scope
    writer: NodeView | None = None
    index: int = 0
    entry: ValueInfoProto | None = None
    constant: int | None = None  # element type of a constant
    missing: bool = False
    reads: list[TensorRead] = field(default_factory=list)


@dataclass(eq=False)
class Scope:
    """A graph: the model's own, or a subgraph, which sees the names around it."""

    graph: GraphProto
    parent: Scope | None = None
    owner: NodeView | None = None
    attribute: str = ""
    tensors: dict[str, TensorView] = field(default_factory=dict)
    nodes: list[NodeView] = field(default_factory=list)

    def find(self, name: str) -> TensorView | None:
        """Return what `name` means here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tensors:
                return scope.tensors[name]
            scope = scope.parent
        return None

    def can_see(self, other: Scope) -> bool:
        """Whether names of `other` can be read here."""
        scope: Scope | None = self
        while scope is not None and scope is not other:
            scope = scope.parent
        return scope is other


class GraphView:
    """The scopes, nodes and tensors of `model`, which is not copied.

    An edit of a node's protobuf is one of the model.
    order : all nodes, those a node depends on before it, a node's subgraphs before the node. Nodes
    of a cycle are
        left out (`cycle` names one of them). known : what others worked out about this view
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.main = Scope(model.graph)
        self.scopes: list[Scope] = []
        self.missing: list[TensorView] = []
        self.cache: dict[str, Any] = {}
        self.cycle: NodeView | None = None
        self._register_scope(self.main)
        for scope in self.scopes:
            self._connect_reads(scope)
        self.order = list(self._iter_ordered(self.main))
        self.order_index = {node: index for index, node in enumerate(self.order)}

    def _register_scope(self, scope: Scope) -> None:
        self.scopes.append(scope)
        graph, tensors = scope.graph, scope.tensors
        for value in graph.input:
            tensors.setdefault(value.name, TensorView(value.name, scope, entry=value))
        for constant in graph.initializer:
            tensor = tensors.setdefault(constant.name, TensorView(constant.name, scope))
            tensor.constant = constant.data_type
        for proto in graph.node:
            node = NodeView(proto, scope)
            scope.nodes.append(node)
            for index, name in enumerate(proto.output):
                written = (
                    tensors.setdefault(name, TensorView(name, scope, node, index)) if name else None
                )
                if (
                    written is not None
                    and written.writer is node
                    and proto.op_type == "Constant"
                    and node.standard
                ):
                    written.constant = _constant_type(proto)
                node.outputs.append(written)
        for node in scope.nodes:
            for attribute in node.proto.attribute:
                for inner in [
                    *([attribute.g] if attribute.HasField("g") else []),
                    *attribute.graphs,
                ]:
                    below = Scope(inner, scope, node, attribute.name)
                    node.scopes.append(below)
                    self._register_scope(below)

    def _connect_reads(self, scope: Scope) -> None:
        for node in scope.nodes:
            for index, name in enumerate(node.proto.input):
                tensor = self._find_or_add_missing(scope, name) if name else None
                node.inputs.append(tensor)
                if tensor is not None:
                    tensor.reads.append(TensorRead(node, index, scope=scope))
        for index, value in enumerate(scope.graph.output):
            self._find_or_add_missing(scope, value.name).reads.append(
                TensorRead(None, index, value, scope)
            )

    def _find_or_add_missing(self, scope: Scope, name: str) -> TensorView:
        tensor = scope.find(name)
        if tensor is None:
            tensor = self.main.tensors[name] = TensorView(name, self.main, missing=True)
            self.missing.append(tensor)
        return tensor

    def _iter_ordered(self, scope: Scope) -> Iterator[NodeView]:
        """Yield the nodes of a scope, as they stand as far as that can be, each behind its subgraphs."""
        order, cycle = sort_topologically(scope)
        if cycle is not None and self.cycle is None:
            self.cycle = cycle
        for node in order:
            for below in node.scopes:
                yield from self._iter_ordered(below)
            yield node

    @property
    def nodes(self) -> Iterator[NodeView]:
        """All nodes, in the order of the file, subgraphs behind the graph around them."""
        for scope in self.scopes:
            yield from scope.nodes

    def names(self) -> set[str]:
        """Return every tensor name of the model, in all scopes."""
        return {name for scope in self.scopes for name in scope.tensors}

    def is_output(self, tensor: TensorView) -> bool:
        """Whether `tensor` leaves its graph."""
        return any(read.output is not None for read in tensor.reads)

    def rename(self, tensor: TensorView, name: str) -> None:
        """Call a node's output `name`, for all its readers but outputs of its own graph, which keep theirs."""
        assert tensor.writer is not None
        tensor.writer.proto.output[tensor.index] = name
        for read in tensor.reads:
            if read.node is not None:
                read.node.proto.input[read.index] = name
            elif read.output is not None and read.scope is not tensor.scope:
                read.output.name = name
        for value in tensor.scope.graph.value_info:
            if value.name == tensor.name:
                value.name = name


def fresh_name(base: str, taken: Container[str], number: int = 1) -> str:
    """Return `base`, or where that is taken, with the first number beyond `number` that is free."""
    name = base
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def _constant_type(proto: NodeProto) -> int:
    for attribute in proto.attribute:
        if attribute.name == "value":
            return int(attribute.t.data_type)
        if attribute.name in ("value_float", "value_floats"):
            return int(onnx.TensorProto.FLOAT)
    return int(onnx.TensorProto.INT64)


def node_label(proto: NodeProto) -> str:
    """Return how reports name a node: operator and name, or operator and first output."""
    return (
        f"{proto.op_type} {proto.name or (proto.output[0] if proto.output else 'without a name')}"
    )


def attribute_values(proto: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node that are numbers, lists of numbers or texts."""
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
    """Whether `value` can be a scale: a positive number."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def same_scale(one: object, other: object) -> bool:
    """Whether two scales are the same number as far as float32 tells them apart."""
    return is_scale(one) and is_scale(other) and math.isclose(one, other, rel_tol=1e-6)


def sort_topologically(scope: Scope) -> tuple[list[NodeView], NodeView | None]:
    """Return the nodes of a scope in an order that keeps theirs where it can, and a node of a cycle or None."""
    place = {node: index for index, node in enumerate(scope.nodes)}
    needs: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(scope.nodes):
        writers = {
            place[t.writer]
            for t in _iter_read_tensors(node)
            if t.writer is not None and t.scope is scope
        }
        needs.append(writers)
        for writer in writers:
            readers.setdefault(writer, []).append(index)
    order: list[NodeView] = []
    done = [False] * len(needs)
    waiting = [len(n) for n in needs]
    for start in range(
        len(needs)
    ):  # the first that is ready, then what became ready before it in the file
        stack = [start]
        while stack:
            index = stack.pop()
            if done[index] or waiting[index]:
                continue
            done[index] = True
            order.append(scope.nodes[index])
            for reader in sorted(readers.get(index, ()), reverse=True):
                waiting[reader] -= 1
                if not waiting[reader] and reader < start:
                    stack.append(reader)
    left = [node for node, finished in zip(scope.nodes, done, strict=True) if not finished]
    return order, left[0] if left else None


def _iter_read_tensors(node: NodeView) -> Iterator[TensorView]:
    """Yield the tensors that a node and its subgraphs read."""
    yield from (t for t in node.inputs if t is not None)
    for below in node.scopes:
        for inner in below.nodes:
            yield from _iter_read_tensors(inner)
        for value in below.graph.output:
            tensor = below.find(value.name)
            if tensor is not None:
                yield tensor


def sort_nodes(graph: GraphProto, order: Iterable[NodeView]) -> None:
    """Put the nodes of `graph` into `order`."""
    kept = []
    for node in order:
        copy = NodeProto()
        copy.CopyFrom(node.proto)
        kept.append(copy)
    del graph.node[:]
    graph.node.extend(kept)


def sort_all(view: GraphView) -> None:
    """Sort the nodes of every graph of the model, inner ones first.

    An outer graph holds copies afterwards.
    """
    for scope in reversed(view.scopes):
        order, _ = sort_topologically(scope)
        if order != scope.nodes:
            sort_nodes(scope.graph, order)


def remove_node(graph: GraphProto, proto: NodeProto) -> None:
    """Take the node `proto` itself, not one like it, out of `graph`."""
    del graph.node[index_of_node(graph, proto)]


def index_of_node(graph: GraphProto, proto: NodeProto) -> int:
    """Return where the node `proto` itself stands in `graph`."""
    return next(index for index, node in enumerate(graph.node) if node is proto)
