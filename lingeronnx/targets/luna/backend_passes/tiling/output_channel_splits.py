"""Convolutions of a run in parts of their outputs, as the packer would cut them: exact.

The packer cuts a convolution of many weights itself, and stores the weights of a part with each
node: for every tile again. Of parts that stand in the graph it stores them once, as it does all
constants that nodes share. Parts that Slices take are convolutions of their own, too.
"""

from __future__ import annotations

import itertools

from .....formats import CONV2D
from .....formats.data_movement.selection import sliced_positions
from .....graph import ir
from ...._target import AppliedRewrite
from ...packer.options import PackerOptions
from ...packer.window import round_up
from ...packer_profile import PackerProfile, get_packer_profile
from ..node_builders import make_concat
from ..packer_view import PackerGraphView
from .cascades import Cascade

__all__ = ["replace_slices_by_convs", "split_oversized_convs"]


def split_oversized_convs(graph: ir.Model, run: Cascade, read: PackerGraphView) -> Cascade:
    """Put parts in place of the convolutions of `run` that the packer would cut, in place.

    Return the run of them.
    A Relu behind such a convolution becomes one behind each part, so that the packer joins them as
    before.
    """
    nodes: list[ir.Node] = []
    waiting = list(run.nodes)[::-1]
    while waiting:
        layer = [waiting.pop()]
        count = _get_part_count(layer[0], get_packer_profile(read.target), read.base_options)
        if (
            count > 1
            and waiting
            and waiting[-1].op_type == "Relu"
            and waiting[-1].inputs[0] is layer[0].outputs[0]
        ):
            layer.append(waiting.pop())
        nodes += layer if count == 1 else _split_conv(graph, layer, count)
    return Cascade(tuple(nodes))


def _get_part_count(node: ir.Node, limits: PackerProfile, options: PackerOptions) -> int:
    """Return into how many parts the packer's limit cuts the weights of a node."""
    weight = (
        ir.get_shape(node.inputs[1])
        if node.op_type == CONV2D.name and ir.get_attr(node, "group", 1) == 1
        else None
    )
    if weight is None or len(weight) != 4:
        return 1
    outputs, channels, high, wide = (int(d or 1) for d in weight)
    cut, align = limits.layer_split, limits.conv.weight_slice_outputs
    limit = (min if cut.threshold_lowers_limit else max)(cut.weight_bytes, options.thresholds[0])
    most = limit // (round_up(channels, 8) * high * wide) // align * align
    return min(-(-outputs // max(most, align)), outputs)


def replace_slices_by_convs(graph: ir.Model) -> list[AppliedRewrite]:
    """Put a convolution for each Slice in place of those that are read by Slices of their outputs alone, in place.

    Return what was done. What a Slice writes has to lie in shared memory, what a convolution writes
    need not.
    """
    done = []
    for conv in [node for node in graph.graph if node.op_type == CONV2D.name]:
        readers = [use.node for use in conv.outputs[0].uses()]
        parts = _get_sliced_channels(conv, readers)
        if parts:
            for reader, new in zip(readers, _make_conv_parts(graph, [conv], parts), strict=True):
                ir.replace_nodes(graph, [reader], new)
            text = (
                f"{conv.name} and the Slices behind it as {len(parts)} convolutions, so that "
                "shared memory suffices"
            )
            done.append(AppliedRewrite(str(conv.name), text, "exact"))
    if done:
        ir.remove_unused(graph)
    return done


def _get_sliced_channels(conv: ir.Node, readers: list[ir.Node]) -> list[tuple[int, int]]:
    """Return the outputs of a convolution that its readers, all of them Slices, take.

    None where that is not so.
    None, too, where some are taken twice, so that products would be computed twice.
    """
    taken = [sliced_positions(reader, 1) for reader in readers]
    parts = [(part.start, part.stop) for part in taken if part is not None and part.step == 1]
    outputs = (ir.get_shape(conv.outputs[0]) or (0, 0))[1] or 0
    apart = sum(last - first for first, last in parts) <= outputs
    kept = (
        conv.outputs[0].is_graph_output()
        or len(parts) < len(readers)
        or ir.get_attr(conv, "group", 1) != 1
    )
    return parts if apart and not kept else []


def _split_conv(graph: ir.Model, layer: list[ir.Node], count: int) -> list[ir.Node]:
    """Put `count` parts and an iqCat in place of a convolution, and its Relu.

    Return these nodes.
    """
    outputs = len(ir.require_const_value(layer[0].inputs[1]))
    bounds = [outputs * i // count for i in range(count + 1)]
    parts = _make_conv_parts(graph, layer, list(itertools.pairwise(bounds)))
    scale = float(ir.get_attr(layer[0], "scale_o"))
    name = f"{layer[-1].outputs[0].name}_outputs"
    cat = make_concat(
        [part[-1].outputs[0] for part in parts],
        1,
        scale,
        layer[0],
        name,
        ir.reserve_name(name, ir.get_tensor_names(graph)),
    )
    nodes = [node for part in parts for node in part]
    ir.replace_nodes(graph, layer, [*nodes, cat])
    return [*nodes, cat]


def _make_conv_parts(
    graph: ir.Model, layer: list[ir.Node], parts: list[tuple[int, int]]
) -> list[list[ir.Node]]:
    """Return a convolution, and its Relu, for each of these ranges of outputs, not in the graph yet."""
    taken = ir.get_tensor_names(graph)
    made: list[list[ir.Node]] = []
    for number, (first, last) in enumerate(parts):
        value, suffix, nodes = ir.require_input(layer[0]), f"_outputs{number}", list[ir.Node]()
        for node in layer:
            constants = [
                ir.add_initializer(
                    graph,
                    ir.reserve_name(f"{v.name}{suffix}", taken),
                    ir.require_const_value(v)[first:last],
                )
                for v in node.inputs[1:]
                if v is not None
            ]
            part = ir.make_node(
                node.op_type,
                [value, *constants],
                name=f"{node.name}{suffix}" if number else str(node.name),
                output=ir.reserve_name(f"{node.outputs[0].name}{suffix}", taken),
                domain=node.domain,
                like=node.outputs[0],
            )
            part.attributes.update(node.attributes)
            value = part.outputs[0]
            value.shape = ir.make_shape(
                [ir.require_shape(value)[0], last - first, *ir.require_shape(value)[2:]]
            )
            nodes.append(part)
        made.append(nodes)
    return made
