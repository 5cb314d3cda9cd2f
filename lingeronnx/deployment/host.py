"""The float nodes of an integer graph that stay with the host: what runs before the chip, and what runs after it.

    host head: graph inputs -> what the chip reads          host tail: what its Dequants write -> graph outputs

Head, chip and tail have their tensors' names in common, and together compute the whole graph. Where the chip writes
more than 8 bits the tail scales them, by Cast and Mul.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from ..formats import DEQUANT
from ..graph import ir
from ..run.host_part import host_model, names_read, scaled
from ..run.part import on_chip

__all__ = ["HostParts", "host_parts"]


@dataclass(frozen=True)
class HostParts:
    """The host's models, plain ONNX; None where nothing is to be done."""

    head: onnx.ModelProto | None
    tail: onnx.ModelProto | None


def host_parts(graph: ir.Graph) -> HostParts:
    """Return the host's parts of an integer graph that has no float node between integer ones.

    A float node that neither feeds the chip nor reads from it belongs to the tail.
    """
    proto, inside = ir.to_proto(graph), on_chip(graph)
    chip = [id(node) in inside for node in graph.graph]
    nodes = []
    for node, whole in zip(proto.graph.node, chip, strict=True):
        if node.op_type == DEQUANT.name and not whole:
            nodes += scaled(proto, node)
        elif not whole and node.op_type != "Constant":
            nodes.append(node)
    entries = [name for n, whole in zip(proto.graph.node, chip, strict=True) if whole for name in n.input]
    head = _before(nodes, entries)
    tail = [node for node in nodes if node not in head]
    ends = [value.name for value in proto.graph.output]
    later = {name for node in tail for name in names_read(node)}
    wanted = [*dict.fromkeys(entries), *later, *ends]
    return HostParts(host_model(proto, head, wanted), host_model(proto, tail, ends))


def _before(nodes: Sequence[onnx.NodeProto], names: Collection[str]) -> list[onnx.NodeProto]:
    """Return the nodes that `names` are computed by, in order."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(names_read(node))
    return found[::-1]
