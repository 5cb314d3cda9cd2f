"""Operands of different sizes where the platform wants equal ones: exact.

A product by one number for a whole row of axes, ``[N, C, T] * [N, C, 1]``, is one over an image
with one number per channel, which chips have. Every other smaller operand is repeated to the sizes
of the result.
"""

from __future__ import annotations

import math

import numpy as np

from ..graph import ir, operators
from ..targets import Target
from ._base import RewriteBuilder, can_lower

__all__ = ["equalize_operand_shapes"]


def equalize_operand_shapes(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Give the two operands of a sum, a product or their kin the same sizes, or a number per channel."""
    if (
        node.domain
        or node.op_type not in operators.BINARY_FUNCTIONS
        or any(ir.const_value(v) is not None for v in node.inputs)
    ):
        return None
    shapes = [ir.get_shape(value) or () for value in (*node.inputs, node.outputs[0])]
    if len({len(shape) for shape in shapes}) > 1 or any(None in shape[1:] for shape in shapes):
        return None
    left, right, result = ([int(d or 0) for d in shape[1:]] for shape in shapes)
    make = RewriteBuilder(model, node)
    if node.op_type == "Mul" and (rows := _common_leading_axes(left, right, result)) is not None:
        _emit_per_channel_mul(make, result, rows)
        what = "a product by one number per row, written as one per channel of an image"
    elif left != right:
        _emit_expanded_operands(make, [left, right], result)
        what = "the smaller operand is repeated to the sizes of the result"
    else:
        return None
    if not all(can_lower(each, target) for each in make.nodes):
        make.discard()
        return None
    make.replace_node()
    return what, "exact"


def _common_leading_axes(left: list[int], right: list[int], result: list[int]) -> int | None:
    """Return how many of the first axes both operands have whole, where one has no others.

    None for other operands.
    """
    if result not in (left, right) or left == right:
        return None
    small = left if right == result else right
    rows = next((i for i in range(len(small), 0, -1) if small[i - 1] != 1), 0)
    return rows if rows and small[:rows] == result[:rows] else None


def _emit_per_channel_mul(make: RewriteBuilder, result: list[int], rows: int) -> None:
    channels, each = math.prod(result[:rows]), math.prod(result[rows:])
    operands = []
    for index, value in enumerate(make.node.inputs):
        assert value is not None
        count = math.prod(int(d or 1) for d in (ir.get_shape(value) or ())[1:])
        operands.append(make.reshape(value, [channels, count // channels, 1], f"image{index}"))
    batch: ir.Dim = (make.result.shape or ["N"])[0]
    make.reshape(make("Mul", operands, [batch, channels, each, 1], "by_channel"), result, "joined")


def _emit_expanded_operands(
    make: RewriteBuilder, sizes: list[list[int]], result: list[int]
) -> None:
    batch: ir.Dim = (make.result.shape or ["N"])[0]
    operands = []
    for index, (value, own) in enumerate(zip(make.node.inputs, sizes, strict=True)):
        assert value is not None
        if own != result:
            shape = make.constant(np.array([1, *result], np.int64), f"sizes{index}")
            value = make("Expand", [value, shape], [batch, *result], f"repeated{index}")
        operands.append(value)
    make(make.node.op_type, operands, [batch, *result], "equal")
