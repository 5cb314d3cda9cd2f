"""Sigmoid and tanh by the chips' tables: iqSigmoid, iqTanh. Their output has 7 fractional bits.

How an input comes to the format of the table, Q11 or Q27, is a `Reading`:

==============  ======================================================================================
`RIGHT_ONLY`    int16 in; shifted right, never left: a scale below 2^11 is read as 2^11
`SATURATED`     shifted and saturated
`WRAPPED`       shifted without saturation, and 0 comes out beyond the table
`NOTHING`       the executor's factor overflows to 0, so that every input reads as 0
==============  ======================================================================================

To the training side outputs are `as_told`: the table in Q11 gives Q15, rounded to any scale, the one in Q27 rounds
once, to o_bits - 1 fractional bits. An int8 input that is read `RIGHT_ONLY` is what a Requant by 2^8 in front of it
would make int16. Gelu and Swish (venusA, generation 3) have tables of their own, Q27 in and out.

Where there is no right one, GluInt does: it multiplies a half of 1s by the sigmoid of the other half. Where there is an
iqTable, that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..emit import Lowering
from ..errors import ModelError
from ..graph import ir
from ..plan import QParams
from ..platforms import Platform
from ..platforms.arithmetic import Curve, Reading
from ..platforms.faults import Fault
from ._base import Attr, Bound, Constraint, Op, Tie
from .border import Requant
from .gate import Glu
from .linear import Linear
from .table import TABLE

__all__ = ["SIGMOID", "Gelu", "Sigmoid", "Swish", "Tanh", "gated_axis"]

_OUT = QParams(2.0**7)
#: A 1 that GluInt is fed is an int8 at scales up to 2^6.
_TOP = 6


def gated_axis(node: ir.Node, row: Platform) -> Any:
    """where GluInt stands in for a table, the last of two or three axes is at most {row.curve.max_length} long |
    shorten it.
    """
    if row.runs(TABLE.name) or row.curve is None:
        return None
    shape = ir.shape(node.inputs[0]) or ()
    fits = len(shape) in row.curve.ranks and shape[-1] is not None and shape[-1] <= row.curve.max_length
    return None if fits else "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


class Sigmoid(Op):
    """Logistic function."""

    name = "iqSigmoid"
    kind = Curve
    floats: tuple[tuple[str, str], ...] = (("", "Sigmoid"),)
    aliases: tuple[str, ...] = ("QSigmoid",)
    factor = "fixed"
    head = True
    bound: float | None = 1.0
    function = "sigmoid"
    fault: Fault | None = None
    constraints: tuple[Constraint, ...] = (gated_axis,)
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f", _OUT.scale), Attr("o_bits", "i", 8))

    def available(self, row: Platform) -> bool:
        """By a table of either kind, sigmoid also by GluInt."""
        stand_in = self.function == "sigmoid" and row.runs(Glu.name)
        return row.runs(TABLE.name) or self.tabled(row) or stand_in

    def absence(self, node: ir.Node, row: Platform) -> str:
        """The fault, where there is one."""
        return (self.fault and row.fault(self.fault)) or super().absence(node, row)

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
            op, attrs["dim"], attrs["o_bits"] = GLU, len(shape) - 1, _OUT.bits  # counted from -1, too little is planned
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
        return row.right(self.name)

    def _wide(
        self, node: ir.Node, low: Lowering, value: ir.Value, x: QParams, shape: list[Any]
    ) -> tuple[ir.Value, float]:  # fmt: skip
        """Return `value` in the width that the row's table takes, and its scale."""
        how = low.row.computes(self.name, Curve)
        if how is None or how.reading is not Reading.RIGHT_ONLY:
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
        shape, base = list(ir.shape(node.outputs[0]) or ()), f"{ir.shared_name(node)}_ones"
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

        how = bound.how(Curve)
        curve, bits, fraction = piecewise(self.function, how.table.value), bound.width(), how.table.fraction
        x, q = grid(bits), bound.exponent("scale_x", float(bound.attrs["scale_x"]))
        if how.as_told:
            return Table(self._trained(bound, curve, rsh(x, q - fraction)))
        if how.reading is Reading.NOTHING:
            x = x * 0
        elif how.reading is Reading.RIGHT_ONLY:
            x = rsh(x << (16 - bits), max(q + 16 - bits - fraction, 0))
        else:
            x = sat_array(rsh(x, q - fraction), 32)
        return Table(curve.rounded(x, 8).astype(np.int8))

    def _trained(self, bound: Bound, curve: Any, x: np.ndarray) -> np.ndarray:
        """Return what the training side computes for x in the format of its table."""
        from simulator.fixed import dtype_of, sat_array

        bits, scale = int(bound.attrs["o_bits"]), float(bound.attrs["scale_o"])
        if bound.how(Curve).reading is Reading.WRAPPED:
            return requantized(bound, curve.unsaturated(x), 2.0**15)
        if scale != 2.0 ** (bits - 1):
            raise ModelError(f"{bound.where}: scale_o = {scale:g}; of {bits} bits it is {2.0 ** (bits - 1):g}")
        return curve.rounded(sat_array(x, 32), bits).astype(dtype_of(bits))

    def out_scale(self, attrs: Any, scales: Any) -> float | None:
        """2^7, whatever the node says, to the executor."""
        return _OUT.scale

    def out_scales(self, bound: Bound, scales: Sequence[float | None]) -> list[float | None]:
        """What the node says to the training side."""
        return [float(bound.attrs["scale_o"])] if bound.how(Curve).as_told else super().out_scales(bound, scales)


def requantized(bound: Bound, values: np.ndarray, scale: float) -> np.ndarray:
    """Return integers at `scale` in the node's output format, rounded as it says."""
    from simulator.fixed import divided, dtype_of, sat_array

    bits, shift = int(bound.attrs["o_bits"]), bound.exponent("scale_o", bound.ratio(scale))
    rounding = int(bound.rounding)
    moved = [divided(int(v) << max(shift, 0), 1 << max(-shift, 0), rounding) for v in values]
    return sat_array(np.array(moved, object), bits).astype(dtype_of(bits))


class Tanh(Sigmoid):
    """Hyperbolic tangent."""

    name = "iqTanh"
    floats = (("", "Tanh"),)
    aliases = ("QTanh",)
    function = "tanh"
    fault = Fault.TANH
    constraints = ()


class Gelu(Op):
    """GELU by venusA's table, in generation 3 only; it has no name that the packer knows."""

    name = "QGelu"
    kind = Curve
    domain = "linger"
    factor = "fixed"
    function = "gelu"
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f"), Attr("data_bits", "i", 8), Attr("o_bits", "i", 8))

    def bind(self, bound: Bound) -> Any:
        """Return the table."""
        from simulator.fixed import rsh, sat_array
        from simulator.kernels import Table, grid
        from simulator.lut import piecewise

        table = bound.how(Curve).table
        chip, fraction = table.value, table.fraction
        q = bound.exponent("scale_x", float(bound.attrs["scale_x"]))
        y = piecewise(self.function, chip).to(sat_array(rsh(grid(bound.width()), q - fraction), 32), fraction, 32)
        return Table(requantized(bound, y, 2.0**fraction))


class Swish(Gelu):
    """SiLU, likewise."""

    name = "QSwish"
    function = "swish"


GLU, REQUANT, SIGMOID = Glu(), Requant(), Sigmoid()
