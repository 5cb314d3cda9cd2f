"""Digests by which tensors of two graphs are told to be computed alike, whatever they and their nodes are called."""

from __future__ import annotations

import hashlib

from . import ir

__all__ = ["digests", "whole"]


def digests(model: ir.Graph) -> dict[str, bytes]:
    """Return {tensor: digest of the operators, attributes, constants and graph inputs that it is computed from}.

    What a node with a subgraph computes, and what is computed from that, is left out.
    """
    found = {str(v.name): _digest(b"input", str(v.name).encode()) for v in model.graph.inputs}
    for node in model.graph:
        said = ir.node_proto(node)
        if any(attribute.HasField("g") or attribute.graphs for attribute in said.attribute):
            continue
        parts = [node.domain.encode(), node.op_type.encode()]
        parts += [a.SerializeToString(deterministic=True) for a in sorted(said.attribute, key=lambda a: a.name)]
        sources = [_source(value, found) for value in node.inputs]
        if None in sources:
            continue
        whole = _digest(*parts, b"reads", *(source for source in sources if source is not None))
        found.update({str(v.name): _digest(whole, str(i).encode()) for i, v in enumerate(node.outputs) if v.name})
    return found


def whole(model: ir.Graph) -> str:
    """Return a digest of what the graph outputs are computed from; empty where one of them has none."""
    found = digests(model)
    outputs = [found.get(str(value.name)) for value in model.graph.outputs]
    return "" if None in outputs else _digest(*(digest for digest in outputs if digest is not None)).hex()


def _source(value: ir.Value | None, found: dict[str, bytes]) -> bytes | None:
    """Return the digest of what a node reads, None where there is none."""
    if value is None:
        return b"absent"
    array = ir.const(value)
    if array is None:
        return found.get(str(value.name))
    return _digest(array.dtype.str.encode(), repr(array.shape).encode(), array.tobytes())


def _digest(*parts: bytes) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()
