"""The part of an integer graph that goes to the chip.

From the Quants to the Dequants, the host part cut off.
The vendor's packer takes no float operator, so a graph that ends in a Softmax on the host is packed
without it. Tensor names stay: the cut graph's inputs and outputs are the float tensors at the
borders, and the index of an embedding, which may be the result of a Cast on the host.

A tensor wider than 8 bits leaves the chip as it is, and its Dequant is the host's: the packer would
make 8 bits of what a Dequant reads.
"""

from __future__ import annotations

from collections.abc import Collection

from ..formats import DEQUANT, QUANT, find_integer_op, is_quantized_domain
from ..graph import ir
from ..targets import Target

__all__ = ["extract_chip_nodes", "extract_chip_part", "find_chip_nodes", "is_host_dequant"]


def extract_chip_part(graph: ir.Model, target: Target) -> ir.Model:
    """Return a copy of the chip-ready integer `graph` without its host part.

    The same graph when it has none.
    target : what the graph is for; its opset is that of the part.
    """
    inside = find_chip_nodes(graph)
    if len(inside) == len(graph.graph):
        return graph
    return extract_chip_nodes(
        graph, frozenset(i for i, node in enumerate(graph.graph) if id(node) in inside), target
    )


def extract_chip_nodes(graph: ir.Model, places: Collection[int], target: Target) -> ir.Model:
    """Return a copy of some integer nodes of `graph`, by their places in it, as a graph of their own.

    Its outputs are what is read outside it and what the whole graph puts out. A Quant of what the
    host hands over stands in every piece that reads its integers, so that these do not leave.
    """
    piece = ir.clone(graph)
    inner = piece.graph
    kept = [node for place, node in enumerate(inner) if place in places]
    inside = {id(node) for node in kept}
    outputs = _find_piece_outputs(piece, inside)
    inputs: list[ir.Value] = []
    for node in kept:
        for source in [v for v in node.inputs if v is not None and ir.const_value(v) is None]:
            if id(source.producer()) in inside or source in inputs:
                continue
            entry = source
            if not source.is_graph_input():
                entry = ir.Value(name=source.name, type=source.type, shape=source.shape)
                for user, index in list(source.uses()):
                    if id(user) in inside:
                        user.replace_input_with(index, entry)
                source.name = ir.unique_tensor_name(piece, f"{source.name}_host")
            inputs.append(entry)
    inner.outputs[:] = outputs
    ir.remove_unused(piece)
    inner.inputs[:] = inputs
    piece.functions.clear()
    inner.opset_imports.clear()
    inner.opset_imports.update({"": target.opset, "thinker": 1})
    return piece


def _find_piece_outputs(piece: ir.Model, inside: Collection[int]) -> list[ir.Value]:
    """Return what the nodes `inside` write for others, in the order in which it leaves the integers."""
    found: dict[int, ir.Value] = {}
    chip = find_chip_nodes(piece)
    for node in piece.graph:
        values = [ir.require_input(node)] if is_host_dequant(node) else node.outputs
        given = node.op_type == QUANT.name and id(ir.producer(ir.require_input(node))) not in chip
        there = chip if given else inside
        found.update(
            (id(v), v)
            for v in values
            if id(v.producer()) in inside and _is_piece_output(v, node, there)
        )
    return list(found.values())


def _is_piece_output(value: ir.Value, at: ir.Node, there: Collection[int]) -> bool:
    """Whether `value` leaves at the node `at`, which writes it or is the host's Dequant of it.

    there : the nodes that have the value without being handed it.
    """
    if at is not value.producer() or at.op_type == DEQUANT.name or value.is_graph_output():
        return True
    outside = [use.node for use in value.uses() if id(use.node) not in there]
    return any(not is_host_dequant(node) for node in outside)


def is_host_dequant(node: ir.Node) -> bool:
    """Whether `node` is a Dequant that reads more than 8 bits."""
    if node.op_type != DEQUANT.name or not is_quantized_domain(node):
        return False
    kind = ir.require_input(node).dtype
    return kind is not None and kind.name in ("INT16", "INT32")


def find_chip_nodes(graph: ir.Model) -> set[int]:
    """Return the ids of the nodes that the chip runs.

    Integer operators, and standard ones on integer tensors.
    Where the types of a graph from elsewhere are not told, what an integer operator writes is an
    integer tensor. What has 32 bits, and no node of the chip wrote it, are numbers of the model's
    own, such as indices.
    """
    found: set[int] = set()
    for node in graph.graph:
        if is_host_dequant(node):
            continue
        if is_quantized_domain(node) or (
            find_integer_op(node) is not None and _reads_integers(node, found)
        ):
            found.add(id(node))
    return found


def _reads_integers(node: ir.Node, inside: set[int]) -> bool:
    source = node.inputs[0] if node.inputs else None
    maker = ir.producer(source)
    made = maker is not None and id(maker) in inside and maker.op_type != DEQUANT.name
    if source is None or source.dtype is None:
        return made
    known = source.dtype.name
    return known in ("INT8", "INT16") or (
        known == "INT32" and (made or ir.const_value(source) is not None)
    )
