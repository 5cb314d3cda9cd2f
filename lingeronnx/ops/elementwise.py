"""Arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv.

On shifting platforms iqAdd requantizes each operand to the output's scale first (two roundings), then adds with
saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the product once. The training side
rounds each operand as well, but saturates the sum only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .. import formats
from ..emit import Lowering
from ..formats.pairs import PairFormat
from ..graph import ir
from ..graph.attributes import Attribute
from ..plan import Affine
from ..targets import Target
from ..targets.arithmetic import Operands, Sum
from ..targets.limits import OperandLimits
from ._base import Op
from .functions.masks import MASKED_AT_RUN_TIME, masked_at_run_time
from .layers.norm import scaled_channels
from .moves.concat import copied
from .scaling import Exponents, ScalePair, Scaling, own_scale, product

__all__ = ["Add", "BinaryOp", "Mul", "Sub"]


def equal_shapes(node: ir.Node, target: Target) -> object:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    limits, (left, right) = target.limits(formats.ADD.name, OperandLimits), (ir.shape(v) for v in node.inputs[:2])
    if limits is None or left is None or right is None or left[1:] == right[1:] and len(left) == len(right):
        return None
    return f"{_text(left)} and {_text(right)}"


def mul_shapes(node: ir.Node, target: Target) -> object:
    """the operands have the same shape, or one is [N, C, 1, 1] | expand the smaller one."""
    limits, (left, right) = target.limits(formats.MUL.name, OperandLimits), (ir.shape(v) for v in node.inputs[:2])
    if limits is None or left is None or right is None or len(left) == len(right) and left[1:] == right[1:]:
        return None
    channel = limits.per_channel and len(left) == len(right) == 4 and right[1] == left[1]
    if channel and (right[2:] == (1, 1) or (left[2:] == (1, 1) and node.op_type == "Mul")):
        return None
    return f"{_text(left)} and {_text(right)}"


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class BinaryOp(Op):
    """Two activations in, each with a scale of its own."""

    format: PairFormat
    scaling = Scaling(shared_scales=own_scale)

    def data(self, node: ir.Node) -> list[int]:
        """Return both operands."""
        return [0, 1]

    def reject(self, node: ir.Node) -> str | None:
        """A constant operand is not an activation."""
        if any(ir.const(v) is not None for v in node.inputs):
            return f"{node.op_type} with a constant that is not one number, or one for each place of a sample"
        return None

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the three scales."""
        inputs = [low.integer(node, 0), low.integer(node, 1)]
        low.emit(self.format, node, inputs, self.lowered_attributes(node, low))

    def lowered_attributes(self, node: ir.Node, low: Lowering) -> dict[str, Attribute]:
        """Return the attributes of the integer node."""
        return self.format.scales(low.read(node, 0), low.read(node, 1), low.written(node))


def _read_alone(node: ir.Node) -> list[str]:
    """Return the operands that only this node reads and that are no copies."""
    read = [v for v in node.inputs[:2] if v is not None]
    return [str(v.name) for v in read if ir.sole_consumer(v) is node and not copied(v)]


def _meets_finer(form: PairFormat, target: Target) -> bool:
    how = target.computes(form.name, Sum)
    return how is not None and how.operands is Operands.FINE


def _summands(form: PairFormat, node: ir.Node, target: Target) -> list[ScalePair]:
    """An operand that only this sum reads is written at its scale, but where the two meet finer: one rounding.

    A second rounding would also be biased: a shift by one rounds every odd integer up. Copies keep the scale of
    what they are copies of, which others may read.
    """
    if _meets_finer(form, target):
        return []
    return [ScalePair(name, ir.written_name(node)) for name in _read_alone(node)]


def _finer_summands(form: PairFormat, node: ir.Node, target: Target, scale: Callable[[str], float]) -> list[str]:
    """Return the operands that only this sum reads and that are held finer than it, without a use.

    Where the two meet finer, at powers of two, an operand one bit finer than the sum puts every other sum half way
    between two integers: rounded up, that is a quarter of a step too much on average, in every sum of a net. What
    is written at the sum's own scale is rounded once, without that bias. Not so where the other operand is finer,
    too, and stays so: then the sums lie between integers anyway.
    """
    if not _meets_finer(form, target):
        return []
    alone, most = _read_alone(node), scale(ir.written_name(node))
    finer = [name for name in dict.fromkeys(ir.read_name(node, i) for i in (0, 1)) if scale(name) > most]
    return finer if all(name in alone for name in finer) else []


def _coarser_operand(node: ir.Node, exponent: Exponents) -> int:
    """Both operands are shifted right: q_o <= q_x, q_y."""
    return min(exponent(ir.read_name(node, i)) for i in (0, 1))


def _sum_scaling(form: PairFormat) -> Scaling:
    return Scaling(
        shared_scales=partial(_summands, form),
        coarser_inputs=partial(_finer_summands, form),
        max_exponent=_coarser_operand,
    )


class Add(BinaryOp):
    """Sum of two activations."""

    format = formats.ADD
    scaling = _sum_scaling(formats.ADD)
    floats: tuple[tuple[str, str], ...] = (("", "Add"),)
    constraints = (equal_shapes,)

    def reject(self, node: ir.Node) -> str | None:
        """As the others; a mask's numbers are beyond any range."""
        return MASKED_AT_RUN_TIME if masked_at_run_time(node.outputs[0]) else super().reject(node)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit; where the executor may forget to shift the second operand, the one to be shifted comes first."""
        attrs, inputs = self.lowered_attributes(node, low), [low.integer(node, 0), low.integer(node, 1)]
        limits = low.target.limits(formats.ADD.name, OperandLimits)
        if limits is not None and not limits.either and attrs["scale_x"] == attrs["scale_o"] != attrs["scale_y"]:
            attrs["scale_x"], attrs["scale_y"] = attrs["scale_y"], attrs["scale_x"]
            inputs.reverse()
        low.emit(formats.ADD, node, inputs, attrs)


class Sub(Add):
    """Difference of two activations.

    The chips' iqSub is right only with all tensors in external memory, where pooling is not. So on images the sum with
    the negated operand takes its place there.
    """

    format = formats.SUB
    scaling = _sum_scaling(formats.SUB)
    floats = (("", "Sub"),)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit iqSub, or a BatchNorm2dInt by -1 and an iqAdd."""
        shape = ir.known_shape(node.inputs[1])
        limits = low.target.limits(formats.SUB.name, OperandLimits)
        if limits is None or limits.images or len(shape) != 4:
            BinaryOp.lower(self, node, low)
            return
        negated = scaled_channels(
            low,
            node,
            "negated",
            low.integer(node, 1),
            x=low.read(node, 1),
            o=low.read(node, 1),
            w=Affine(1.0),
            factors=-1.0,
        )
        low.emit(formats.ADD, node, [low.integer(node, 0), negated], self.lowered_attributes(node, low))


class Mul(BinaryOp):
    """Product of two activations."""

    format = formats.MUL
    floats = (("", "Mul"),)
    constraints = (mul_shapes,)
    scaling = Scaling(factor="fixed", shared_scales=own_scale, max_exponent=product)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit; the operand with one number per channel is the second, as the executors take it."""
        attrs, inputs = self.lowered_attributes(node, low), [low.integer(node, 0), low.integer(node, 1)]
        left, right = (ir.known_shape(value) for value in node.inputs[:2])
        if left[2:] == (1, 1) != right[2:]:
            attrs = self.format.scales(low.read(node, 1), low.read(node, 0), low.written(node))
            inputs.reverse()
        low.emit(self.format, node, inputs, attrs)
