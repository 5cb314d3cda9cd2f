"""Split convolutions by output channels, as the packer would, with equal integers.

The packer splits a convolution with many weights itself and stores the weights of a part with each
node, that is, once per tile. The weights of parts that the graph contains are stored once, as all
constants that nodes share. Convolutions whose outputs Slices select are split in the same way.
"""

from __future__ import annotations

import itertools

from ....common.arithmetic import round_up
from ....ir import ir
from ....operators.integer_ops import CONV2D
from ....operators.selection.integer_op import sliced_positions
from ....targets._target import AppliedRewrite
from ...packer.options import PackerOptions
from ...packer_profile import PackerProfile, get_packer_profile
from ..node_builders import make_concat
from ..packer_view import PackerGraphView
from .cascades import Cascade

__all__ = ["replace_slices_by_convs", "split_oversized_convs"]


def split_oversized_convs(graph: ir.Model, run: Cascade, view: PackerGraphView) -> Cascade:
    """Split the convolutions of cascade `run` that the packer would split, by outputs, in place.

    A Relu after such a convolution is split as well, so that the packer still fuses them. The parts
    are joined by an iqCat.

    Returns
    -------
    Cascade
        The cascade with the parts.
    """
    nodes: list[ir.Node] = []
    remaining = list(run.nodes)[::-1]
    while remaining:
        layer = [remaining.pop()]
        count = _get_part_count(layer[0], get_packer_profile(view.target), view.base_options)
        if count == 1:
            nodes += layer
            continue
        if remaining and _is_relu_of(remaining[-1], layer[0]):
            layer.append(remaining.pop())
        nodes += _split_conv(graph, layer, count)
    return Cascade(tuple(nodes))


def _is_relu_of(node: ir.Node, conv: ir.Node) -> bool:
    """Whether `node` is a Relu whose input is the output of `conv`."""
    return node.op_type == "Relu" and node.inputs[0] is conv.outputs[0]


def _get_part_count(node: ir.Node, profile: PackerProfile, options: PackerOptions) -> int:
    """Return into how many parts the packer splits the weights of `node`.

    As many as the limit of weight bytes requires, at most the outputs; 1 for all but a Conv2dInt
    with one group and a known 4-D weight.
    """
    if node.op_type != CONV2D.name or ir.get_attr(node, "group", 1) != 1:
        return 1
    weight_shape = ir.get_shape(node.inputs[1])
    if weight_shape is None or len(weight_shape) != 4:
        return 1
    outputs, channels, kernel_h, kernel_w = (int(dim or 1) for dim in weight_shape)
    limits, align = profile.layer_split, profile.conv.weight_slice_outputs
    combine = min if limits.threshold_lowers_limit else max
    limit_bytes = combine(limits.weight_bytes, options.thresholds[0])
    max_outputs = limit_bytes // (round_up(channels, 8) * kernel_h * kernel_w) // align * align
    return min(-(-outputs // max(max_outputs, align)), outputs)


def replace_slices_by_convs(graph: ir.Model) -> list[AppliedRewrite]:
    """Replace each Conv2dInt that only Slices of channels read by a convolution per Slice.

    In place. The output of a Slice must be in shared memory; that of a convolution need not.
    Returns one description per replaced convolution.
    """
    rewrites = []
    for conv in list(graph.graph):
        if conv.op_type != CONV2D.name:
            continue
        consumers = [use.node for use in conv.outputs[0].uses()]
        parts = _get_sliced_channels(conv, consumers)
        if not parts:
            continue
        for consumer, nodes in zip(consumers, _make_conv_parts(graph, [conv], parts), strict=True):
            ir.replace_nodes(graph, [consumer], nodes)
        description = (
            f"{conv.name} and its Slices replaced by {len(parts)} convolutions to fit in shared "
            "memory"
        )
        rewrites.append(AppliedRewrite(str(conv.name), description, "exact"))
    if rewrites:
        ir.remove_unused(graph)
    return rewrites


def _get_sliced_channels(conv: ir.Node, consumers: list[ir.Node]) -> list[tuple[int, int]]:
    """Return the (start, end) of the output channels that each of `consumers` of `conv` selects.

    Empty if a consumer is no Slice of channels with step 1, if together they select more channels
    than there are, and for a grouped convolution or a graph output.
    """
    if conv.outputs[0].is_graph_output() or ir.get_attr(conv, "group", 1) != 1:
        return []
    ranges = []
    for consumer in consumers:
        positions = sliced_positions(consumer, 1)
        if positions is None or positions.step != 1:
            return []
        ranges.append((positions.start, positions.stop))
    outputs = (ir.get_shape(conv.outputs[0]) or (0, 0))[1] or 0
    return ranges if sum(end - start for start, end in ranges) <= outputs else []


def _split_conv(graph: ir.Model, layer: list[ir.Node], count: int) -> list[ir.Node]:
    """Replace a convolution, and its Relu if `layer` has one, by `count` parts and an iqCat.

    In place; the outputs are divided evenly. Returns the new nodes in graph order.
    """
    outputs = len(ir.require_const_value(layer[0].inputs[1]))
    bounds = [outputs * i // count for i in range(count + 1)]
    parts = _make_conv_parts(graph, layer, list(itertools.pairwise(bounds)))
    name = f"{layer[-1].outputs[0].name}_outputs"
    concat = make_concat(
        [nodes[-1].outputs[0] for nodes in parts],
        1,
        float(ir.get_attr(layer[0], "scale_o")),
        layer[0],
        name,
        ir.reserve_name(name, ir.get_tensor_names(graph)),
    )
    new_nodes = [*itertools.chain.from_iterable(parts), concat]
    ir.replace_nodes(graph, layer, new_nodes)
    return new_nodes


def _make_conv_parts(
    graph: ir.Model, layer: list[ir.Node], ranges: list[tuple[int, int]]
) -> list[list[ir.Node]]:
    """Make a convolution, and its Relu if `layer` has one, per (start, end) of output channels.

    The nodes are not inserted into the graph; their sliced constants are. Returns the nodes of each
    part.
    """
    used_names = ir.get_tensor_names(graph)
    parts: list[list[ir.Node]] = []
    for index, (start, end) in enumerate(ranges):
        value, suffix, nodes = ir.require_input(layer[0]), f"_outputs{index}", list[ir.Node]()
        for node in layer:
            constants = []
            for constant in node.inputs[1:]:
                if constant is None:
                    continue
                array = ir.require_const_value(constant)[start:end]
                name = ir.reserve_name(f"{constant.name}{suffix}", used_names)
                constants.append(ir.add_initializer(graph, name, array))
            part = ir.make_node(
                node.op_type,
                [value, *constants],
                name=f"{node.name}{suffix}" if index else str(node.name),
                output=ir.reserve_name(f"{node.outputs[0].name}{suffix}", used_names),
                domain=node.domain,
                like=node.outputs[0],
            )
            part.attributes.update(node.attributes)
            value = part.outputs[0]
            batch, _, *size = ir.require_shape(value)
            value.shape = ir.Shape([batch, end - start, *size])
            nodes.append(part)
        parts.append(nodes)
    return parts
