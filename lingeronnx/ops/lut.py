"""Sigmoid and tanh by the chips' tables: iqSigmoid, iqTanh. Their output has 7 fractional bits.

================  ====================================================================================
"luna-q11"        int16 in; shifted right to Q11, never left: a scale below 2^11 is read as 2^11
"luna-q27"        int8 in; shifted left to Q27 and saturated
"luna-constant"   the executor's factor overflows to 0, so that every input reads as 0
================  ====================================================================================

Where there is no right one, GluInt does: it multiplies a half of 1s by the sigmoid of the other half. Where there is an
iqTable, that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ir
from ..plan import QParams
from ..platforms import Platform
from ._base import Attr, Bound, Constraint, Op, Tie
from .border import Requant
from .gate import Glu
from .linear import Linear
from .table import TABLE

if TYPE_CHECKING:
    from ..lower import Lowering

__all__ = ["SIGMOID", "Sigmoid", "Tanh", "gated_axis"]

#: Algorithm -> (the table's name in the simulator, fractional bits it wants, width of its input).
_TABLES = {"luna-q11": ("venus", 11, 16), "luna-q27": ("arcs", 27, 8), "luna-constant": ("venusA", 27, 8)}
_OUT = QParams(2.0**7)
#: GluInt is fed by a LinearInt of so many inputs at most: half of 1s, half copied.
_WIDEST = 128
#: ... at scales from 1 up to this, so that 1 is an integer.
_TOP = 6


def gated_axis(node: ir.Node, row: Platform) -> Any:
    """where GluInt stands in for a table, the last of two or three axes is at most 128 long | shorten it."""
    if row.runs(TABLE.name) or row.ops.get("iqSigmoid") != "luna-constant":
        return None
    shape = ir.shape(node.inputs[0]) or ()
    fits = 2 <= len(shape) <= 3 and shape[-1] is not None and shape[-1] <= _WIDEST
    return None if fits else "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class Sigmoid(Op):
    """Logistic function."""

    name = "iqSigmoid"
    floats: tuple[tuple[str, str], ...] = (("", "Sigmoid"),)
    aliases: tuple[str, ...] = ("QSigmoid",)
    factor = "fixed"
    head = True
    bound: float | None = 1.0
    function = "sigmoid"
    constraints: tuple[Constraint, ...] = (gated_axis,)
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f", _OUT.scale), Attr("o_bits", "i", 8))

    def available(self, row: Platform) -> bool:
        """By a table of either kind, sigmoid also by GluInt."""
        stand_in = self.function == "sigmoid" and row.runs(Glu.name)
        return row.runs(TABLE.name) or self.tabled(row) or stand_in

    def absence(self, node: ir.Node, row: Platform) -> str:
        """The fault, where there is one."""
        return row.faults.get(self.function) or super().absence(node, row)

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None."""
        return []

    def ceiling(self, node: ir.Node, exponent: Any) -> int | None:
        """The output's scale is 2^7."""
        return 7

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit the row's way, and a Requant where the output is wanted at another scale."""
        if low.row.runs(TABLE.name):
            TABLE.lower(node, low)
            return
        x, o, shape = low.read(node, 0), low.written(node), list(ir.shape(node.outputs[0]) or ())
        attrs: dict[str, Any] = {"scale_o": _OUT.scale}
        if self.tabled(low.row):
            value, attrs["scale_x"] = self._wide(node, low, low.integer(node, 0), x, shape)
            op: Op = self
        else:
            value, attrs["scale_x"] = self._with_ones(node, low, low.integer(node, 0), x)
            op, attrs["dim"] = GLU, -1
        if o == _OUT:
            low.emit(op, node, [value], attrs)
            return
        value = low.insert(op.name, node, "q7", [value], attrs, shape, _OUT)
        low.emit(REQUANT, node, [value], {"data_bits": 8, "o_bits": o.bits, "scale_x": _OUT.scale,
                                          "scale_o": o.scale})  # fmt: skip

    def insert(self, node: ir.Node, low: Lowering, value: ir.Value, x: QParams, shape: list[Any]) -> ir.Value:
        """Emit the function of `value`, held as `x`, on the way to `node`'s output; return it, with 7 bits."""
        value, scale = self._wide(node, low, value, x, shape)
        return low.insert(self.name, node, "gate", [value], {"scale_x": scale, "scale_o": _OUT.scale}, shape, _OUT)

    def tabled(self, row: Platform) -> bool:
        """Whether the row has the function right."""
        return row.ops.get(self.name) in ("luna-q11", "luna-q27")

    def _wide(
        self, node: ir.Node, low: Lowering, value: ir.Value, x: QParams, shape: list[Any]
    ) -> tuple[ir.Value, float]:  # fmt: skip
        """Return `value` in the width that the row's table takes, and its scale."""
        if low.row.ops.get(self.name) != "luna-q11":
            return value, x.scale
        if x.scale < 2.0**3:  # a shift to the left would wrap in 16 bits; in 8 it saturates, where the function is flat
            most = QParams(2.0**3)
            attrs = {"data_bits": x.bits, "o_bits": most.bits, "scale_x": x.scale, "scale_o": most.scale}
            value, x = low.insert(Requant.name, node, "limited", [value], attrs, shape, most), most
        wide = QParams(x.scale * 2.0**8, 16)
        attrs = {"data_bits": x.bits, "o_bits": wide.bits, "scale_x": x.scale, "scale_o": wide.scale}
        return low.insert(Requant.name, node, "wide", [value], attrs, shape, wide), wide.scale

    def _with_ones(self, node: ir.Node, low: Lowering, value: ir.Value, x: QParams) -> tuple[ir.Value, float]:
        """Return the last axis doubled, a half of 1s in front, and its scale: the work of a LinearInt, exact."""
        shape, base = list(ir.shape(node.outputs[0]) or ()), f"{node.outputs[0].name}@ones"
        count = int(shape[-1] or 1)
        scale = min(max(x.scale, 1.0), 2.0**_TOP)
        one = QParams(2.0**6)
        weight = np.concatenate([np.zeros((count, count)), np.eye(count)]) * one.scale
        bias = np.concatenate([np.full(count, x.scale * one.scale), np.zeros(count)])
        given = [low.array(f"{base}_weight", weight.astype(np.int8)), low.array(f"{base}_bias", bias.astype(np.int32))]
        attrs = {"data_bits": x.bits, "parameter_bits": 8, "o_bits": 8, "scale_x": x.scale, "scale_w": one.scale,
                 "scale_o": scale}  # fmt: skip
        shape[-1] = 2 * count
        return low.insert(Linear.name, node, "ones", [value, *given], attrs, shape, QParams(scale)), scale

    def bind(self, bound: Bound) -> Any:
        """Return the table of the node's function."""
        from simulator.fixed import rsh, sat_array
        from simulator.kernels import Table, grid
        from simulator.lut import piecewise

        table, fraction, bits = _TABLES.get(bound.algorithm, _TABLES["luna-constant"])
        q = bound.exponent("scale_x", float(bound.attrs["scale_x"]))
        x = grid(bits)
        if bound.algorithm == "luna-constant":
            x = x * 0
        elif fraction == 11:
            x = rsh(x, max(q - fraction, 0))
        else:
            x = sat_array(rsh(x, q - fraction), 32)
        return Table(piecewise(self.function, table).rounded(x, 8).astype(np.int8))

    def out_scale(self, attrs: Any, scales: Any) -> float | None:
        """2^7, whatever the node says."""
        return _OUT.scale


class Tanh(Sigmoid):
    """Hyperbolic tangent."""

    name = "iqTanh"
    floats = (("", "Tanh"),)
    aliases = ("QTanh",)
    function = "tanh"
    constraints = ()


GLU, REQUANT, SIGMOID = Glu(), Requant(), Sigmoid()
