"""Extract the chip part of an integer graph: Quants to Dequants, without host nodes.

The vendor's packer supports no float operator, so a graph that ends in a Softmax on the host is
packed without it. Tensor names are preserved: inputs and outputs of the part are the float tensors
at its boundary, and the index of an embedding, which may be the result of a Cast on the host.

A tensor of more than 8 bits leaves the chip as integers, and the host computes its Dequant, because
the packer would convert the input of a Dequant to 8 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..ir import ir
from ..targets import Target
from .integer_ops import DEQUANT, QUANT, find_integer_op, is_quantized_domain

__all__ = [
    "extract_chip_nodes",
    "extract_chip_part",
    "find_chip_nodes",
    "is_dequantized",
    "is_host_dequant",
    "order_packed_outputs",
]


def extract_chip_part(graph: ir.Model, target: Target) -> ir.Model:
    """Return a copy of the chip part of an integer graph, from Quants to Dequants.

    Parameters
    ----------
    graph
        A chip-ready integer graph; not modified.
    target
        The chip; the part gets its opset.

    Returns
    -------
    ir.Model
        The chip part, or `graph` itself if the chip runs all nodes.
    """
    inside = find_chip_nodes(graph)
    if len(inside) == len(graph.graph):
        return graph
    indices = frozenset(i for i, node in enumerate(graph.graph) if id(node) in inside)
    return extract_chip_nodes(graph, indices, target)


def order_packed_outputs(outputs: Iterable[ir.Value]) -> list[ir.Value]:
    """Return graph outputs in the order in which an executor numbers them.

    First those that no Dequant computes, then the others, each in their order in the graph.
    """
    return sorted(outputs, key=is_dequantized)


def is_dequantized(value: ir.Value) -> bool:
    """Whether a Dequant computes `value`."""
    producer = ir.producer(value)
    return producer is not None and find_integer_op(producer) is DEQUANT


def extract_chip_nodes(graph: ir.Model, indices: Collection[int], target: Target) -> ir.Model:
    """Return a copy of some integer nodes of `graph` as a separate graph.

    Its outputs are the tensors that other nodes consume, and outputs of `graph`, in the order of
    `order_packed_outputs`. A Quant of a host
    tensor is contained in every part that consumes its integers, so these are not outputs.

    Parameters
    ----------
    graph
        An integer graph.
    indices
        Indices of the nodes in graph order.
    target
        The chip; the part gets its opset.
    """
    part = graph.clone()
    part_graph = part.graph
    nodes = [node for index, node in enumerate(part_graph) if index in indices]
    inside = {id(node) for node in nodes}
    outputs = _find_part_outputs(part, inside)
    inputs = _make_part_inputs(part, nodes, inside)
    part_graph.outputs[:] = order_packed_outputs(outputs)
    ir.remove_unused(part)
    part_graph.inputs[:] = inputs
    part.functions.clear()
    part_graph.opset_imports.clear()
    part_graph.opset_imports.update({"": target.opset, "thinker": 1})
    return part


def _make_part_inputs(
    part: ir.Model, nodes: Sequence[ir.Node], inside: Collection[int]
) -> list[ir.Value]:
    """Make graph inputs of all variables that the `nodes` consume and do not compute.

    `inside` has the ids of the nodes of the part, whose inputs are replaced in place. Returns the
    inputs in order of first use.
    """
    inputs: list[ir.Value] = []
    for node in nodes:
        variables = [v for v in node.inputs if v is not None and ir.const_value(v) is None]
        for source in variables:
            if id(source.producer()) not in inside and source not in inputs:
                inputs.append(_make_part_input(part, source, inside))
    return inputs


def _make_part_input(part: ir.Model, source: ir.Value, inside: Collection[int]) -> ir.Value:
    """Return an input of the part with the name of `source`; the nodes `inside` (ids) read it.

    `source` itself gets a new name. A graph input is returned unchanged.
    """
    if source.is_graph_input():
        return source
    part_input = ir.Value(name=source.name, type=source.type, shape=source.shape)
    for consumer, index in list(source.uses()):
        if id(consumer) in inside:
            consumer.replace_input_with(index, part_input)
    source.name = ir.unique_tensor_name(part, f"{source.name}_host")
    return part_input


def _find_part_outputs(part: ir.Model, inside: Collection[int]) -> list[ir.Value]:
    """Return the outputs of the nodes `inside` (ids) that leave the part, in graph order.

    The integers that a host Dequant reads come at the position of the Dequant.
    """
    outputs: dict[int, ir.Value] = {}
    chip_nodes = find_chip_nodes(part)
    for node in part.graph:
        values = [ir.require_input(node)] if is_host_dequant(node) else node.outputs
        holders = inside
        if node.op_type == QUANT.name:
            producer = ir.producer(ir.require_input(node))
            holders = inside if id(producer) in chip_nodes else chip_nodes
        for value in values:
            if id(value.producer()) in inside and _is_part_output(value, node, holders):
                outputs[id(value)] = value
    return list(outputs.values())


def _is_part_output(value: ir.Value, node: ir.Node, holders: Collection[int]) -> bool:
    """Whether `value`, computed in the part, is read outside of it, as seen at `node`.

    True if `node` is its host Dequant or a Dequant itself, if it is a graph output, and if another
    node than a host Dequant reads it that is not in `holders`: ids of the nodes that have the value
    in their own part.
    """
    if node is not value.producer() or node.op_type == DEQUANT.name or value.is_graph_output():
        return True
    outside = [use.node for use in value.uses() if id(use.node) not in holders]
    return any(not is_host_dequant(consumer) for consumer in outside)


def is_host_dequant(node: ir.Node) -> bool:
    """Whether `node` is a Dequant of an int16 or int32 tensor, which the host computes."""
    if node.op_type != DEQUANT.name or not is_quantized_domain(node):
        return False
    dtype = ir.require_input(node).dtype
    return dtype is not None and dtype.name in ("INT16", "INT32")


def find_chip_nodes(graph: ir.Model) -> set[int]:
    """Return the ids of the nodes of `graph` that the chip runs.

    These are integer operators, except Dequants of wide integers, which the host computes, and
    standard operators on integer tensors. If an imported graph does not declare types, outputs of
    integer operators are integer tensors. A 32-bit tensor that no chip node computes contains
    numbers of the model itself, such as indices.
    """
    chip_nodes: set[int] = set()
    for node in graph.graph:
        if is_host_dequant(node):
            continue
        if (
            is_quantized_domain(node)
            or find_integer_op(node) is not None
            and _reads_integers(node, chip_nodes)
        ):
            chip_nodes.add(id(node))
    return chip_nodes


def _reads_integers(node: ir.Node, chip_nodes: set[int]) -> bool:
    """Whether the first input of `node` is a quantized tensor.

    int8 and int16 tensors are; int32 and tensors without a type only if a node of `chip_nodes`
    (ids), not a Dequant, computes them. int32 constants are, too.
    """
    source = node.inputs[0] if node.inputs else None
    producer = ir.producer(source)
    from_chip = (
        producer is not None and id(producer) in chip_nodes and producer.op_type != DEQUANT.name
    )
    if source is None or source.dtype is None:
        return from_chip
    if source.dtype.name == "INT32":
        return from_chip or ir.const_value(source) is not None
    return source.dtype.name in ("INT8", "INT16")
