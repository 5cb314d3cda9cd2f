"""Convolutions of a run in parts of their outputs, as the packer would cut them: exact.

The packer cuts a convolution of many weights itself, and stores the weights of a part with each node: for every tile
again. Of parts that stand in the graph it stores them once, as it does all constants that nodes share.
"""

from __future__ import annotations

import itertools

from .....formats import CONV2D
from .....graph import ir
from ...packer.options import Options
from ...packer.window import rounded
from ...packing import Packing, packing
from ..nodes import join
from ..read_graph import ReadGraph
from .runs import TiledRun

__all__ = ["in_output_parts"]


def in_output_parts(graph: ir.Graph, run: TiledRun, read: ReadGraph) -> TiledRun:
    """Put parts in place of the convolutions of `run` that the packer would cut, in place; return the run of them.

    A Relu behind such a convolution becomes one behind each part, so that the packer joins them as before.
    """
    nodes: list[ir.Node] = []
    waiting = list(run.nodes)[::-1]
    while waiting:
        layer = [waiting.pop()]
        count = _parts(layer[0], packing(read.target), read.base)
        if count > 1 and waiting and waiting[-1].op_type == "Relu" and waiting[-1].inputs[0] is layer[0].outputs[0]:
            layer.append(waiting.pop())
        nodes += layer if count == 1 else _cut(graph, layer, count)
    return TiledRun(tuple(nodes))


def _parts(node: ir.Node, limits: Packing, options: Options) -> int:
    """Return into how many parts the packer's limit cuts the weights of a node."""
    weight = ir.shape(node.inputs[1]) if node.op_type == CONV2D.name and ir.attr(node, "group", 1) == 1 else None
    if weight is None or len(weight) != 4:
        return 1
    outputs, channels, high, wide = (int(d or 1) for d in weight)
    cut, align = limits.cut, limits.conv.share_outputs
    limit = (min if cut.weights_lower else max)(cut.weights, options.thresholds[0])
    most = limit // (rounded(channels, 8) * high * wide) // align * align
    return min(-(-outputs // max(most, align)), outputs)


def _cut(graph: ir.Graph, layer: list[ir.Node], count: int) -> list[ir.Node]:
    """Put `count` parts and an iqCat in place of a convolution, and its Relu; return these nodes."""
    taken, nodes, parts = ir.names(graph), list[ir.Node](), list[ir.Value]()
    outputs = len(ir.constant(layer[0].inputs[1]))
    bounds = [outputs * i // count for i in range(count + 1)]
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        value, suffix = ir.source(layer[0]), f"_outputs{number}"
        for node in layer:
            constants = [
                ir.add_initializer(graph, ir.take_name(f"{v.name}{suffix}", taken), ir.constant(v)[first:last])
                for v in node.inputs[1:]
                if v is not None
            ]
            part = ir.make_node(
                node.op_type,
                [value, *constants],
                name=f"{node.name}{suffix}" if number else str(node.name),
                output=ir.take_name(f"{node.outputs[0].name}{suffix}", taken),
                domain=node.domain,
                like=node.outputs[0],
            )
            part.attributes.update(node.attributes)
            value = part.outputs[0]
            value.shape = ir.oir_shape([ir.known_shape(value)[0], last - first, *ir.known_shape(value)[2:]])
            nodes.append(part)
        parts.append(value)
    scale = float(ir.attr(layer[0], "scale_o"))
    name = f"{layer[-1].outputs[0].name}_outputs"
    cat = join(parts, 1, scale, layer[0], name, ir.take_name(name, taken))
    ir.replace(graph, layer, [*nodes, cat])
    return [*nodes, cat]
