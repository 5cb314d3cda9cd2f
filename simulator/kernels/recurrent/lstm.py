"""Long short-term memory (LSTM), gates i, f, g, o: two arithmetics of the chips, and one with more room for the cell.

    s = sat(a + b)                                   the sums of `recurrent`
    i, f, o = sigmoid(s), g = tanh(s)
    c = f*c + i*g                                    h = o*tanh(c)

========  =====================================  =========================================
          "q27" (arcs, venusA)                    "q11" (venus)
========  =====================================  =========================================
s         Q27, 32 bits                           Q11, 16 bits
gates     Q31, then Q15                          Q7, 8 bits
f*c       Q30, cut to 32 bits before the sum     Q14, the sum is cut to 32 bits
c         Q27 for the tanh, kept in Q15          Q14, Q11 for the tanh, kept in Q7 (16 bits)
h         o*tanh(c) in Q30 -> output             Q14 -> output
========  =====================================  =========================================

"wide" (generic) is "q27" without the cut of f*c to 32 bits: a cell reaches 2^16, not 2. The tanh reads it cut to 32
bits of Q27.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import inline, jit
from simulator.fixed import Form, Rescale, apply, rsh, sat
from simulator.kernel import Spec
from simulator.kernels.loops._curve import Curves, curves, follow_all
from simulator.kernels.recurrent._walk import Walked, joined, lined, lines, present
from simulator.kernels.recurrent.layer import products
from simulator.lut import piecewise

__all__ = ["Lstm"]


@inline
def _gates(cell: Any, a: Any, h: Any, bits: Any) -> Any:
    """Return the gates int32 [N, 4H and more] of sums a and states h, the sums saturated to `bits` bits."""
    samples, units = h.shape
    own, sums, gates = lined(cell.own, samples), lined(cell.sums, samples), lined(cell.gates, samples)
    products(h, cell.weights[0], cell.weights[1], own)
    for n in range(samples):
        joined(a[n], own[n], bits, sums[n])
    follow_all(cell.sigmoid, sums, 0, 2 * units, gates)
    follow_all(cell.tanh, sums, 2 * units, units, gates)
    follow_all(cell.sigmoid, sums, 3 * units, units, gates)
    return gates


@inline
def _output(cell: Any, gates: Any, inner: Any, h: Any, lengths: Any, step: Any) -> Any:
    """Fill h with o * tanh(inner)."""
    samples, units = h.shape
    outer = lined(cell.outer, samples)
    follow_all(cell.tanh, inner, 0, units, outer)
    for n in range(samples):
        o, curve, state = gates[n, 3 * units :], outer[n], h[n]
        for u in range(units if step < lengths[n] else 0):
            state[u] = apply(cell.out, o[u] * curve[u])


@jit
def _q27(cell: Any, memory: Any) -> None:
    """Do a step of "q27" or "wide": sums in Q27, gates rounded to Q15, c in Q15."""
    a, h, c, lengths, step = present(memory)
    samples, units = h.shape
    gates, inner = _gates(cell, a, h, 32), lined(cell.inner, samples)
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            kept = np.int64(f[u]) * cells[u]
            wide = rsh((kept if cell.wide else sat(kept, 32)) + np.int64(i[u]) * g[u], 3)
            cells[u] = sat(rsh(wide, 12), 32)
            line[u] = sat(wide, 32)
    _output(cell, gates, inner, h, lengths, step)


@jit
def _q11(cell: Any, memory: Any) -> None:
    """Do a step of "q11": sums in Q11, gates in Q7, c in Q7 of 16 bits."""
    a, h, c, lengths, step = present(memory)
    samples, units = h.shape
    gates, inner = _gates(cell, a, h, 16), lined(cell.inner, samples)
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            wide = sat(np.int64(f[u]) * cells[u] + np.int64(i[u]) * g[u], 32)
            cells[u] = sat(rsh(wide, 7), 16)
            line[u] = sat(rsh(wide, 3), 16)
    _output(cell, gates, inner, h, lengths, step)


class _Q27(NamedTuple):
    """A step of "q27" and "wide"."""

    weights: Any  # `words` and `plain` of the states' sums, see `recurrent.products`; result int32 in Q27
    sigmoid: Curves  # int32 Q27 -> Q31, rounded to Q15
    tanh: Curves
    out: Form  # o*tanh(c) in Q30 -> output
    wide: bool  # whether f*c keeps its width or is cut to 32 bits
    own: Any  # `lines` of 4H without spare ones: the states' sums
    sums: Any  # `lines` of 4H
    gates: Any  # `lines` of 4H
    inner: Any  # `lines` of H
    outer: Any  # `lines` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _q27


class _Q11(NamedTuple):
    """A step of "q11"; members as of `_Q27`."""

    weights: Any  # result int32 in Q11
    sigmoid: Curves  # int16 Q11 -> Q7
    tanh: Curves
    out: Form  # o*tanh(c) in Q14 -> output
    wide: bool  # not used
    own: Any
    sums: Any
    gates: Any
    inner: Any
    outer: Any

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _q11


@dataclass(frozen=True, eq=False)
class Lstm(Walked):
    """Map x to the sequence, the last state and the last cell.

    The cell is int32: Q15 for "q27" and "wide"; for "q11" the H int16 values (Q7) fill the first half of its
    bytes, the rest is 0.

    Parameters
    ----------
    arithmetic
        "q27", "wide" or "q11".
    table
        The chip whose sigmoid and tanh are used.
    """

    arithmetic: str = "q27"
    table: str = "arcs"

    gates: ClassVar[int] = 4

    #: Fractional bits: gate sums, o * tanh(c).
    formats: ClassVar[dict[str, tuple[int, int]]] = {"q27": (27, 30), "wide": (27, 30), "q11": (11, 14)}

    def last(self, samples: int) -> list[Spec]:
        """Return the specs of the last state and of the last cell."""
        return [*super().last(samples), Spec((samples, 1, self.units), np.dtype(np.int32))]

    @property
    def packed(self) -> bool:
        """Whether the cell has 16 bits."""
        return self.arithmetic == "q11"

    def cell(self) -> _Q27 | _Q11:
        """Return the step of `arithmetic` with its tables and weights."""
        kind, bits, after = (_Q11, 8, 0) if self.packed else (_Q27, 32, 16)
        sigmoid, tanh = (curves(piecewise(name, self.table), bits, after) for name in ("sigmoid", "tanh"))
        weights, out, units = self.hidden_sums().arguments(), self.rescale_o.within(1 << 31), self.units
        memory = lines(4 * units, 0), lines(4 * units), lines(4 * units), lines(units), lines(units)
        return kind(weights, sigmoid, tanh, out, self.arithmetic == "wide", *memory)

    @classmethod
    def output(cls, arithmetic: str, ratio: float, bits: int) -> Rescale:
        """Return the rescaling of o * tanh(c) to a state at `ratio` counts per unit."""
        return Rescale.from_ratio(ratio * 2.0 ** -cls.formats[arithmetic][1], bits)
