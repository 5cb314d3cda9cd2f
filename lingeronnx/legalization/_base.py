"""What rewrites share: their form, and the making of nodes whose sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import ir
from ..graph.builder import SubgraphBuilder
from ..ops import can_lower
from ..ops.data_movement.concat import mark_shared_scale_parts
from ..ops.layers.conv import ConvGeometry, has_known_shapes
from ..targets import AppliedRewrite, Target

__all__ = [
    "AppliedRewrite",
    "RewriteBuilder",
    "FitRewrite",
    "format_sizes",
    "add_partial_sums",
    "split_range",
    "match_conv",
    "has_known_shapes",
    "can_lower",
    "format_rounding_cost",
]


@dataclass(frozen=True)
class FitRewrite:
    """A way to meet a limit.

    `apply(model, node, row)` returns what it did and at which cost, or None.
    for_unsupported_ops : it is for operators, too, that the platform does not have at all. within :
    and for nodes within all limits, which it makes cheaper.
    """

    name: str
    apply: Callable[[ir.Model, ir.Node, Target], tuple[str, str] | None]
    for_unsupported_ops: bool = False
    for_legal_nodes: bool = False


def match_conv(node: ir.Node, target: Target) -> tuple[ConvGeometry, np.ndarray] | None:
    """Return the sizes and the weight of a Conv that a rewrite may take apart.

    None where something is not known.
    """
    if node.op_type != "Conv" or node.domain or target.conv_limits is None:
        return None
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim < 3:
        return None
    g = ConvGeometry(node)
    return (g, weight) if has_known_shapes(g) and min(g.pads) >= 0 else None


class RewriteBuilder(SubgraphBuilder):
    """Makes the nodes that take a node's place."""

    def concat_parts(
        self, parts: Sequence[ir.Value], axis: int, shape: Sequence[ir.Dim]
    ) -> ir.Value:
        """Return `parts` of one tensor side by side along `axis`; they are held at one scale."""
        joined = self("Concat", parts, shape, "joined", {"axis": axis})
        mark_shared_scale_parts(self.nodes[-1])
        return joined


def add_partial_sums(builder: RewriteBuilder, parts: Sequence[ir.Value]) -> None:
    """Add up `parts`, one after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = builder("Add", [total, part], list(part.shape or ()), "sum")


def format_sizes(sizes: Sequence[int]) -> str:
    """Return sizes as people write them, 3x3."""
    return "x".join(map(str, sizes))


def format_rounding_cost(parts: int) -> str:
    """Return the cost of adding up `parts` results that are each rounded."""
    return f"{parts - 1} more rounding{'s' if parts > 2 else ''} of half a step at most"


def split_range(total: int, parts: int, align: int = 1) -> list[tuple[int, int]]:
    """Cut 0..total-1 into `parts` ranges (start, end) of nearly one size, a multiple of `align` but for the last."""
    each = -(-total // parts)
    each = -(-each // align) * align
    return [(start, min(start + each, total)) for start in range(0, total, each)]
