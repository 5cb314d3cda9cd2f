"""Concatenation: iqCat, each input requantized to the output's scale."""

from __future__ import annotations

from typing import Any

from ..emit import Lowering
from ..graph import ir
from ..platforms import Platform
from ..platforms.arithmetic import Concat as Arithmetic
from ._base import ALL_OUT, Attr, Bound, Op, Tie

__all__ = ["Concat", "mark_parts"]

_PARTS = "lingeronnx.parts"


def mark_parts(node: ir.Node) -> None:
    """Note that the inputs of the Concat `node` are parts of one tensor: they share its scale."""
    node.metadata_props[_PARTS] = "1"


class Concat(Op):
    """Concatenation along an axis other than the batch."""

    name = "iqCat"
    kind = Arithmetic
    floats = (("", "Concat"),)
    aliases = ("QCat",)
    attributes = (Attr("dim", "i", None), Attr("axis", "i", None), Attr("scale_o", "f"), Attr("o_bits", "i", 8))

    def data(self, node: ir.Node) -> list[int]:
        """All inputs."""
        return list(range(len(node.inputs)))

    def reject(self, node: ir.Node) -> str | None:
        """Not along the batch axis, not with constants."""
        if any(ir.const(v) is not None for v in node.inputs):
            return "one input is a constant"
        rank = len(ir.shape(node.outputs[0]) or ())
        return "it concatenates along the batch axis" if rank and ir.attr(node, "axis") % rank == 0 else None

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None where every input is requantized; on chips that cannot shift right here, what nobody else reads.

        Nor do the parts of one tensor have scales of their own.
        """
        how = row.computes(self.name, Arithmetic)
        if (how is None or not how.raises_only) and _PARTS not in node.metadata_props:
            return []
        names = [str(v.name) for v in node.inputs if v is not None and ir.sole_consumer(v) is node]
        return [Tie(name, ir.written_name(node)) for name in names]

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with one scale per input; a Requant does what the chip cannot."""
        rank, o = len(ir.shape(node.outputs[0]) or ()), low.written(node)
        how = low.row.computes(self.name, Arithmetic)
        attrs: dict[str, Any] = {"dim": ir.attr(node, "axis") % rank if rank else ir.attr(node, "axis")}
        inputs = []
        for index in range(len(node.inputs)):
            x = low.read(node, index)
            if how is not None and how.raises_only and x.scale > o.scale:
                x = o
            attrs[f"scale_x_{index}"] = x.scale
            inputs.append(low.integer_as(node, index, x))
        if o.bits != 8:  # which the vendor's form does not have
            attrs["o_bits"] = o.bits
        low.emit(self, node, inputs, {**attrs, "scale_o": o.scale})

    def read_scales(self, attrs: Any) -> dict[int, float]:
        """One per input."""
        return {int(k[8:]): float(v) for k, v in attrs.items() if k.startswith("scale_x_")}

    def bind(self, bound: Bound) -> Any:
        """Return the concatenation kernel; inputs below the output's scale are shifted left.

        Where it only raises scales, an input above the output's scale becomes 0.
        """
        from simulator.fixed import Rescale
        from simulator.kernels import Concat as Kernel

        axis = bound.attrs["dim"] if bound.attrs["dim"] is not None else bound.attrs["axis"]
        scales = self.read_scales(bound.attrs)
        rescales, bits = [], int(bound.attrs["o_bits"] or 8)
        for index in range(len(bound.node.inputs)):
            ratio = bound.ratio(scales[index]) if index in scales else 1.0
            lost = bound.how(Arithmetic).raises_only and ratio < 1
            rescales.append(Rescale.from_shift(ALL_OUT, bits) if lost else bound.rescale(ratio, bits))
        return Kernel(int(axis or 0), tuple(rescales))
