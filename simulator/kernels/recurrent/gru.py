"""Gated recurrent unit (GRU), with gates r, z, n: as it is defined, and as the chips' executor computes it.

a are the sums of the input, b those of the state (`recurrent`), for the gate in question.

As it is defined (`Gru`): sums in Q27, gates in Q31 (or Q15, `gate_bits` 16):

    r, z = sigmoid(sat32(a + b))
    n    = tanh(sat32(a + r*b))                   reset after the product, or
    n    = tanh(sat32(a + b[r*h]))                `reset_after` False: before it, r*h rounded to the state's integers
    n    -> the state's scale                     h = sat(n + rsh(z*(h - n)))

As the executor computes it (`ExecutorGru`): sums in Q11, gates in Q7 (8 bits):

    r, z = sigmoid(sat16(a + b))                  `joined` False: of a alone
    n    = tanh(sat16(a + rsh(r*b, 7)))
    h    = sat8(rescale(z*rsh(h, 1) + (128 - z)*n))

This is not a right GRU: h is halved, and time always runs forwards. Sums are never shifted left, and some chips hand
them to tables that take Q27.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import jit
from simulator.fixed import Form, Rescale, apply, rsh, sat
from simulator.kernels.loops._curve import Curves, curves, follow_all
from simulator.kernels.recurrent._walk import Walked, grouped, joined, lined, lines, present
from simulator.kernels.recurrent.layer import GateSums, products
from simulator.lut import piecewise

__all__ = ["ExecutorGru", "Gru"]


@jit
def _executor(cell: Any, memory: Any) -> None:
    """Do a step as the executor does."""
    a, h, _, lengths, step = present(memory)
    samples, units = h.shape
    own, sums, rz = lined(cell.own, samples), lined(cell.sums, samples), lined(cell.rz, samples)
    inner, n = lined(cell.inner, samples), lined(cell.n, samples)
    products(h, cell.weights[0], cell.weights[1], own)
    for k in range(samples):
        for u in range(0 if cell.joined else 2 * units):
            own[k, u] = 0
        joined(a[k, : 2 * units], own[k], 16, sums[k])
    follow_all(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        given, b, r, line = a[k, 2 * units :], own[k, 2 * units :], rz[k], inner[k]
        for u in range(units):
            line[u] = sat(given[u] + rsh(np.int64(r[u]) * b[u], 7), 16)
    follow_all(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            state[u] = apply(cell.out, z[u] * rsh(np.int64(state[u]), 1) + (128 - z[u]) * line[u])


class _Executor(NamedTuple):
    """A step of the executor's unit."""

    weights: Any  # `words` and `plain` of the states' sums, see `recurrent.products`; result int32 in Q11
    sigmoid: Curves  # the chip's tables with results of int8 Q7
    tanh: Curves
    out: Form  # the new state in Q14 -> output
    joined: bool  # whether r and z read the states' sums
    own: Any  # `lines` of 3H without spare ones: those sums
    sums: Any  # `lines` of 2H
    rz: Any  # `lines` of 2H
    inner: Any  # `lines` of H
    n: Any  # `lines` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _executor


@dataclass(frozen=True, eq=False)
class ExecutorGru(Walked):
    """The unit as the chips' executor computes it, faults included; `rescale_o` takes Q14 to the state.

    Parameters
    ----------
    table
        The chip whose sigmoid and tanh are used.
    joined
        Whether the gates r and z read the state's sums; otherwise the input's alone.
    """

    table: str = "venus"
    joined: bool = True

    gates: ClassVar[int] = 3

    def cell(self) -> _Executor:
        """Return the step with tables of 8 bits."""
        sigmoid, tanh = (curves(piecewise(name, self.table), 8) for name in ("sigmoid", "tanh"))
        weights, out, units = self.hidden_sums().arguments(), self.rescale_o.within(1 << 16), self.units
        memory = lines(3 * units, 0), lines(2 * units), lines(2 * units), lines(units), lines(units)
        return _Executor(weights, sigmoid, tanh, out, self.joined, *memory)


@jit
def _defined(cell: Any, memory: Any) -> None:
    """Do a step as the unit is defined."""
    a, h, _, lengths, step = present(memory)
    samples, units = h.shape
    b, m, gated = lined(cell.b, samples), lined(cell.m, samples), cell.gated.reshape((-1, units))[:samples]
    sums, rz = lined(cell.sums, samples), lined(cell.rz, samples)
    inner, n = lined(cell.inner, samples), lined(cell.n, samples)
    products(h, cell.weights[0], cell.weights[1], b)
    for k in range(samples):
        joined(a[k, : 2 * units], b[k], 32, sums[k])
    follow_all(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        r, state, line = rz[k], h[k], gated[k]
        for u in range(units):
            line[u] = state[u] if cell.reset_after else rsh(np.int64(r[u]) * state[u], cell.down)
    products(gated, cell.weights_n[0], cell.weights_n[1], m)
    for k in range(samples):
        given, r, own, line = a[k, 2 * units :], rz[k], m[k], inner[k]
        if cell.reset_after:
            for u in range(units):
                line[u] = sat(given[u] + rsh(np.int64(r[u]) * own[u], cell.down), 32)
        else:
            joined(given, own, 32, line)
    follow_all(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            new = np.int64(apply(cell.new, line[u]))
            state[u] = sat(new + rsh(z[u] * (state[u] - new), cell.down), cell.bits)


class _Defined(NamedTuple):
    """A step of the unit as it is defined."""

    weights: Any  # `words` and `plain` of the states' sums of r and z, see `products`; in int32 Q27
    weights_n: Any  # the same for n
    sigmoid: Curves  # int32 Q27 -> Q31 or Q15
    tanh: Curves  # int32 Q27 -> Q31
    new: Form  # n in Q31 -> the state's scale
    down: int  # fractional bits of r and z
    reset_after: bool  # whether r multiplies the sums of n; otherwise the state that goes into them
    bits: int  # width of the state
    b: Any  # `lines` of 2H without spare ones: the states' sums
    m: Any  # `lines` of H without spare ones: those of n
    gated: Any  # [N, H] in the states' type: what n's sums read
    sums: Any  # `lines` of 2H
    rz: Any  # `lines` of 2H
    inner: Any  # `lines` of H
    n: Any  # `lines` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _defined


@dataclass(frozen=True, eq=False)
class Gru(Walked):
    """The unit as it is defined; `rescale_o` takes n from Q31 to the state.

    Parameters
    ----------
    reset_after
        Whether the reset gate acts on the product with the weights (and its bias) or on the state before it.
    gate_bits
        Width of r and z: 32 (Q31) or 16 (Q15).
    table
        The chip whose sigmoid and tanh are used.
    """

    reset_after: bool = True
    gate_bits: int = 32
    table: str = "arcs"

    gates: ClassVar[int] = 3

    def cell(self) -> _Defined:
        """Return the step with the weights of n apart: they may read another state than those of r and z."""
        sigmoid, tanh = (
            curves(piecewise("sigmoid", self.table), self.gate_bits),
            curves(piecewise("tanh", self.table), 32),
        )
        units, kind, bits = self.units, self.rescale_o.dtype, self.rescale_o.bits
        gates, inner = (
            GateSums(self.weight_h[rows], self.bias_h[rows], kind, 1 << (bits - 1), self.rescale_h)
            for rows in (slice(2 * units), slice(2 * units, None))
        )
        return _Defined(
            gates.arguments(),
            inner.arguments(),
            sigmoid,
            tanh,
            self.rescale_o.within(1 << 31),
            self.gate_bits - 1,
            self.reset_after,
            bits,
            b=lines(2 * units, 0),
            m=lines(units, 0),
            gated=grouped(units, kind),
            sums=lines(2 * units),
            rz=lines(2 * units),
            inner=lines(units),
            n=lines(units),
        )

    @classmethod
    def output(cls, scale: float, bits: int) -> Rescale:
        """Return the rescaling of n to a state at `scale` counts per unit."""
        return Rescale.from_ratio(scale * 2.0**-31, bits)
