"""Shared parts of rewrites: their record, and the builder of replacement nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.builder import SubgraphBuilder
from ...operators.concat.lowering import mark_shared_scale_parts
from ...operators.conv_geometry import ConvGeometry, has_known_shapes
from ...operators.lowerings import can_lower
from ...targets import AppliedRewrite, Target

__all__ = [
    "AppliedRewrite",
    "RewriteBuilder",
    "FitRewrite",
    "format_sizes",
    "get_constant_bias",
    "get_sizes",
    "has_known_sample_shape",
    "is_standard_op",
    "add_partial_sums",
    "split_range",
    "match_conv",
    "has_known_shapes",
    "can_lower",
    "format_rounding_cost",
]


class FitRewrite(NamedTuple):
    """A rewrite that makes nodes meet a limit.

    Attributes
    ----------
    name
        Identifier of the rewrite.
    apply
        Function of the model, the node and the target that rewrites the node in place and returns a
        description of the change and its cost, or None if it does not apply.
    for_unsupported_ops
        Whether it also applies to operators that the platform does not support.
    for_legal_nodes
        Whether it also applies to nodes within all limits, which become cheaper.
    """

    name: str
    apply: Callable[[ir.Model, ir.Node, Target], tuple[str, str] | None]
    for_unsupported_ops: bool = False
    for_legal_nodes: bool = False


def match_conv(node: ir.Node, target: Target) -> tuple[ConvGeometry, np.ndarray] | None:
    """Return the geometry and constant weight of `node`, if it is a Conv to be taken apart.

    None for other nodes, on targets without convolution limits, and if the weight is not constant
    or of rank below 3, a shape is unknown, or a pad is negative.
    """
    if node.op_type != "Conv" or node.domain or target.conv_limits is None:
        return None
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim < 3:
        return None
    geometry = ConvGeometry(node)
    if not has_known_shapes(geometry) or min(geometry.pads) < 0:
        return None
    return geometry, weight


def is_standard_op(node: ir.Node, *op_types: str) -> bool:
    """Whether `node` is one of the operators `op_types` of ONNX's own domain."""
    return not node.domain and node.op_type in op_types


def has_known_sample_shape(shape: Sequence[int | None]) -> bool:
    """Whether `shape` has at least one axis, and all sizes but that of axis 0 are known."""
    return len(shape) > 0 and None not in shape[1:]


def get_constant_bias(node: ir.Node) -> np.ndarray | None:
    """Return the constant input 2 of a layer; None if it is absent or computed at run time."""
    return ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None


class RewriteBuilder(SubgraphBuilder):
    """Builder of the nodes that replace a node, if the platform can run them."""

    def concat_parts(
        self, parts: Sequence[ir.Value], axis: int, shape: Sequence[ir.Dim]
    ) -> ir.Value:
        """Append the Concat of `parts` of one tensor along `axis`.

        Return its output, of this `shape`. The node is marked so that all parts get the same scale.
        """
        result = self("Concat", parts, shape, "joined", {"axis": axis})
        mark_shared_scale_parts(self.nodes[-1])
        return result

    def replace_node_if_supported(self, target: Target) -> bool:
        """Replace the node by the new ones if the platform can run all of these, else discard them.

        Returns True if the node was replaced; otherwise the graph is as before.
        """
        if not all(can_lower(node, target) for node in self.nodes):
            self.discard()
            return False
        self.replace_node()
        return True


def add_partial_sums(builder: RewriteBuilder, parts: Sequence[ir.Value]) -> None:
    """Append nodes to `builder` that add `parts` one after the other, in their order.

    They have one shape, which is that of the sum, the output of the last node.
    """
    total = parts[0]
    for part in parts[1:]:
        total = builder("Add", [total, part], list(part.shape or ()), "sum")


def get_sizes(dims: Iterable[ir.Dim | None]) -> list[int]:
    """Return `dims` as integers, with 0 for unknown and symbolic ones."""
    return [dim if isinstance(dim, int) else 0 for dim in dims]


def format_sizes(sizes: Sequence[int]) -> str:
    """Format `sizes` with "x" between them, such as "3x3"."""
    return "x".join(map(str, sizes))


def format_rounding_cost(parts: int) -> str:
    """Format the cost of adding `parts` rounded results: `parts` - 1 more roundings."""
    return f"{parts - 1} more rounding{'s' if parts > 2 else ''} of half a step at most"


def split_range(total: int, parts: int, align: int = 1) -> list[tuple[int, int]]:
    """Split 0 .. total-1 into at most `parts` ranges (start, end), end excluded.

    All have one size, a multiple of `align`, except the last, which gets the remainder. There are
    fewer than `parts` if rounding up the size leaves nothing for the last ones.
    """
    size = -(-total // parts)
    size = -(-size // align) * align
    return [(start, min(start + size, total)) for start in range(0, total, size)]
