"""Arithmetic on two activations; a limit returns None if kept, else the offending value.

The operators are iqAdd, iqSub, iqMul and iqDiv.

On chips, iqAdd first requantizes each operand to the output's scale (two roundings) and then adds
with saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the product
once. The training side also rounds each operand, but saturates only the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....ir import ir
from ....ir.plan import Affine
from ....targets import Target
from ....targets.arithmetic import AddArithmetic, AddOperandPrecision
from ....targets.limits import BinaryOperandLimits
from ... import integer_ops
from ..._binary_lowering import BinaryOp
from ..._binary_op import BinaryIntegerOp
from ..._lowering import ExponentLookup, ScalePair, Scaling, product_max_exponent, share_no_scales
from ..._nchw import emit_channel_affine
from ...attention_masks import RUN_TIME_MASK_REASON, is_masked_at_run_time
from ...concat.lowering import is_repeated_tensor
from ...lowering_context import LoweringContext

__all__ = ["Add", "Mul", "Sub"]

_Shape = tuple[int | None, ...]


def check_equal_shapes(node: ir.Node, target: Target) -> str | None:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    if target.get_limits(integer_ops.ADD.name, BinaryOperandLimits) is None:
        return None
    left, right = (ir.get_shape(value) for value in node.inputs[:2])
    if left is None or right is None or _have_equal_samples(left, right):
        return None
    return f"{_format_shape(left)} and {_format_shape(right)}"


def check_mul_shapes(node: ir.Node, target: Target) -> str | None:
    """the operands have the same shape, or one is [N, C, 1, 1] | expand the smaller one."""
    limits = target.get_limits(integer_ops.MUL.name, BinaryOperandLimits)
    left, right = (ir.get_shape(value) for value in node.inputs[:2])
    if limits is None or left is None or right is None or _have_equal_samples(left, right):
        return None
    is_per_channel = len(left) == len(right) == 4 and right[1] == left[1]
    # A float Mul may have its operands in any order; `Mul.lower` swaps them.
    has_channel_operand = right[2:] == (1, 1) or (left[2:] == (1, 1) and node.op_type == "Mul")
    if limits.supports_per_channel and is_per_channel and has_channel_operand:
        return None
    return f"{_format_shape(left)} and {_format_shape(right)}"


def _have_equal_samples(left: _Shape, right: _Shape) -> bool:
    """Whether the shapes `left` and `right` have the same rank and equal axes after the batch."""
    return len(left) == len(right) and left[1:] == right[1:]


def _format_shape(shape: tuple[int | None, ...]) -> str:
    """Format `shape` as "[N,3,4]"; unknown sizes are N."""
    return "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


def _exclusive_operands(node: ir.Node) -> list[str]:
    """Return the names of those of the first two inputs of `node` that no other node reads.

    Tensors that are copies of another one, marked by a rewrite, are omitted. 0 to 2 names, in input
    order.
    """
    names = []
    for value in node.inputs[:2]:
        if value is not None and ir.sole_consumer(value) is node and not is_repeated_tensor(value):
            names.append(str(value.name))
    return names


def _adds_at_finer_scale(form: BinaryIntegerOp, target: Target) -> bool:
    """Whether `target` computes the sum `form` at the finer of both scales and rounds once."""
    arithmetic = target.get_arithmetic(form.name, AddArithmetic)
    return arithmetic is not None and arithmetic.operands is AddOperandPrecision.FINE


def _shared_summand_scales(form: BinaryIntegerOp, node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraints that operands which only the sum `node` reads share its scale.

    Such an operand is computed at the scale of the sum, which saves a rounding. That second
    rounding is biased: a shift by one rounds every odd integer up. Copies keep the scale of their
    source, which may have other consumers. There is no constraint if `target` adds at the finer
    scale.
    """
    if _adds_at_finer_scale(form, target):
        return []
    return [ScalePair(name, ir.output_name(node)) for name in _exclusive_operands(node)]


def _find_finer_summands(
    form: BinaryIntegerOp, node: ir.Node, target: Target, scale: Callable[[str], float]
) -> list[str]:
    """Return the operands of a sum whose scale is finer than the sum's and should be made equal.

    `scale` gives the scale of a tensor by name. At power-of-two scales, an operand one bit finer
    than the sum puts every other sum half way between two integers. Rounding half up then adds a
    quarter of a step on average, in every sum of a network. Empty if a finer operand has other
    consumers (the sums are between integers anyway), and on targets that do not add at the finer
    scale.
    """
    if not _adds_at_finer_scale(form, target):
        return []
    exclusive = _exclusive_operands(node)
    output_scale = scale(ir.output_name(node))
    operands = dict.fromkeys(ir.input_name(node, i) for i in (0, 1))
    finer = [name for name in operands if scale(name) > output_scale]
    return finer if all(name in exclusive for name in finer) else []


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of a sum: the smaller one of its operands.

    Both operands are only shifted right.
    """
    return min(exponent(ir.input_name(node, i)) for i in (0, 1))


def _make_sum_scale_constraints(form: BinaryIntegerOp) -> Scaling:
    """Return the scale constraints of an addition or subtraction that is lowered to `form`.

    Its summands may have to share a scale or take a coarser one, and its output exponent is
    bounded.
    """
    return Scaling(
        shared_scales=partial(_shared_summand_scales, form),
        inputs_to_coarsen=partial(_find_finer_summands, form),
        max_output_exponent=_sum_max_exponent,
    )


class Add(BinaryOp):
    """Sum of two activations."""

    integer_op = integer_ops.ADD
    passes_channel_factors = True
    scale_constraints = _make_sum_scale_constraints(integer_ops.ADD)
    floats: tuple[tuple[str, str], ...] = (("", "Add"),)
    constraints = (check_equal_shapes,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the sum has no integer form, or None if it has one.

        Reasons: a mask computed at run time, whose range is too large, and a constant operand.
        """
        if is_masked_at_run_time(node.outputs[0]):
            return RUN_TIME_MASK_REASON
        return super().explain_rejection(node)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqAdd into `context`, the operand to be shifted first if only that can be shifted.

        The operands are exchanged (with their scales) if the first has the output's scale and the
        second has not.
        """
        attrs = self.make_integer_attributes(node, context)
        inputs = [context.get_integer_input(node, 0), context.get_integer_input(node, 1)]
        limits = context.target.get_limits(integer_ops.ADD.name, BinaryOperandLimits)
        if (
            limits is not None
            and not limits.can_shift_either
            and attrs["scale_x"] == attrs["scale_o"] != attrs["scale_y"]
        ):
            attrs["scale_x"], attrs["scale_y"] = attrs["scale_y"], attrs["scale_x"]
            inputs.reverse()
        context.emit(integer_ops.ADD, node, inputs, attrs)


class Sub(Add):
    """Difference of two activations.

    iqSub of the chips is correct only if all tensors are in external memory, where pooling is
    wrong. On images, the sum with the negated operand replaces it.
    """

    integer_op = integer_ops.SUB
    passes_channel_factors = False
    scale_constraints = _make_sum_scale_constraints(integer_ops.SUB)
    floats = (("", "Sub"),)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqSub into `context`.

        On images that it does not support, BatchNorm2dInt by -1 and iqAdd. An image has rank 4. The
        BatchNorm2dInt negates the second operand in its own format.
        """
        shape = ir.require_shape(node.inputs[1])
        limits = context.target.get_limits(integer_ops.SUB.name, BinaryOperandLimits)
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
            integer_ops.ADD,
            node,
            [context.get_integer_input(node, 0), negated],
            self.make_integer_attributes(node, context),
        )


class Mul(BinaryOp):
    """Product of two activations."""

    integer_op = integer_ops.MUL
    floats = (("", "Mul"),)
    constraints = (check_mul_shapes,)
    scale_constraints = Scaling(
        factor_behavior="multiplied",
        shared_scales=share_no_scales,
        max_output_exponent=product_max_exponent,
    )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqMul into `context`.

        Operands and scales are swapped if only the first is [N, C, 1, 1]. Executors expect the
        per-channel operand second.
        """
        attrs = self.make_integer_attributes(node, context)
        inputs = [context.get_integer_input(node, 0), context.get_integer_input(node, 1)]
        left, right = (ir.require_shape(value) for value in node.inputs[:2])
        if left[2:] == (1, 1) != right[2:]:
            attrs = self.integer_op.make_qparams_attributes(
                context.input_qparams(node, 1),
                context.input_qparams(node, 0),
                context.output_qparams(node),
            )
            inputs.reverse()
        context.emit(self.integer_op, node, inputs, attrs)
