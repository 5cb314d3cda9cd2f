"""Functions of one number: iqSigmoid and iqTanh by the chips' tables, GluInt, and iqTable with a table of its own.

iqSigmoid and iqTanh write 7 fractional bits. How an input comes to the format of the table, Q11 or Q27, is a `Reading`:

==============  ======================================================================================
`RIGHT_ONLY`    int16 in; shifted right, never left: a scale below 2^11 is read as 2^11
`SATURATED`     shifted and saturated
`WRAPPED`       shifted without saturation, and 0 comes out beyond the table
`NOTHING`       the executor's factor overflows to 0, so that every input reads as 0
==============  ======================================================================================

To the training side outputs are `as_told`: the table in Q11 gives Q15, rounded to any scale, the one in Q27 rounds
once, to o_bits - 1 fractional bits. An int8 input that is read `RIGHT_ONLY` is what a Requant by 2^8 in front of it
would make int16. QGelu and QSwish (venusA, dialect v3) have tables of their own, Q27 in and out.

GluInt multiplies the first half of the last axis by the sigmoid of the second. The training side gates any axis, and
has a sigmoid for each chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attribute, Attributes, integer, number
from ..plan import Affine
from ..targets.arithmetic import CurveArithmetic, Gate, Reading
from . import inference as rules
from ._base import Attr, Bound, Format, Unary, held_at, zero_attribute
from .functions import function_of, written
from .inference import Signature
from .real import Reals

if TYPE_CHECKING:
    from simulator.lut import Piecewise

__all__ = ["FAMILY", "GLU", "SIGMOID", "TANH", "GELU", "SWISH", "TABLE"]


class Glu(Format):
    """Gated linear unit: one half of an axis times the sigmoid of the other half."""

    name = "GluInt"
    signature = Signature("x:integer", "integer", rules.glu)
    unsaid = ("data_bits", "o_bits")
    kind = Gate
    v3_name = "QGLU"
    between = True
    attributes = (Attr("dim", "i", -1), Attr("scale_x", "f"), Attr("scale_o", "f"), Attr("o_bits", "i", 8))

    def obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return why it gates another axis than the last, or None."""
        last = len(ir.shape(node.inputs[0]) or ()) - 1
        return None if integer(attrs, "dim", -1) in (-1, last) else "it does not gate the last axis"

    def bind(self, bound: Bound) -> Kernel:
        """Return the kernel, the sigmoid of every integer worked out."""
        from simulator.kernels import Glu as Kernel

        how, axis = bound.how(Gate), integer(bound.attrs, "dim") % len(bound.source_shapes[0])
        if not how.any_axis and axis != len(bound.source_shapes[0]) - 1:
            raise ModelError(f"{bound.where}: dim = {bound.attrs['dim']}; only the last axis is gated")
        scale = number(bound.attrs, "scale_x")
        gate = Kernel.gates(bound.exponent("scale_x", scale), how.table.value)
        return Kernel(gate, bound.rescale(bound.ratio(scale, 2.0**15)), axis)

    def meaning(self, real: Reals) -> list[ir.Value]:
        """One half times the sigmoid of the other."""
        shape, axis = real.bound.source_shapes[0], integer(real.attrs, "dim")
        half = shape[axis % len(shape)] // 2
        value, gate = real.several("Split", real.input(), outputs=2, axis=axis, split=[half, half])
        return [real("Mul", value, real("Sigmoid", gate))]


GLU = Glu()


#: How iqSigmoid and iqTanh write their results.
Q7 = Affine(2.0**7)


class Sigmoid(Format):
    """Logistic function by a table of straight pieces."""

    name = "iqSigmoid"
    signature = Signature("x:integer", "integer", rules.same(rules.width))
    kind = CurveArithmetic
    v3_name = "QSigmoid"
    between = True
    standard = "Sigmoid"
    unsaid = ("data_bits", "o_bits")
    function = "sigmoid"
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f", Q7.scale), Attr("o_bits", "i", 8))

    def to_v3(self, attrs: Attributes, inputs: int) -> dict[str, Attribute]:
        """The width of the output is always told."""
        return super().to_v3({"o_bits": 8, **attrs}, inputs)

    def obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return why the output has another scale than 2^7, or None."""
        scale = attrs.get("scale_o", Q7.scale)
        return f"scale_o = {scale:g}, not {Q7.scale:g}" if scale != Q7.scale else None

    def bind(self, bound: Bound) -> Kernel:
        """Return the table of the node's function."""
        from simulator.fixed import rsh, sat_array
        from simulator.kernels import Table, grid
        from simulator.lut import piecewise

        how = bound.how(CurveArithmetic)
        curve, bits, fraction = piecewise(self.function, how.table.value), bound.width(), how.table.fraction
        x, q = grid(bits), bound.exponent("scale_x", number(bound.attrs, "scale_x"))
        if how.as_told:
            return Table(self._trained(bound, curve, rsh(x, q - fraction)))
        if how.reading is Reading.NOTHING:
            x = x * 0
        elif how.reading is Reading.RIGHT_ONLY:
            x = rsh(x << (16 - bits), max(q + 16 - bits - fraction, 0))
        else:
            x = sat_array(rsh(x, q - fraction), 32)
        return Table(curve.rounded(x, 8).astype(np.int8))

    def _trained(self, bound: Bound, curve: Piecewise, x: np.ndarray) -> np.ndarray:
        """Return what the training side computes for x in the format of its table."""
        from simulator.fixed import dtype_of, sat_array

        bits, scale = integer(bound.attrs, "o_bits"), number(bound.attrs, "scale_o")
        if bound.how(CurveArithmetic).reading is Reading.WRAPPED:
            return requantized(bound, curve.unsaturated(x), 2.0**15)
        if scale != 2.0 ** (bits - 1):
            raise ModelError(f"{bound.where}: scale_o = {scale:g}; of {bits} bits it is {2.0 ** (bits - 1):g}")
        return curve.rounded(sat_array(x, 32), bits).astype(dtype_of(bits))

    def meaning(self, real: Reals) -> list[ir.Value]:
        """Return the curve itself."""
        return [real(self.standard, real.input())]

    def out_scale(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """2^7, whatever the node says, to the executor."""
        return Q7

    def out_scales(self, bound: Bound, scales: Sequence[Affine | None]) -> list[Affine | None]:
        """What the node says to the training side."""
        return [held_at(bound.attrs, "o")] if bound.how(CurveArithmetic).as_told else super().out_scales(bound, scales)


SIGMOID = Sigmoid()


def requantized(bound: Bound, values: np.ndarray, scale: float) -> np.ndarray:
    """Return integers at `scale` in the node's output format, rounded as it says."""
    from simulator.fixed import divided, dtype_of, sat_array

    bits, shift = integer(bound.attrs, "o_bits"), bound.exponent("scale_o", bound.ratio(scale))
    rounding = int(bound.rounding)
    moved = [divided(int(v) << max(shift, 0), 1 << max(-shift, 0), rounding) for v in values]
    return sat_array(np.array(moved, object), bits).astype(dtype_of(bits))


class Tanh(Sigmoid):
    """Hyperbolic tangent by a table of straight pieces."""

    name = "iqTanh"
    v3_name = "QTanh"
    standard = "Tanh"
    function = "tanh"


TANH = Tanh()


class Gelu(Format):
    """GELU by venusA's table, in generation 3 only; it has no name that the packer knows."""

    name = "QGelu"
    signature = Signature("x:integer", "integer", rules.same(rules.width))
    kind = CurveArithmetic
    domain = "linger"
    function = "gelu"
    between = True
    curve = "Gelu"
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f"), Attr("data_bits", "i", 8), Attr("o_bits", "i", 8))

    def bind(self, bound: Bound) -> Kernel:
        """Return the table of the node's function."""
        from simulator.fixed import rsh, sat_array
        from simulator.kernels import Table, grid
        from simulator.lut import piecewise

        table = bound.how(CurveArithmetic).table
        chip, fraction = table.value, table.fraction
        q = bound.exponent("scale_x", number(bound.attrs, "scale_x"))
        y = piecewise(self.function, chip).to(sat_array(rsh(grid(bound.width()), q - fraction), 32), fraction, 32)
        return Table(requantized(bound, y, 2.0**fraction))

    def meaning(self, real: Reals) -> list[ir.Value]:
        """Return the curve itself."""
        return [written(self.curve, real)]


GELU = Gelu()


class Swish(Gelu):
    """SiLU by venusA's table, in generation 3 only."""

    name = "QSwish"
    function = "swish"
    curve = "Silu"


SWISH = Swish()


class Table(Unary):
    """Any function of one number; its entries know both zero points."""

    name = "iqTable"
    zero_points = True
    signature = Signature("x:integer table:weight", "integer", rules.same(rules.width))
    attributes: tuple[Attr, ...] = (Attr("function", "s", ""), Attr("data_bits", "i", 8), Attr("o_bits", "i", 8),
                                    Attr("scale_x", "f"), Attr("scale_o", "f"), zero_attribute("x"),
                                    zero_attribute("o"))  # fmt: skip

    def bind(self, bound: Bound) -> Kernel:
        """Return the table that the node holds."""
        from simulator.kernels import Table as Kernel

        return Kernel(bound.constant(1, "int8 int16", "table"))

    def meaning(self, real: Reals) -> list[ir.Value]:
        """Return the function where a standard one gives this table, else ``table[round(x * scale) + zero]``."""
        table, x, o = real.bound.consts[1], held_at(real.attrs, "x"), held_at(real.attrs, "o")
        name = function_of(table, x, o, str(real.attrs["function"]))
        if name is not None:
            return [written(name, real)]
        first = real.constant(np.float32(table.size // 2 + x.zero_point + 0.5), "middle")
        counts = real("Mul", real.input(), real.constant(np.float32(x.scale), "counts"))
        place = real("Cast", real("Add", counts, first), to=6)  # the sum is positive: cut off, it is rounded
        entries = o.real(table.reshape(-1)).astype(np.float32)
        return [real("Gather", real.constant(entries, "entries"), place, axis=0)]


TABLE = Table()


FAMILY: tuple[Format, ...] = (GLU, SIGMOID, TANH, GELU, SWISH, TABLE)
