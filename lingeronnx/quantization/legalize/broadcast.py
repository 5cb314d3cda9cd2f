"""Give operands equal shapes, exactly, if the platform does not broadcast.

A product with one value per leading axes, ``[N, C, T] * [N, C, 1]``, becomes one over an image with
one value per channel, which chips support. Any other smaller operand is expanded to the shape of
the result.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir import float_ops, ir
from ...targets import Target
from ._base import RewriteBuilder, get_sizes

__all__ = ["equalize_operand_shapes"]


def equalize_operand_shapes(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Give the computed operands of a binary `node` equal shapes, or one value per channel.

    A Mul one of whose operands has size 1 on all axes after some leading ones becomes a product per
    channel; otherwise operands of other shape are expanded. Returns the description and the cost of
    the change; None, without a change, if the shapes are equal, of different ranks or unknown, or
    if the new nodes are not supported.
    """
    if node.domain or node.op_type not in float_ops.BINARY_FUNCTIONS:
        return None
    if any(ir.const_value(value) is not None for value in node.inputs):
        return None
    shapes = [ir.get_shape(value) or () for value in (*node.inputs, node.outputs[0])]
    if len(set(map(len, shapes))) > 1 or any(None in shape[1:] for shape in shapes):
        return None
    left_sizes, right_sizes, sizes = (get_sizes(shape[1:]) for shape in shapes)
    builder = RewriteBuilder(model, node)
    shared_axes = _count_shared_leading_axes(left_sizes, right_sizes, sizes)
    if node.op_type == "Mul" and shared_axes is not None:
        _emit_per_channel_mul(builder, sizes, shared_axes)
        description = "a product with one value per row as one per channel of an image"
    elif left_sizes != right_sizes:
        _emit_expanded_operands(builder, [left_sizes, right_sizes], sizes)
        description = "the smaller operand is expanded to the shape of the result"
    else:
        return None
    return (description, "exact") if builder.replace_node_if_supported(target) else None


def _count_shared_leading_axes(
    left_sizes: list[int], right_sizes: list[int], sizes: list[int]
) -> int | None:
    """Count the axes up to the last one on which the smaller operand is larger than 1.

    All arguments are sizes without the batch, `sizes` those of the result. None unless one operand
    has `sizes`, the other differs from it and has more than one element, and both agree on these
    axes.
    """
    if sizes not in (left_sizes, right_sizes) or left_sizes == right_sizes:
        return None
    small = left_sizes if right_sizes == sizes else right_sizes
    count = next((i for i in range(len(small), 0, -1) if small[i - 1] != 1), 0)
    return count if count and small[:count] == sizes[:count] else None


def _emit_per_channel_mul(builder: RewriteBuilder, sizes: list[int], channel_axes: int) -> None:
    """Append a Mul over images whose channels are the leading axes, and a Reshape to `sizes`.

    `channel_axes` is the number of leading axes (batch aside) that both operands share.
    """
    channels, area = math.prod(sizes[:channel_axes]), math.prod(sizes[channel_axes:])
    operands = []
    for index, value in enumerate(builder.node.inputs):
        assert value is not None
        size = math.prod(int(dim or 1) for dim in (ir.get_shape(value) or ())[1:])
        operands.append(builder.reshape(value, [channels, size // channels, 1], f"image{index}"))
    batch: ir.Dim = (builder.result.shape or ["N"])[0]
    product = builder("Mul", operands, [batch, channels, area, 1], "by_channel")
    builder.reshape(product, sizes, "joined")


def _emit_expanded_operands(
    builder: RewriteBuilder, operand_sizes: list[list[int]], sizes: list[int]
) -> None:
    """Append a copy of the replaced node with its operands expanded to `sizes`.

    `sizes` and `operand_sizes` are without the batch; operands of these sizes are used as they are.
    """
    batch: ir.Dim = (builder.result.shape or ["N"])[0]
    operands = []
    for index, value in enumerate(builder.node.inputs):
        assert value is not None
        if operand_sizes[index] != sizes:
            shape = builder.constant(np.array([1, *sizes], np.int64), f"sizes{index}")
            value = builder("Expand", [value, shape], [batch, *sizes], f"repeated{index}")
        operands.append(value)
    builder(builder.node.op_type, operands, [batch, *sizes], "equal")
