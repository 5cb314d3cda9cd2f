"""Fully connected layer: LinearInt, ``y = sat(rescale(x W^T + b))`` over the last axis, weight [O,
I].
"""

from __future__ import annotations

import math

import numpy as np

from ... import formats
from ...formats.layers import accumulator_scale
from ...graph import ir
from ...lowering import LoweringContext
from ...plan import PerGroup
from ...targets import Target
from .._base import Violation
from .conv import WeightLayer

__all__ = ["LINEAR", "Linear"]


class Linear(WeightLayer):
    """Linear layer with constant weight."""

    integer_op = formats.LINEAR
    floats = ((ir.FUNCTION_DOMAIN, "Linear"),)
    allows_wide_output = True

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Those of the integer operator; a float one may have any rank."""
        return [] if node.domain == ir.FUNCTION_DOMAIN else super().find_violations(node, target)

    def macs(self, node: ir.Node) -> int:
        """Return the rows times the size of the weight; of a diagonal one, a factor for each
        number, its diagonal's.
        """
        result, weight = ir.get_shape(node.outputs[0]) or (), ir.get_shape(node.inputs[1]) or ()
        return math.prod(int(d or 1) for d in result[1:]) * (
            1 if _is_diagonal(node) else int(weight[1] or 1)
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """As every weight layer; a bias of zeros only is left out. Without scale_o where the output
        is float.

        Where the weight has a scale for each group, the groups' factors are the last input.

        Chips read two or three axes: of more, all before the last become one.
        """
        bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
        o = None if context.has_float_output(node) else context.output_qparams(node)
        attrs = formats.LINEAR.scales(
            context.input_qparams(node, 0), context.input_qparams(node, 1), o
        )
        inputs: list[ir.Value | None] = [
            context.get_integer_input(node, 0),
            context.weight(node, 1),
        ]
        if bias is not None and np.any(bias):
            inputs += context.bias(node, 2, accumulator_scale(attrs))
        held = context.input_qparams(node, 1)
        if isinstance(held.granularity, PerGroup):
            absent = [] if len(inputs) > 2 else [None]
            inputs += [
                *absent,
                context.array(
                    f"{ir.input_name(node, 1)}_factors", held.factors[1].astype(np.uint8)
                ),
            ]
        full = [int(d or 1) for d in ir.require_shape(node.outputs[0])]
        if context.target.linear_limits is None or len(full) <= context.target.linear_limits.rank:
            context.emit(formats.LINEAR, node, inputs, attrs)
            return
        rows, base = [1, math.prod(full[1:-1])], ir.output_name(node)
        sizes = [*rows, int(ir.require_shape(node.inputs[0])[-1] or 1)]
        target = context.array(f"{base}_flat_shape", np.array(sizes, np.int64))
        inputs[0] = context.emit_intermediate(
            formats.RESHAPE,
            node,
            "flat",
            [inputs[0], target],
            {},
            sizes,
            context.input_qparams(node, 0),
        )
        value = context.emit_intermediate(
            formats.LINEAR,
            node,
            "rows",
            inputs,
            attrs,
            [*rows, full[-1]],
            context.output_qparams(node),
        )
        back = context.array(f"{base}_shape", np.array([1, *full[1:]], np.int64))
        context.emit(formats.RESHAPE, node, [value, back], {})


def _is_diagonal(node: ir.Node) -> bool:
    """Whether all that is not on the weight's diagonal is 0: factors that are written as a
    product.
    """
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim != 2 or not 1 < len(weight) == weight.shape[1]:
        return False
    return np.count_nonzero(weight) == np.count_nonzero(np.diagonal(weight))


LINEAR = Linear()
