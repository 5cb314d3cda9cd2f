"""Exact rewrites of forms of a graph that the packer refuses or plans too little memory for."""

from __future__ import annotations

from ...ir import ir
from ...ir.float_ops import keeps_element_order
from ...operators.integer_ops import DEQUANT, MUL, RESHAPE
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..packer.names import count_split_groups
from .duplicate_inputs import insert_copy
from .node_builders import find_scale, get_dims, insert_reshape, replace_by_producer

__all__ = ["copy_inputs_of_grouped_convs", "flatten_single_position_muls", "part_reshaped_outputs"]


def flatten_single_position_muls(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Multiply maps of one position as vectors, between Reshapes, in place.

    Returns one description per iqMul.
    """
    rewrites = []
    for node in list(graph.graph):
        shape = get_dims(node.outputs[0])
        if node.op_type != MUL.name or len(shape) != 4 or shape[2:] != [1, 1]:
            continue
        used_names = ir.get_tensor_names(graph)
        vectors: list[ir.Value | None] = [
            insert_reshape(graph, value, shape[:2], f"{value.name}_vector", node, used_names)
            for value in (ir.require_input(node), ir.require_input(node, 1))
        ]
        output = node.outputs[0]
        product = ir.make_node(
            node.op_type,
            vectors,
            {name: ir.get_attr(node, name) for name in node.attributes},
            name=str(node.name),
            output=ir.reserve_name(f"{output.name}_vector", used_names),
            domain=node.domain,
            like=output,
        )
        product.outputs[0].shape = ir.Shape(shape[:2])
        graph.graph.insert_before(node, product)
        image = insert_reshape(
            graph, product.outputs[0], shape, f"{output.name}_image", node, used_names
        )
        replace_by_producer(graph, [node], image)
        description = "maps of one position multiplied as vectors: the chip writes past the output"
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def part_reshaped_outputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Let a Reshape that alone reads a Reshape's output, a graph output, read its input, in place.

    The packer would merge them and lose the graph output. Returns one description per output.
    """
    rewrites = []
    for node in list(graph.graph):
        if not _is_reshape(node) or not _is_chip_output(node.outputs[0]):
            continue
        consumers = [use.node for use in node.outputs[0].uses() if not _is_dequant(use.node)]
        if len(consumers) != 1 or not _is_reshape(consumers[0]):
            continue
        consumer = consumers[0]
        output = consumer.outputs[0]
        used_names = ir.get_tensor_names(graph)
        name = f"{output.name}_parted"
        shape = get_dims(output)
        image = insert_reshape(
            graph, ir.require_input(node), shape, name, consumer, used_names, always=True
        )
        replace_by_producer(graph, [consumer], image)
        description = (
            "reads the tensor in front of the Reshape before it, which is a graph output: the "
            "packer would lose that"
        )
        rewrites.append(AppliedRewrite(str(consumer.name), description, "exact"))
    return rewrites


def _is_reshape(node: ir.Node) -> bool:
    """Whether the packer treats a node as a Reshape: also a Transpose of axes of length 1."""
    if node.op_type != "Transpose":
        return node.op_type == RESHAPE.name
    return keeps_element_order(ir.get_attr(node, "perm") or (), get_dims(node.inputs[0]))


def _is_dequant(node: ir.Node) -> bool:
    """Whether a node is a Dequant."""
    return node.op_type == DEQUANT.name


def _is_chip_output(value: ir.Value) -> bool:
    """Whether a tensor is an output of the chip's part: of the graph, or behind a Dequant."""
    return value.is_graph_output() or any(_is_dequant(use.node) for use in value.uses())


def copy_inputs_of_grouped_convs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Let all but the first grouped convolution on a tensor read copies of it, in place.

    The packer splits a grouped convolution and names the parts after its input, once. Returns one
    description per convolution.
    """
    rewrites = []
    sources: set[ir.Value] = set()
    for node in list(graph.graph):
        if not count_split_groups(node):
            continue
        source = ir.require_input(node)
        if source in sources:
            scale, _ = find_scale(source)
            node.replace_input_with(0, insert_copy(graph, source, scale, node, target))
            description = (
                "input copied by an identity convolution: the packer rejects two grouped "
                "convolutions of one tensor"
            )
            rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
        sources.add(source)
    return rewrites
