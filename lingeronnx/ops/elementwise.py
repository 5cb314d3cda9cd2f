"""Arithmetic on two activations: iqAdd, iqSub, iqMul, iqDiv.

On shifting platforms iqAdd requantizes each operand to the output's scale first (two roundings), then adds with
saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the product once. The training side
rounds each operand as well, but saturates the sum only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..emit import Lowering
from ..graph import ir
from ..plan import QParams
from ..platforms import Platform
from ..platforms.arithmetic import Division, Operands, Product, Quotient, Sum
from ..platforms.faults import Fault
from ..platforms.limits import OperandLimits
from ._base import Attr, Bound, Op, Tie
from .masks import MASKED_AT_RUN_TIME, masked_at_run_time
from .norm import scaled_channels

__all__ = ["ADD", "Add", "Binary", "Div", "Mul", "Sub"]

#: Bits in which no operand of a sum is cut.
_WIDE = 60

_SCALES = (Attr("scale_x", "f"), Attr("scale_y", "f"), Attr("scale_o", "f"), Attr("o_bits", "i", 8))


def equal_shapes(node: ir.Node, row: Platform) -> Any:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    limits, (left, right) = row.limits("iqAdd", OperandLimits), (ir.shape(v) for v in node.inputs[:2])
    if limits is None or left is None or right is None or left[1:] == right[1:] and len(left) == len(right):
        return None
    return f"{_text(left)} and {_text(right)}"


def mul_shapes(node: ir.Node, row: Platform) -> Any:
    """the operands have the same shape, or the second is [N, C, 1, 1] | expand the smaller one."""
    limits, (left, right) = row.limits("iqMul", OperandLimits), (ir.shape(v) for v in node.inputs[:2])
    if limits is None or left is None or right is None or len(left) == len(right) and left[1:] == right[1:]:
        return None
    channel = limits.per_channel and len(left) == len(right) == 4 and right[1] == left[1] and right[2:] == (1, 1)
    return None if channel else f"{_text(left)} and {_text(right)}"


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class Binary(Op):
    """Two activations in, scales of both and of the output as attributes."""

    attributes: tuple[Attr, ...] = _SCALES

    def data(self, node: ir.Node) -> list[int]:
        """Both."""
        return [0, 1]

    def reject(self, node: ir.Node) -> str | None:
        """A constant operand is not an activation."""
        if any(ir.const(v) is not None for v in node.inputs):
            return "one operand is a constant that no layer could take up"
        return None

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None."""
        return []

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the three scales."""
        low.emit(self, node, [low.integer(node, 0), low.integer(node, 1)], self.lowered_attributes(node, low))

    def lowered_attributes(self, node: ir.Node, low: Lowering) -> dict[str, Any]:
        """Return the attributes of the integer node."""
        x, y, o = low.read(node, 0), low.read(node, 1), low.written(node)
        width = {} if o.bits == 8 else {"o_bits": o.bits}  # which the vendor's form does not have
        return {"scale_x": x.scale, "scale_y": y.scale, "scale_o": o.scale, **width}

    def read_scales(self, attrs: Any) -> dict[int, float]:
        """Both operands."""
        return {0: float(attrs["scale_x"]), 1: float(attrs["scale_y"])}


class Add(Binary):
    """Sum of two activations."""

    name = "iqAdd"
    kind = Sum
    floats: tuple[tuple[str, str], ...] = (("", "Add"),)
    aliases: tuple[str, ...] = ("QAdd",)
    constraints = (equal_shapes,)
    sign = 1

    def reject(self, node: ir.Node) -> str | None:
        """As the others; a mask's numbers are beyond any range."""
        return MASKED_AT_RUN_TIME if masked_at_run_time(node.outputs[0]) else super().reject(node)

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """An operand that only this sum reads is written at its scale, but where the two meet finer: one rounding.

        A second rounding would also be biased: a shift by one rounds every odd integer up.
        """
        how = row.computes(self.name, Sum)
        if how is not None and how.operands is Operands.FINE:
            return []
        names = [str(v.name) for v in node.inputs[:2] if v is not None and ir.sole_consumer(v) is node]
        return [Tie(name, ir.written_name(node)) for name in names]

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """Both operands are shifted right: q_o <= q_x, q_y."""
        return min(exponent(ir.read_name(node, i)) for i in (0, 1))

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit; where the executor may forget to shift the second operand, the one to be shifted comes first."""
        attrs, inputs = self.lowered_attributes(node, low), [low.integer(node, 0), low.integer(node, 1)]
        if Fault.ADD_EXTERNAL in low.row.faults and attrs["scale_x"] == attrs["scale_o"] != attrs["scale_y"]:
            attrs["scale_x"], attrs["scale_y"] = attrs["scale_y"], attrs["scale_x"]
            inputs.reverse()
        low.emit(self, node, inputs, attrs)

    def bind(self, bound: Bound) -> Any:
        """Return the adder of the platform."""
        from simulator.kernels import AddScaled, AddShift

        rx, ry = bound.ratio(bound.attrs["scale_x"]), bound.ratio(bound.attrs["scale_y"])
        bits = int(bound.attrs["o_bits"])
        operands = bound.how(Sum).operands
        if operands is Operands.FINE:
            return AddScaled.from_ratios(rx, ry, bits, self.sign)
        if operands is Operands.WIDE:
            from simulator.fixed import Rescale

            return AddScaled(bound.rescale(rx, _WIDE), bound.rescale(ry, _WIDE), Rescale.from_shift(0, bits), self.sign)
        shift_x, shift_y = (bound.rescale(r).pow2_shift for r in (rx, ry))
        return AddShift(shift_x, shift_y, sign=self.sign)


class Sub(Add):
    """Difference of two activations.

    The chips' iqSub is right only with all tensors in external memory, where pooling is not. So on images the sum with
    the negated operand takes its place there.
    """

    name = "iqSub"
    floats = (("", "Sub"),)
    aliases = ()
    sign = -1

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit iqSub, or a BatchNorm2dInt by -1 and an iqAdd."""
        shape = ir.shape(node.inputs[1]) or ()
        if Fault.SUB_PLACEMENT not in low.row.faults or len(shape) != 4:
            Binary.lower(self, node, low)
            return
        negated = scaled_channels(low, node, "negated", low.integer(node, 1), low.read(node, 1), low.read(node, 1),
                                  QParams(1.0), -1.0)  # fmt: skip
        low.emit(ADD, node, [low.integer(node, 0), negated], self.lowered_attributes(node, low))


ADD = Add()


class Mul(Binary):
    """Product of two activations."""

    name = "iqMul"
    kind = Product
    floats = (("", "Mul"),)
    aliases = ("QMul",)
    constraints = (mul_shapes,)
    factor = "fixed"

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """The product is shifted right: q_o <= q_x + q_y."""
        return exponent(ir.read_name(node, 0)) + exponent(ir.read_name(node, 1))

    def bind(self, bound: Bound) -> Any:
        """Return the multiplier."""
        from simulator.kernels import Mul as Kernel

        return Kernel(bound.rescale(bound.ratio(bound.attrs["scale_x"], bound.attrs["scale_y"])))


class Div(Binary):
    """Quotient of int32 activations, in vendors' graphs only: the NPU's reciprocal division."""

    name = "iqDiv"
    kind = Division
    aliases = ("QDiv",)
    factor = "fixed"

    def bind(self, bound: Bound) -> Any:
        """Return the division."""
        from simulator.kernels import Div as Kernel
        from simulator.kernels import DivSingle

        quotient = bound.how(Division).quotient
        if quotient is Quotient.SINGLE:
            x, y, o = (float(bound.attrs[key]) for key in ("scale_x", "scale_y", "scale_o"))
            return DivSingle(x, y, o, int(bound.attrs["o_bits"]), bound.rounding)
        if quotient is Quotient.UNSCALED:
            return Kernel(0, by_sign=True)
        x, y, o = (bound.exponent(key, float(bound.attrs[key])) for key in ("scale_x", "scale_y", "scale_o"))
        return Kernel(o + y - x)
