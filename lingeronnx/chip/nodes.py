"""Nodes that the form of a graph for a chip is built of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..formats import CONCAT
from ..graph import ir

__all__ = ["ONE", "cut", "joined"]

#: The weight of an identity convolution or layer, and its scale.
ONE = 64


def cut(graph: ir.Graph, node: ir.Node, axis: int, start: int, end: int, shape: list[int]) -> ir.Value:
    """Insert a Slice of the positions `start` .. `end` - 1 of the first output of `node` behind it.

    shape : that of its output, which is returned.
    """
    name = ir.fresh_name(graph, f"{node.outputs[0].name}_cut")
    bounds = [
        ir.add_initializer(graph, ir.fresh_name(graph, f"{name}_{what}"), np.array([number], np.int64))
        for what, number in (("start", start), ("end", end), ("axis", axis), ("step", 1))
    ]
    made = ir.make_node("Slice", [node.outputs[0], *bounds], name=f"Slice_{name}", output=name, like=node.outputs[0])
    made.outputs[0].shape = ir.oir_shape(shape)
    graph.graph.insert_after(node, made)
    return made.outputs[0]


def joined(
    graph: ir.Graph,
    node: ir.Node,
    parts: Sequence[ir.Value],
    axis: int,
    scale: float,
    name: str,
    before: ir.Node | None = None,
) -> ir.Value:
    """Insert an iqCat of `parts`, all held at `scale`, before `before` or else `node`; return its output.

    Where it runs is taken from `node`.
    """
    extra = {
        key: node.attributes[key].value
        for key in ("platform", "platform_quant", "quant_mode")
        if key in node.attributes
    }
    attrs = {"dim": axis, **{f"scale_x_{i}": scale for i in range(len(parts))}, "scale_o": scale, **extra}
    what = name or f"{node.outputs[0].name}_joined"
    made = ir.make_node(
        CONCAT.name,
        parts,
        dict(sorted(attrs.items())),
        name=f"{CONCAT.name}_{what}",
        output=ir.fresh_name(graph, name) if name else "",
        domain=node.domain,
        like=parts[0],
    )
    shape = list(parts[0].shape or ())
    shape[axis] = sum(int((ir.shape(part) or ())[axis] or 0) for part in parts)
    made.outputs[0].shape = ir.oir_shape(shape)
    graph.graph.insert_before(before or node, made)
    return made.outputs[0]
