"""Matrix products: LinearInt by a constant weight, BmmInt of two activations.

LinearInt is ``y = sat(rescale(x W^T + b))``, weight [O, I]; BmmInt is ``y = sat(rescale(x @ y))``
over the last two axes. A limit returns None if kept, else the offending value.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir import ir
from ...ir.attributes import AttributeValue
from ...ir.plan import PerGroup
from ...targets import Target
from ...targets.limits import MatrixLimits
from .. import integer_ops
from .._binary_lowering import BinaryOp
from .._lowering import Scaling, Violation, WeightLayer, product_max_exponent, share_no_scales
from .._weighted_op import accumulator_scale
from ..lowering_context import LoweringContext

__all__ = ["LINEAR", "Bmm", "Linear"]


class Linear(WeightLayer):
    """Fully connected layer with a constant weight."""

    integer_op = integer_ops.LINEAR
    floats = ((ir.FUNCTION_DOMAIN, "Linear"),)
    allows_wide_output = True

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return the limits of `target` that an integer `node` violates.

        None for a float (function) node. A float layer may have any rank, since it is reshaped when
        it is lowered.
        """
        return [] if node.domain == ir.FUNCTION_DOMAIN else super().find_violations(node, target)

    def macs(self, node: ir.Node) -> int:
        """Return the output elements of a sample times the inputs (times 1 for a diagonal weight).

        Unknown dimensions count as 1.
        """
        output, weight = ir.get_shape(node.outputs[0]) or (), ir.get_shape(node.inputs[1]) or ()
        inner = 1 if _is_diagonal(node) else int(weight[1] or 1)
        return math.prod(int(dim or 1) for dim in output[1:]) * inner

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit LinearInt into `context`, without an output scale if the output is to be float.

        A bias of zeros is omitted. The uint8 factors of a weight with scales per group are the last
        input. If the output has more axes than the target's limit, all between batch and last are
        merged by Reshapes around it.
        """
        bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
        o = None if context.has_float_output(node) else context.output_qparams(node)
        attrs = integer_ops.LINEAR.make_qparams_attributes(
            context.input_qparams(node, 0), context.input_qparams(node, 1), o
        )
        inputs: list[ir.Value | None] = [
            context.get_integer_input(node, 0),
            context.weight(node, 1),
        ]
        if bias is not None and np.any(bias):
            inputs += context.bias(node, 2, accumulator_scale(attrs))
        weight_qparams = context.input_qparams(node, 1)
        if isinstance(weight_qparams.granularity, PerGroup):
            if len(inputs) == 2:
                inputs.append(None)  # no bias
            factors = weight_qparams.factors[1].astype(np.uint8)
            inputs.append(context.array(f"{ir.input_name(node, 1)}_factors", factors))
        shape = [int(dim or 1) for dim in ir.require_shape(node.outputs[0])]
        limits = context.target.linear_limits
        if limits is None or len(shape) <= limits.rank:
            context.emit(integer_ops.LINEAR, node, inputs, attrs)
            return
        self._emit_rows(node, context, inputs, attrs, shape)

    @staticmethod
    def _emit_rows(
        node: ir.Node,
        context: LoweringContext,
        inputs: list[ir.Value | None],
        attrs: dict[str, AttributeValue],
        shape: list[int],
    ) -> None:
        """Emit LinearInt on [1, rows, inputs] between two Reshapes, into `context`.

        `inputs` are value, weight and bias of the LinearInt, `attrs` its attributes, and `shape` is
        the output shape of `node`, whose axes between the first and the last are merged.
        """
        rows, base = [1, math.prod(shape[1:-1])], ir.output_name(node)
        flat_shape = [*rows, int(ir.require_shape(node.inputs[0])[-1] or 1)]
        target = context.array(f"{base}_flat_shape", np.array(flat_shape, np.int64))
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        flat = context.emit_intermediate(
            integer_ops.RESHAPE, node, "flat", [inputs[0], target], {}, flat_shape, x
        )
        value = context.emit_intermediate(
            integer_ops.LINEAR, node, "rows", [flat, *inputs[1:]], attrs, [*rows, shape[-1]], o
        )
        target = context.array(f"{base}_shape", np.array([1, *shape[1:]], np.int64))
        context.emit(integer_ops.RESHAPE, node, [value, target], {})


def _is_diagonal(node: ir.Node) -> bool:
    """Whether the weight of `node` is a constant square diagonal matrix of at least 2 rows.

    It then has one factor per element.
    """
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim != 2 or not 1 < len(weight) == weight.shape[1]:
        return False
    return bool(np.count_nonzero(weight) == np.count_nonzero(np.diagonal(weight)))


LINEAR = Linear()


def check_matrix_rank(node: ir.Node, target: Target) -> str | None:
    """both factors have three axes, or four with equal heads | put the heads of an attention into
    the batch.
    """
    limits = target.get_limits(integer_ops.BMM.name, MatrixLimits)
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

    integer_op = integer_ops.BMM
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
                    integer_ops.RESHAPE,
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
            integer_ops.BMM,
            node,
            "heads",
            factors,
            self.make_integer_attributes(node, context),
            full[1:],
            context.output_qparams(node),
        )
        back = context.array(f"{base}_shape", np.array(full, np.int64))
        context.emit(integer_ops.RESHAPE, node, [value, back], {})
