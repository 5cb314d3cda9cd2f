"""Arithmetic on two activations: iqAdd and iqMul.

On shifting platforms iqAdd requantizes each operand to the output's scale first (two roundings), then adds with
saturation; `generic` adds in a common accumulator and rounds once. iqMul rounds the product once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import ir
from ..platforms import Platform
from ._base import Attr, Bound, Op, Tie

if TYPE_CHECKING:
    from ..lower import Lowering

__all__ = ["Add", "Mul"]

_SCALES = (Attr("scale_x", "f"), Attr("scale_y", "f"), Attr("scale_o", "f"), Attr("o_bits", "i", 8))


def equal_shapes(node: ir.Node, row: Platform) -> Any:
    """both operands have the same shape | expand the smaller one, or fold it into a layer."""
    left, right = (ir.shape(v) for v in node.inputs[:2])
    if not row.chip or left is None or right is None or left[1:] == right[1:] and len(left) == len(right):
        return None
    return f"{_text(left)} and {_text(right)}"


def mul_shapes(node: ir.Node, row: Platform) -> Any:
    """the operands have the same shape, or the second is [N, C, 1, 1] | expand the smaller one."""
    left, right = (ir.shape(v) for v in node.inputs[:2])
    if not row.chip or left is None or right is None or len(left) == len(right) and left[1:] == right[1:]:
        return None
    channel = len(left) == len(right) == 4 and right[1] == left[1] and right[2:] == (1, 1)
    return None if channel else f"{_text(left)} and {_text(right)}"


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class _Binary(Op):
    attributes = _SCALES

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
        x, y, o = low.read(node, 0), low.read(node, 1), low.written(node)
        attrs = {"scale_x": x.scale, "scale_y": y.scale, "scale_o": o.scale}
        low.emit(self, node, [low.integer(node, 0), low.integer(node, 1)], attrs)

    def read_scales(self, attrs: Any) -> dict[int, float]:
        """Both operands."""
        return {0: float(attrs["scale_x"]), 1: float(attrs["scale_y"])}


class Add(_Binary):
    """Sum of two activations."""

    name = "iqAdd"
    floats = (("", "Add"),)
    aliases = ("QAdd",)
    constraints = (equal_shapes,)

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """On shifting platforms an operand that only this sum reads is written at its scale: one rounding, not two.

        A second rounding would also be biased: a shift by one rounds every odd integer up.
        """
        if row.ops.get(self.name) == "generic":
            return []
        names = [str(v.name) for v in node.inputs[:2] if v is not None and ir.sole_consumer(v) is node]
        return [Tie(name, ir.written_name(node)) for name in names]

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """Both operands are shifted right: q_o <= q_x, q_y."""
        return min(exponent(ir.read_name(node, i)) for i in (0, 1))

    def bind(self, bound: Bound) -> Any:
        """Return the adder of the platform."""
        from simulator.kernels import AddScaled, AddShift

        rx, ry = bound.ratio(bound.attrs["scale_x"]), bound.ratio(bound.attrs["scale_y"])
        if bound.algorithm == "generic":
            return AddScaled.from_ratios(rx, ry, int(bound.attrs["o_bits"]))
        shifts = [bound.rescale(r).pow2_shift for r in (rx, ry)]
        return AddShift(*shifts)


class Mul(_Binary):
    """Product of two activations."""

    name = "iqMul"
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
