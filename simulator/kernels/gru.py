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
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed import Form, Rescale, apply, rsh, sat
from simulator.kernel import Array
from simulator.kernels.recurrent import Recurrent, Sums, products
from simulator.lut import Curve, follow, piecewise

__all__ = ["ExecutorGru", "Gru"]


@jit
def _executor(
    sums: Array,
    lengths: Array,
    dense: Any,
    late: Any,
    plain: Any,
    sigmoid: Curve,
    tanh: Curve,
    out: Form,
    joined: bool,
    y: Array,
    h: Array,
) -> None:
    """Walk through all steps as the executor does.

    Parameters
    ----------
    sums
        int32 [N, T, 3H], Q11: the inputs' sums a, in the gate order r, z, n.
    lengths
        int64 [N], 0 to T: how many steps each sample has.
    dense, late, plain
        The states' sums b, see `recurrent.products`: weights [3H, H], result int32 in Q11.
    sigmoid, tanh
        The chip's tables with results of int8 Q7.
    out
        The new state in Q14 -> output.
    joined
        Whether r and z read the states' sums.
    y
        [N, T, H], filled at every step that a sample has: the output, at the output's scale.
    h
        [N, H] in y's type: the state to begin with, and in the end the last one.
    """
    samples, _, units = y.shape
    own = np.empty((samples, 3 * units), np.int32)
    for t in range(lengths.max() if samples else 0):
        products(h, dense, late, plain, own)
        for k in range(samples):
            if t >= lengths[k]:
                continue
            a, b, state = sums[k, t], own[k], h[k]
            for u in range(units):
                own_r, own_z = (np.int64(b[u]), np.int64(b[units + u])) if joined else (np.int64(0), np.int64(0))
                r = follow(sigmoid, sat(a[u] + own_r, 16))
                z = follow(sigmoid, sat(a[units + u] + own_z, 16))
                n = follow(tanh, sat(a[2 * units + u] + rsh(r * b[2 * units + u], 7), 16))
                state[u] = apply(out, z * rsh(np.int64(state[u]), 1) + (128 - z) * n)
                y[k, t, u] = state[u]


@dataclass(frozen=True, eq=False)
class ExecutorGru(Recurrent):
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

    def stepper(self) -> Any:
        """Return the loop with tables of 8 bits."""
        sigmoid, tanh = (piecewise(name, self.table).curve(8) for name in ("sigmoid", "tanh"))
        hidden = self.hidden_sums()
        out = self.rescale_o.within(1 << 16)

        def step(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            _executor(sums, lengths, *hidden.arguments(), sigmoid, tanh, out, self.joined, y, h)
            return [h[:, None]]

        return step


@jit
def _defined(
    sums: Array,
    lengths: Array,
    dense: Any,
    late: Any,
    plain: Any,
    dense_n: Any,
    late_n: Any,
    plain_n: Any,
    sigmoid: Curve,
    tanh: Curve,
    new: Form,
    reset_after: bool,
    forward: bool,
    bits: int,
    y: Array,
    h: Array,
) -> None:
    """Walk through all steps as the unit is defined.

    Parameters
    ----------
    sums
        int32 [N, T, 3H], Q27: the inputs' sums a, in the gate order r, z, n.
    lengths
        int64 [N], 0 to T: how many steps each sample has.
    dense, late, plain
        The states' sums b of r and z, see `recurrent.products`: weights [2H, H], result int32 in Q27.
    dense_n, late_n, plain_n
        The same for n: weights [H, H].
    sigmoid
        The table from int32 Q27 to Q31 or Q15; r and z have its fractional bits.
    tanh
        The table from int32 Q27 to Q31.
    new
        n in Q31 -> the state's scale.
    reset_after
        Whether r multiplies the sums of n; otherwise the state that goes into them.
    forward
        Whether time runs from 0 on; otherwise from a sample's last step to 0.
    bits
        Width of the state.
    y
        [N, T, H], filled at every step that a sample has: the output, at the output's scale.
    h
        [N, H] in y's type: the state to begin with, and in the end the last one.
    """
    samples, _, units = y.shape
    b, m = np.empty((samples, 2 * units), np.int32), np.empty((samples, units), np.int32)
    gated, r = np.empty((samples, units), y.dtype), np.empty((samples, units), np.int64)
    down = sigmoid.bits - 1
    for step in range(lengths.max() if samples else 0):
        products(h, dense, late, plain, b)
        for k in range(samples):
            t = min(step, lengths[k] - 1) if forward else max(lengths[k] - 1 - step, 0)
            for u in range(units if step < lengths[k] else 0):
                r[k, u] = follow(sigmoid, sat(np.int64(sums[k, t, u]) + b[k, u], 32))
                gated[k, u] = h[k, u] if reset_after else rsh(r[k, u] * h[k, u], down)
        products(gated, dense_n, late_n, plain_n, m)
        for k in range(samples):
            if step >= lengths[k]:
                continue
            t = step if forward else lengths[k] - 1 - step
            a, state = sums[k, t], h[k]
            for u in range(units):
                own = rsh(r[k, u] * m[k, u], down) if reset_after else np.int64(m[k, u])
                z = follow(sigmoid, sat(np.int64(a[units + u]) + b[k, units + u], 32))
                n = np.int64(apply(new, follow(tanh, sat(a[2 * units + u] + own, 32))))
                state[u] = sat(n + rsh(z * (state[u] - n), down), bits)
                y[k, t, u] = state[u]


@dataclass(frozen=True, eq=False)
class Gru(Recurrent):
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

    def stepper(self) -> Any:
        """Return the loop with the weights of n apart: they may read another state than those of r and z."""
        sigmoid = piecewise("sigmoid", self.table).curve(self.gate_bits)
        tanh = piecewise("tanh", self.table).curve(32)
        cut, largest, kind = 2 * self.units, 1 << (self.rescale_o.bits - 1), self.rescale_o.dtype
        gates, inner = (
            Sums(self.weight_h[rows], self.bias_h[rows], kind, largest, self.rescale_h)
            for rows in (slice(cut), slice(cut, None))
        )
        new = self.rescale_o.within(1 << 31)

        def step(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            _defined(
                sums,
                lengths,
                *gates.arguments(),
                *inner.arguments(),
                sigmoid,
                tanh,
                new,
                self.reset_after,
                self.forward,
                self.rescale_o.bits,
                y,
                h,
            )
            return [h[:, None]]

        return step

    @classmethod
    def output(cls, scale: float, bits: int) -> Rescale:
        """Return the rescaling of n to a state at `scale` counts per unit."""
        return Rescale.from_ratio(scale * 2.0**-31, bits)
