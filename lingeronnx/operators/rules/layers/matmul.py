"""Product of two activations: BmmInt; a limit returns None if kept, else the offending value.

``y = sat(rescale(x @ y))`` over the last two axes.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....targets import Target
from ....targets.limits import MatrixLimits
from ... import formats
from ...lowering import LoweringContext
from ..elementwise import BinaryOp
from ..scale_constraints import Scaling, product_max_exponent, share_no_scales

__all__ = ["Bmm"]


def check_matrix_rank(node: ir.Node, target: Target) -> str | None:
    """both factors have three axes, or four with equal heads | put the heads of an attention into
    the batch.
    """
    limits = target.get_limits(formats.BMM.name, MatrixLimits)
    if limits is None:
        return None
    left, right = (ir.get_shape(value) or () for value in node.inputs[:2])
    if len(left) == len(right) == limits.rank:
        return None
    if len(left) == len(right) == 4 and left[1] == right[1]:
        return None
    return f"{len(left)} and {len(right)} axes"


class Bmm(BinaryOp):
    """Matrix product of two activations, sample by sample."""

    integer_op = formats.BMM
    floats = (("", "MatMul"),)
    constraints = (check_matrix_rank,)
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=product_max_exponent,
    )

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the product `node` of activations has no integer form, or None if it has one.

        Reasons: an operand of unknown rank or fewer than 3 axes, different ranks, a constant
        operand.
        """
        shapes = [ir.get_shape(value) for value in node.inputs[:2]]
        if any(s is None or len(s) < 3 for s in shapes) or len(set(map(len, shapes))) > 1:  # type: ignore[arg-type]
            return "its factors do not both have a batch axis"
        return super().explain_rejection(node)

    def macs(self, node: ir.Node) -> int:
        """Return the output elements of a sample times the inner dimension (last axis of input 0).

        Unknown dimensions count as 1.
        """
        result, left = ir.get_shape(node.outputs[0]) or (), ir.get_shape(node.inputs[0]) or (1,)
        return math.prod(int(d or 1) for d in result[1:]) * int(left[-1] or 1)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit BmmInt into `context`; on chips with matrix limits, four axes are computed as three.

        The heads (axis 1) then take the place of the batch, by a Reshape of each operand and one of
        the result. Other targets, and outputs of other ranks, get one BmmInt.
        """
        shapes = [ir.require_shape(value) for value in (*node.inputs[:2], node.outputs[0])]
        if context.target.get_limits(self.name, MatrixLimits) is None or len(shapes[2]) != 4:
            super().lower(node, context)
            return
        base, factors = ir.output_name(node), []
        for index, side in ((0, "left"), (1, "right")):
            sizes = [int(d or 1) for d in shapes[index][1:]]
            target = context.array(f"{base}_{side}_shape", np.array(sizes, np.int64))
            factors.append(
                context.emit_intermediate(
                    formats.RESHAPE,
                    node,
                    side,
                    [context.get_integer_input(node, index), target],
                    {},
                    sizes,
                    context.input_qparams(node, index),
                )
            )
        full = [1, *(int(d or 1) for d in shapes[2][1:])]
        value = context.emit_intermediate(
            formats.BMM,
            node,
            "heads",
            factors,
            self.make_integer_attributes(node, context),
            full[1:],
            context.output_qparams(node),
        )
        back = context.array(f"{base}_shape", np.array(full, np.int64))
        context.emit(formats.RESHAPE, node, [value, back], {})
