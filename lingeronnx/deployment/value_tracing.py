"""Trace tensors back through host nodes that keep all elements in the same order."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import float_ops, ir

__all__ = ["trace_moved_value"]


def trace_moved_value(value: ir.Value, shapes: Mapping[str, tuple[int, ...]]) -> ir.Value:
    """Trace a tensor back through standard nodes that keep its elements in the same order.

    Parameters
    ----------
    value
        Tensor to trace.
    shapes
        Shape of each tensor for one sample. A Transpose keeps the order if it moves only axes of
        size 1.

    Returns
    -------
    ir.Value
        The tensor that is farthest upstream and has the same elements in the same order; `value`
        itself if no such node produces it.
    """
    while (node := ir.producer(value)) is not None:
        if node.op_type not in float_ops.PERMUTATION_OPS or node.domain != "":
            return value
        source = ir.require_input(node)
        if node.op_type == "Transpose" and not _is_order_preserving(
            node, shapes.get(str(source.name))
        ):
            return value
        value = source
    return value


def _is_order_preserving(node: ir.Node, shape: tuple[int, ...] | None) -> bool:
    """Whether the Transpose `node` of a tensor of `shape` moves only axes of size 1.

    The elements then keep their order in memory. False if the shape is unknown (None).
    """
    if shape is None:
        return False
    permutation = ir.get_attr(node, "perm", list(range(len(shape)))[::-1])
    return float_ops.keeps_element_order(permutation, shape)
