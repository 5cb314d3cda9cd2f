"""Iterate over the subgraphs of nodes as a file stores them, and over the nodes in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, NodeProto

__all__ = ["iter_nodes_recursive", "iter_subgraphs"]


def iter_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in the attributes of `node`, not those nested in them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def iter_nodes_recursive(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield `nodes` and the nodes of all nested subgraphs, each node before those inside it."""
    for node in nodes:
        yield node
        for graph in iter_subgraphs(node):
            yield from iter_nodes_recursive(graph.node)
