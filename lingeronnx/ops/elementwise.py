"""Arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv.

On shifting platforms iqAdd requantizes each operand to the output's scale first (two roundings),
then adds with saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the
product once. The training side rounds each operand as well, but saturates the sum only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .. import formats
from ..formats.binary import BinaryIntegerOp
from ..graph import ir
from ..graph.attributes import AttributeValue
from ..lowering import LoweringContext
from ..plan import Affine
from ..targets import Target
from ..targets.arithmetic import AddArithmetic, AddOperandPrecision
from ..targets.limits import BinaryOperandLimits
from ._base import Op
from .data_movement.concat import is_repeated_tensor
from .functions.attention_masks import RUN_TIME_MASK_REASON, is_masked_at_run_time
from .layers.batch_norm import emit_channel_affine
from .scale_constraints import (
    ExponentLookup,
    ScalePair,
    Scaling,
    product_max_exponent,
    share_no_scales,
)

__all__ = ["Add", "BinaryOp", "Mul", "Sub"]


def check_equal_shapes(node: ir.Node, target: Target) -> object:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    limits, (left, right) = (
        target.get_limits(formats.ADD.name, BinaryOperandLimits),
        (ir.get_shape(v) for v in node.inputs[:2]),
    )
    if (
        limits is None
        or left is None
        or right is None
        or left[1:] == right[1:]
        and len(left) == len(right)
    ):
        return None
    return f"{_format_shape(left)} and {_format_shape(right)}"


def check_mul_shapes(node: ir.Node, target: Target) -> object:
    """the operands have the same shape, or one is [N, C, 1, 1] | expand the smaller one."""
    limits, (left, right) = (
        target.get_limits(formats.MUL.name, BinaryOperandLimits),
        (ir.get_shape(v) for v in node.inputs[:2]),
    )
    if (
        limits is None
        or left is None
        or right is None
        or len(left) == len(right)
        and left[1:] == right[1:]
    ):
        return None
    channel = limits.supports_per_channel and len(left) == len(right) == 4 and right[1] == left[1]
    if channel and (right[2:] == (1, 1) or (left[2:] == (1, 1) and node.op_type == "Mul")):
        return None
    return f"{_format_shape(left)} and {_format_shape(right)}"


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class BinaryOp(Op):
    """Two activations in, each with a scale of its own."""

    integer_op: BinaryIntegerOp
    scale_constraints = Scaling(shared_scales=share_no_scales)

    def data(self, node: ir.Node) -> list[int]:
        """Return both operands."""
        return [0, 1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """A constant operand is not an activation."""
        if any(ir.const_value(v) is not None for v in node.inputs):
            return (
                f"{node.op_type} with a constant that is not one number, or one for each place "
                "of a sample"
            )
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the three scales."""
        inputs = [context.get_integer_input(node, 0), context.get_integer_input(node, 1)]
        context.emit(self.integer_op, node, inputs, self.make_integer_attributes(node, context))

    def make_integer_attributes(
        self, node: ir.Node, low: LoweringContext
    ) -> dict[str, AttributeValue]:
        """Return the attributes of the integer node."""
        return self.integer_op.scales(
            low.input_qparams(node, 0), low.input_qparams(node, 1), low.output_qparams(node)
        )


def _exclusive_operands(node: ir.Node) -> list[str]:
    """Return the operands that only this node reads and that are no copies."""
    read = [v for v in node.inputs[:2] if v is not None]
    return [str(v.name) for v in read if ir.sole_consumer(v) is node and not is_repeated_tensor(v)]


def _adds_at_finer_scale(form: BinaryIntegerOp, target: Target) -> bool:
    how = target.get_arithmetic(form.name, AddArithmetic)
    return how is not None and how.operands is AddOperandPrecision.FINE


def _shared_summand_scales(form: BinaryIntegerOp, node: ir.Node, target: Target) -> list[ScalePair]:
    """An operand that only this sum reads is written at its scale, but where the two meet finer:
    one rounding.

    A second rounding would also be biased: a shift by one rounds every odd integer up. Copies keep
    the scale of what they are copies of, which others may read.
    """
    if _adds_at_finer_scale(form, target):
        return []
    return [ScalePair(name, ir.output_name(node)) for name in _exclusive_operands(node)]


def _find_finer_summands(
    form: BinaryIntegerOp, node: ir.Node, target: Target, scale: Callable[[str], float]
) -> list[str]:
    """Return the operands that only this sum reads and that are held finer than it, without a use.

    Where the two meet finer, at powers of two, an operand one bit finer than the sum puts every
    other sum half way between two integers: rounded up, that is a quarter of a step too much on
    average, in every sum of a net. What is written at the sum's own scale is rounded once, without
    that bias. Not so where the other operand is finer, too, and stays so: then the sums lie between
    integers anyway.
    """
    if not _adds_at_finer_scale(form, target):
        return []
    alone, most = _exclusive_operands(node), scale(ir.output_name(node))
    finer = [
        name for name in dict.fromkeys(ir.input_name(node, i) for i in (0, 1)) if scale(name) > most
    ]
    return finer if all(name in alone for name in finer) else []


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Both operands are shifted right: q_o <= q_x, q_y."""
    return min(exponent(ir.input_name(node, i)) for i in (0, 1))


def _make_sum_scale_constraints(form: BinaryIntegerOp) -> Scaling:
    return Scaling(
        shared_scales=partial(_shared_summand_scales, form),
        inputs_to_coarsen=partial(_find_finer_summands, form),
        max_output_exponent=_sum_max_exponent,
    )


class Add(BinaryOp):
    """Sum of two activations."""

    integer_op = formats.ADD
    scale_constraints = _make_sum_scale_constraints(formats.ADD)
    floats: tuple[tuple[str, str], ...] = (("", "Add"),)
    constraints = (check_equal_shapes,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """As the others; a mask's numbers are beyond any range."""
        return (
            RUN_TIME_MASK_REASON
            if is_masked_at_run_time(node.outputs[0])
            else super().explain_rejection(node)
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit; where the executor may forget to shift the second operand, the one to be shifted
        comes first.
        """
        attrs, inputs = (
            self.make_integer_attributes(node, context),
            [context.get_integer_input(node, 0), context.get_integer_input(node, 1)],
        )
        limits = context.target.get_limits(formats.ADD.name, BinaryOperandLimits)
        if (
            limits is not None
            and not limits.can_shift_either
            and attrs["scale_x"] == attrs["scale_o"] != attrs["scale_y"]
        ):
            attrs["scale_x"], attrs["scale_y"] = attrs["scale_y"], attrs["scale_x"]
            inputs.reverse()
        context.emit(formats.ADD, node, inputs, attrs)


class Sub(Add):
    """Difference of two activations.

    The chips' iqSub is right only with all tensors in external memory, where pooling is not. So on
    images the sum with the negated operand takes its place there.
    """

    integer_op = formats.SUB
    scale_constraints = _make_sum_scale_constraints(formats.SUB)
    floats = (("", "Sub"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqSub, or a BatchNorm2dInt by -1 and an iqAdd."""
        shape = ir.require_shape(node.inputs[1])
        limits = context.target.get_limits(formats.SUB.name, BinaryOperandLimits)
        if limits is None or limits.supports_images or len(shape) != 4:
            BinaryOp.lower(self, node, context)
            return
        negated = emit_channel_affine(
            context,
            node,
            "negated",
            context.get_integer_input(node, 1),
            input_qparams=context.input_qparams(node, 1),
            output_qparams=context.input_qparams(node, 1),
            weight_qparams=Affine(1.0),
            factors=-1.0,
        )
        context.emit(
            formats.ADD,
            node,
            [context.get_integer_input(node, 0), negated],
            self.make_integer_attributes(node, context),
        )


class Mul(BinaryOp):
    """Product of two activations."""

    integer_op = formats.MUL
    floats = (("", "Mul"),)
    constraints = (check_mul_shapes,)
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=product_max_exponent,
    )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit; the operand with one number per channel is the second, as the executors take it."""
        attrs, inputs = (
            self.make_integer_attributes(node, context),
            [context.get_integer_input(node, 0), context.get_integer_input(node, 1)],
        )
        left, right = (ir.require_shape(value) for value in node.inputs[:2])
        if left[2:] == (1, 1) != right[2:]:
            attrs = self.integer_op.scales(
                context.input_qparams(node, 1),
                context.input_qparams(node, 0),
                context.output_qparams(node),
            )
            inputs.reverse()
        context.emit(self.integer_op, node, inputs, attrs)
