"""The part of an integer graph that goes to the chip: from the Quants to the Dequants, the host part cut off.

The vendor's packer takes no float operator, so a graph that ends in a Softmax on the host is packed without it. Tensor
names stay: the cut graph's inputs and outputs are the float tensors at the borders, and the index of an embedding,
which may be the result of a Cast on the host.

A tensor wider than 8 bits leaves the chip as it is, and its Dequant is the host's: the packer would make 8 bits of what
a Dequant reads.
"""

from __future__ import annotations

from ..formats import DEQUANT, integer_format, is_quantized_domain
from ..graph import ir
from ..targets import Target

__all__ = ["chip_part", "on_chip", "scaled_by_host"]


def chip_part(graph: ir.Graph, target: Target) -> ir.Graph:
    """Return a copy of the chip-ready integer `graph` without its host part; the same graph when it has none.

    target : what the graph is for; its opset is that of the part.
    """
    if len(on_chip(graph)) == len(graph.graph):
        return graph
    part = ir.clone(graph)
    inner, inside = part.graph, on_chip(part)
    kept = [node for node in inner if id(node) in inside]
    inputs: list[ir.Value] = []
    for node in kept:
        for source in [v for v in node.inputs if v is not None and ir.const(v) is None]:
            if id(source.producer()) in inside or source in inputs:
                continue
            entry = source
            if not source.is_graph_input():
                entry = ir.Value(name=source.name, type=source.type, shape=source.shape)
                for user, index in list(source.uses()):
                    if id(user) in inside:
                        user.replace_input_with(index, entry)
                source.name = ir.fresh_name(part, f"{source.name}_host")
            inputs.append(entry)
    outputs = [
        ir.source(node) if id(node) not in inside else node.outputs[0]
        for node in inner
        if scaled_by_host(node) or (id(node) in inside and (node.op_type == DEQUANT.name or _real(node)))
    ]
    inner.outputs[:] = outputs
    ir.remove_unused(part)
    inner.inputs[:] = inputs
    part.functions.clear()
    inner.opset_imports.clear()
    inner.opset_imports.update({"": target.opset, "thinker": 1})
    return part


def _real(node: ir.Node) -> bool:
    """Whether the integer `node` writes floats without a Dequant."""
    kind = node.outputs[0].dtype
    return kind is not None and kind.name == "FLOAT"


def scaled_by_host(node: ir.Node) -> bool:
    """Whether `node` is a Dequant that reads more than 8 bits."""
    if node.op_type != DEQUANT.name or not is_quantized_domain(node):
        return False
    kind = ir.source(node).dtype
    return kind is not None and kind.name in ("INT16", "INT32")


def on_chip(graph: ir.Graph) -> set[int]:
    """Return the ids of the nodes that the chip runs: integer operators, and standard ones on integer tensors.

    Where the types of a graph from elsewhere are not told, what an integer operator writes is an integer tensor.
    """
    found: set[int] = set()
    for node in graph.graph:
        if scaled_by_host(node):
            continue
        if is_quantized_domain(node) or (integer_format(node) is not None and _reads_integers(node, found)):
            found.add(id(node))
    return found


def _reads_integers(node: ir.Node, inside: set[int]) -> bool:
    source = node.inputs[0] if node.inputs else None
    if source is not None and source.dtype is not None:
        return source.dtype.name in ("INT8", "INT16", "INT32")
    maker = ir.producer(source)
    return maker is not None and id(maker) in inside and maker.op_type != DEQUANT.name
