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
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed import Form, Rescale, apply, rsh, sat
from simulator.kernel import Array, Spec
from simulator.kernels.recurrent import Recurrent, products
from simulator.lut import Curve, follow, piecewise

__all__ = ["Lstm"]


@jit
def _q27(
    sums: Array,
    lengths: Array,
    dense: Any,
    late: Any,
    plain: Any,
    sigmoid: Curve,
    tanh: Curve,
    out: Form,
    forward: bool,
    y: Array,
    h: Array,
    c: Array,
    wide: bool,
) -> None:
    """Walk through all steps with sums in Q27: "q27" and "wide".

    Parameters
    ----------
    sums
        int32 [N, T, 4H], Q27: the inputs' sums a, in the gate order i, f, g, o.
    lengths
        int64 [N], 0 to T: how many steps each sample has.
    dense, late, plain
        The states' sums b, see `recurrent.products`: weights [4H, H], result int32 in Q27.
    sigmoid, tanh
        The tables from int32 Q27 to int32 Q31.
    out
        o*tanh(c) in Q30 -> output.
    forward
        Whether time runs from 0 on; otherwise from a sample's last step to 0.
    y
        [N, T, H], filled at every step that a sample has: the output, at the output's scale.
    h
        [N, H] in y's type: the state to begin with, and in the end the last one.
    c
        int64 [N, H] in Q15: the cell to begin with, and in the end the last one.
    wide
        Whether f*c keeps its width ("wide") or is cut to 32 bits ("q27").
    """
    samples, _, units = y.shape
    own = np.empty((samples, 4 * units), np.int32)
    for step in range(lengths.max() if samples else 0):
        products(h, dense, late, plain, own)
        for n in range(samples):
            if step >= lengths[n]:
                continue
            t = step if forward else lengths[n] - 1 - step
            a, b, state = sums[n, t], own[n], h[n]
            for u in range(units):
                i = rsh(follow(sigmoid, sat(a[u] + b[u], 32)), 16)
                f = rsh(follow(sigmoid, sat(a[units + u] + b[units + u], 32)), 16)
                g = rsh(follow(tanh, sat(a[2 * units + u] + b[2 * units + u], 32)), 16)
                o = rsh(follow(sigmoid, sat(a[3 * units + u] + b[3 * units + u], 32)), 16)
                kept = f * c[n, u]
                cell = rsh((kept if wide else sat(kept, 32)) + i * g, 3)
                c[n, u] = sat(rsh(cell, 12), 32)
                state[u] = apply(out, o * rsh(follow(tanh, sat(cell, 32)), 16))
                y[n, t, u] = state[u]


@jit
def _q11(
    sums: Array,
    lengths: Array,
    dense: Any,
    late: Any,
    plain: Any,
    sigmoid: Curve,
    tanh: Curve,
    out: Form,
    forward: bool,
    y: Array,
    h: Array,
    c: Array,
    wide: bool,
) -> None:
    """Walk through all steps with sums in Q11: "q11".

    Parameters
    ----------
    sums
        int32 [N, T, 4H], Q11: the inputs' sums a, in the gate order i, f, g, o.
    lengths
        int64 [N], 0 to T: how many steps each sample has.
    dense, late, plain
        The states' sums b, see `recurrent.products`: weights [4H, H], result int32 in Q11.
    sigmoid, tanh
        The tables from int16 Q11 to int8 Q7.
    out
        o*tanh(c) in Q14 -> output.
    forward
        Whether time runs from 0 on; otherwise from a sample's last step to 0.
    y
        [N, T, H], filled at every step that a sample has: the output, at the output's scale.
    h
        [N, H] in y's type: the state to begin with, and in the end the last one.
    c
        int64 [N, H] in Q7, of 16 bits: the cell to begin with, and in the end the last one.
    wide
        Not used; here so that both loops are called alike.
    """
    samples, _, units = y.shape
    own = np.empty((samples, 4 * units), np.int32)
    for step in range(lengths.max() if samples else 0):
        products(h, dense, late, plain, own)
        for n in range(samples):
            if step >= lengths[n]:
                continue
            t = step if forward else lengths[n] - 1 - step
            a, b, state = sums[n, t], own[n], h[n]
            for u in range(units):
                i = follow(sigmoid, sat(a[u] + b[u], 16))
                f = follow(sigmoid, sat(a[units + u] + b[units + u], 16))
                g = follow(tanh, sat(a[2 * units + u] + b[2 * units + u], 16))
                o = follow(sigmoid, sat(a[3 * units + u] + b[3 * units + u], 16))
                cell = sat(f * c[n, u] + i * g, 32)
                c[n, u] = sat(rsh(cell, 7), 16)
                state[u] = apply(out, o * follow(tanh, sat(rsh(cell, 3), 16)))
                y[n, t, u] = state[u]


@dataclass(frozen=True, eq=False)
class Lstm(Recurrent):
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

    def stepper(self) -> Any:
        """Return the loop of `arithmetic` with its tables and weights."""
        fine, wide = self.arithmetic != "q11", self.arithmetic == "wide"
        kernel, bits = (_q27, 32) if fine else (_q11, 8)
        sigmoid, tanh = (piecewise(name, self.table).curve(bits) for name in ("sigmoid", "tanh"))
        hidden = self.hidden_sums()
        out = self.rescale_o.within(1 << 31)

        def step(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            kernel(sums, lengths, *hidden.arguments(), sigmoid, tanh, out, self.forward, y, h, c, wide)
            return [h[:, None], _held(c, fine)[:, None]]

        return step

    @classmethod
    def output(cls, arithmetic: str, ratio: float, bits: int) -> Rescale:
        """Return the rescaling of o * tanh(c) to a state at `ratio` counts per unit."""
        return Rescale.from_ratio(ratio * 2.0 ** -cls.formats[arithmetic][1], bits)


def _held(c: np.ndarray, fine: bool) -> np.ndarray:
    """Return the cells [N, H] as the int32 tensor holds them."""
    if fine:
        return c.astype(np.int32)
    packed = np.zeros((len(c), 2 * c.shape[1]), np.int16)
    packed[:, : c.shape[1]] = c
    return packed.view(np.int32)
