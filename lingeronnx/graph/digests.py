"""Digests by which tensors of two graphs are told to be computed alike, whatever they and their nodes are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from . import ir

__all__ = ["compute_output_digest", "compute_value_digests"]


def compute_value_digests(model: ir.Model, include_subgraphs: bool = False) -> dict[str, bytes]:
    """Return {tensor: digest of the operators, attributes, constants and graph inputs that it is computed from}.

    What a node with a subgraph computes, and what is computed from that, is left out; subgraphs :
    it is not, but what tensors and nodes are called within a subgraph counts.
    """
    by_tensor = {str(v.name): _digest(b"input", str(v.name).encode()) for v in model.graph.inputs}
    for node in model.graph:
        said = ir.node_proto(node)
        if ir.has_subgraphs(node) and not include_subgraphs:
            continue
        parts = [node.domain.encode(), node.op_type.encode()]
        parts += [
            a.SerializeToString(deterministic=True)
            for a in sorted(said.attribute, key=lambda a: a.name)
        ]
        sources = [_input_digest(value, by_tensor) for value in node.inputs]
        sources += [
            _input_digest(value, by_tensor) or b"inner" for value in _iter_subgraph_inputs(node)
        ]
        if None in sources:
            continue
        whole = _digest(*parts, b"reads", *(source for source in sources if source is not None))
        by_tensor.update(
            {
                str(v.name): _digest(whole, str(i).encode())
                for i, v in enumerate(node.outputs)
                if v.name
            }
        )
    return by_tensor


def compute_output_digest(model: ir.Model) -> str:
    """Return a digest of what the graph outputs are computed from.

    Empty where one of them has none.
    """
    by_tensor = compute_value_digests(model, include_subgraphs=True)
    outputs = [by_tensor.get(str(value.name)) for value in model.graph.outputs]
    return (
        ""
        if None in outputs
        else _digest(*(digest for digest in outputs if digest is not None)).hex()
    )


def _iter_subgraph_inputs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what the nodes of a node's subgraphs read."""
    for attribute in node.attributes.values():
        for body in ir.get_subgraphs(attribute):
            for inner in ir.iter_nodes_recursive(body):
                yield from (value for value in inner.inputs if value is not None)


def _input_digest(value: ir.Value | None, found: dict[str, bytes]) -> bytes | None:
    """Return the digest of what a node reads, None where there is none."""
    if value is None:
        return b"absent"
    array = ir.const_value(value)
    if array is None:
        return found.get(str(value.name))
    return _digest(array.dtype.str.encode(), repr(array.shape).encode(), array.tobytes())


def _digest(*parts: bytes) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()
