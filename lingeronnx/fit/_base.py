"""What rewrites share: their form, and the making of nodes whose sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import ir
from ..ops.concat import mark_parts
from ..ops.conv import Geometry, known
from ..platforms import Platform

__all__ = [
    "Fitted", "Maker", "Rewrite", "by", "chained", "chunks", "conv_of", "known", "scratch_conv", "scratch_source",
    "sum_cost",
]  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """One rewrite that was applied."""

    node: str
    what: str
    cost: str


@dataclass(frozen=True)
class Rewrite:
    """A way to meet a limit: `apply(model, node, row)` returns what it did and at which cost, or None.

    absent : it is for operators, too, that the platform does not have at all.
    """

    name: str
    apply: Callable[[ir.Graph, ir.Node, Platform], tuple[str, str] | None]
    absent: bool = False


def conv_of(node: ir.Node, row: Platform) -> tuple[Geometry, np.ndarray] | None:
    """Return the sizes and the weight of a Conv that a rewrite may take apart; None where something is not known."""
    if node.op_type != "Conv" or node.domain or row.conv is None:
        return None
    weight = ir.const(node.inputs[1])
    if weight is None or weight.ndim < 3:
        return None
    g = Geometry(node)
    return (g, weight) if known(g) and min(g.pads) >= 0 else None


class Maker:
    """Makes the nodes that take a node's place, with names after it and shapes for what follows."""

    def __init__(self, model: ir.Graph, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.result = node.outputs[0]
        self.nodes: list[ir.Node] = []

    def __call__(
        self, op_type: str, inputs: Sequence[ir.Value | None], shape: Sequence[Any], what: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> ir.Value:  # fmt: skip
        """Append a node called `<node>_<what>`; return its output, `<node's output>_<what>` of size `shape`."""
        name = ir.fresh_name(self.model, f"{self.result.name}_{what}")
        taken = {v.name for n in self.nodes for v in n.outputs}
        number = 2
        base = name
        while name in taken:
            name, number = f"{base}{number}", number + 1
        made = ir.make_node(op_type, inputs, attributes, of=self.node, what=what, output=name, like=self.result)
        made.outputs[0].shape = ir.oir_shape(list(shape))
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, array: np.ndarray, what: str) -> ir.Value:
        """Return an initializer called `<node's output>_<what>`."""
        return ir.add_initializer(self.model, ir.fresh_name(self.model, f"{self.result.name}_{what}"), array)

    def crop(self, source: ir.Value, axis: int, start: int, end: int, what: str) -> ir.Value:
        """Return the positions start..end-1 of `source` along `axis`; `source` itself where that is all of it."""
        shape: list[Any] = list(source.shape or ())
        if (start, end) == (0, shape[axis]):
            return source
        shape[axis] = end - start
        bounds = [self.constant(np.array([n], np.int64), f"{what}_{key}")
                  for key, n in (("start", start), ("end", end), ("axis", axis))]  # fmt: skip
        return self("Slice", [source, *bounds], shape, what)

    def join(self, parts: Sequence[ir.Value], axis: int, shape: Sequence[Any]) -> ir.Value:
        """Return `parts` of one tensor side by side along `axis`; they are held at one scale."""
        joined = self("Concat", parts, shape, "joined", {"axis": axis})
        mark_parts(self.nodes[-1])
        return joined

    def undo(self) -> None:
        """Forget what was made."""
        for node in self.nodes:
            constants = [v for v in node.inputs if v is not None and v.is_initializer()]
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            for value in constants:
                self.model.graph.initializers.pop(str(value.name), None)
        self.nodes.clear()

    def done(self) -> None:
        """Put the nodes where the old one was: the last one takes over its name and its output's."""
        self.nodes[-1].name = self.node.name
        for index, value in enumerate(self.node.inputs):
            if value is not None and value.is_initializer() and len(value.uses()) == 1 and not value.is_graph_input():
                self.node.replace_input_with(index, None)
                del self.model.graph.initializers[str(value.name)]
        ir.replace(self.model, [self.node], self.nodes)


def chained(make: Maker, parts: Sequence[ir.Value]) -> None:
    """Add up `parts`, one after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = make("Add", [total, part], list(part.shape or ()), "sum")


def scratch_conv(
    source: Sequence[int], weight: Sequence[int], result: Sequence[int], attributes: Mapping[str, Any]
) -> ir.Node:  # fmt: skip
    """Return a Conv of given sizes that is in no graph, to ask the constraints about."""
    x = scratch_source(ir.Value(name="x", shape=ir.oir_shape([1, *source])))
    w = ir.Value(name="w", shape=ir.oir_shape(list(weight)))
    node = ir.make_node("Conv", [x, w], attributes, name="scratch", output="y")
    node.outputs[0].shape = ir.oir_shape([1, *result])
    return node


def scratch_source(like: ir.Value) -> ir.Value:
    """Return a tensor like `like` that a node computes: a part of a layer does not read a graph input."""
    return ir.make_node("Slice", [like], name="cut", output="x", like=like).outputs[0]


def by(sizes: Sequence[int]) -> str:
    """Return sizes as people write them, 3x3."""
    return "x".join(map(str, sizes))


def sum_cost(parts: int) -> str:
    """Return the cost of adding up `parts` results that are each rounded."""
    return f"{parts - 1} more rounding{'s' if parts > 2 else ''} of half a step at most"


def chunks(total: int, parts: int, align: int = 1) -> list[tuple[int, int]]:
    """Cut 0..total-1 into `parts` ranges (start, end) of nearly one size, a multiple of `align` but for the last."""
    each = -(-total // parts)
    each = -(-each // align) * align
    return [(start, min(start + each, total)) for start in range(0, total, each)]
