"""GluInt: the first half of the last axis times the sigmoid of the second. No float operator is one; graphs hold it.

The training side gates any axis, and has a sigmoid for each chip.
"""

from __future__ import annotations

from typing import Any

from ..errors import ModelError
from ..platforms.arithmetic import Gate
from ._base import Attr, Bound, Op

__all__ = ["Glu"]


class Glu(Op):
    """Gated linear unit."""

    name = "GluInt"
    kind = Gate
    aliases = ("QGLU",)
    factor = "fixed"
    attributes = (Attr("dim", "i", -1), Attr("scale_x", "f"), Attr("scale_o", "f"), Attr("o_bits", "i", 8))

    def bind(self, bound: Bound) -> Any:
        """Return the kernel, the sigmoid of every integer worked out."""
        from simulator.kernels import Glu as Kernel

        how, axis = bound.how(Gate), int(bound.attrs["dim"]) % len(bound.source_shapes[0])
        if not how.any_axis and axis != len(bound.source_shapes[0]) - 1:
            raise ModelError(f"{bound.where}: dim = {bound.attrs['dim']}; only the last axis is gated")
        scale = float(bound.attrs["scale_x"])
        gate = Kernel.gates(bound.exponent("scale_x", scale), how.table.value)
        return Kernel(gate, bound.rescale(bound.ratio(scale, 2.0**15)), axis)
