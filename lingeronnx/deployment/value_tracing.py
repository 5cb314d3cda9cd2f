"""Host nodes that only move values.

What a tensor of one sample is made of, integer by integer in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..graph import ir, operators

__all__ = ["trace_moved_value"]


def trace_moved_value(value: ir.Value, shapes: Mapping[str, tuple[int, ...]]) -> ir.Value:
    """Return the tensor that `value` holds the values of, in their order, through nodes that only move them.

    shapes : of one sample, by tensor; a Transpose keeps the order where it moves axes of size 1
    only.
    """
    while (
        (node := ir.producer(value)) is not None
        and node.op_type in operators.PERMUTATION_OPS
        and node.domain == ""
    ):
        source = ir.require_input(node)
        if node.op_type == "Transpose" and not _keeps_order(node, shapes.get(str(source.name))):
            break
        value = source
    return value


def _keeps_order(node: ir.Node, shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return False
    order = ir.get_attr(node, "perm", list(range(len(shape)))[::-1])
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)
