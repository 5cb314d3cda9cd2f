"""Long short-term memory (LSTM), gates i, f, g, o.

Two arithmetics of the chips, and one with more room for the cell.
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

"wide" (generic) is "q27" without the cut of f*c to 32 bits: a cell reaches 2^16, not 2. The tanh
reads it cut to 32 bits of Q27.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, round_shift_right, saturate
from simulator.kernel import TensorSpec
from simulator.kernels.loops._vector_curve import Curve, evaluate_curve_rows, make_curve
from simulator.kernels.recurrent._sequence_loop import (
    CompiledRecurrentKernel,
    add_saturated,
    make_line_scratch,
    unpack_step,
    view_lines,
)
from simulator.kernels.recurrent.layer import compute_gate_sums
from simulator.piecewise import load_piecewise

__all__ = ["Lstm"]


@register_inline
def _compute_gates(cell: Any, a: Any, h: Any, bits: Any) -> Any:
    """Return the gates int32 [N, 4H and more] of sums a and states h, the sums saturated to `bits` bits."""
    samples, units = h.shape
    own, sums, gates = (
        view_lines(cell.own, samples),
        view_lines(cell.sums, samples),
        view_lines(cell.gates, samples),
    )
    compute_gate_sums(h, cell.weights[0], cell.weights[1], own)
    for n in range(samples):
        add_saturated(a[n], own[n], bits, sums[n])
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, gates)
    evaluate_curve_rows(cell.tanh, sums, 2 * units, units, gates)
    evaluate_curve_rows(cell.sigmoid, sums, 3 * units, units, gates)
    return gates


@register_inline
def _compute_output(cell: Any, gates: Any, inner: Any, h: Any, lengths: Any, step: Any) -> Any:
    """Fill h with o * tanh(inner)."""
    samples, units = h.shape
    outer = view_lines(cell.outer, samples)
    evaluate_curve_rows(cell.tanh, inner, 0, units, outer)
    for n in range(samples):
        o, curve, state = gates[n, 3 * units :], outer[n], h[n]
        for u in range(units if step < lengths[n] else 0):
            state[u] = apply_rescale(cell.out, o[u] * curve[u])


@jit
def _q27_step(cell: Any, memory: Any) -> None:
    """Do a step of "q27" or "wide": sums in Q27, gates rounded to Q15, c in Q15."""
    a, h, c, lengths, step = unpack_step(memory)
    samples, units = h.shape
    gates, inner = _compute_gates(cell, a, h, 32), view_lines(cell.inner, samples)
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            kept = np.int64(f[u]) * cells[u]
            wide = round_shift_right(
                (kept if cell.wide else saturate(kept, 32)) + np.int64(i[u]) * g[u], 3
            )
            cells[u] = saturate(round_shift_right(wide, 12), 32)
            line[u] = saturate(wide, 32)
    _compute_output(cell, gates, inner, h, lengths, step)


@jit
def _q11_step(cell: Any, memory: Any) -> None:
    """Do a step of "q11": sums in Q11, gates in Q7, c in Q7 of 16 bits."""
    a, h, c, lengths, step = unpack_step(memory)
    samples, units = h.shape
    gates, inner = _compute_gates(cell, a, h, 16), view_lines(cell.inner, samples)
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            wide = saturate(np.int64(f[u]) * cells[u] + np.int64(i[u]) * g[u], 32)
            cells[u] = saturate(round_shift_right(wide, 7), 16)
            line[u] = saturate(round_shift_right(wide, 3), 16)
    _compute_output(cell, gates, inner, h, lengths, step)


class _Q27Cell(NamedTuple):
    """A step of "q27" and "wide"."""

    # `words` and `plain` of the states' sums, see `recurrent.products`; result int32 in Q27
    weights: Any
    sigmoid: Curve  # int32 Q27 -> Q31, rounded to Q15
    tanh: Curve
    out: RescaleForm  # o*tanh(c) in Q30 -> output
    wide: bool  # whether f*c keeps its width or is cut to 32 bits
    own: Any  # `make_line_scratch` of 4H without spare ones: the states' sums
    sums: Any  # `make_line_scratch` of 4H
    gates: Any  # `make_line_scratch` of 4H
    inner: Any  # `make_line_scratch` of H
    outer: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _q27_step


class _Q11Cell(NamedTuple):
    """A step of "q11"; members as of `_Q27Cell`."""

    weights: Any  # result int32 in Q11
    sigmoid: Curve  # int16 Q11 -> Q7
    tanh: Curve
    out: RescaleForm  # o*tanh(c) in Q14 -> output
    wide: bool  # not used
    own: Any
    sums: Any
    gates: Any
    inner: Any
    outer: Any

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _q11_step


@dataclass(frozen=True, eq=False)
class Lstm(CompiledRecurrentKernel):
    """Map x to the sequence, the last state and the last cell.

    The cell is int32: Q15 for "q27" and "wide"; for "q11" the H int16 values (Q7) fill the first
    half of its bytes, the rest is 0.

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
    fraction_bits: ClassVar[dict[str, tuple[int, int]]] = {
        "q27": (27, 30),
        "wide": (27, 30),
        "q11": (11, 14),
    }

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of the last state and of the last cell."""
        return [
            *super().final_state_specs(samples),
            TensorSpec((samples, 1, self.units), np.dtype(np.int32)),
        ]

    @property
    def packs_cells(self) -> bool:
        """Whether the cell has 16 bits."""
        return self.arithmetic == "q11"

    def make_cell(self) -> _Q27Cell | _Q11Cell:
        """Return the step of `arithmetic` with its tables and weights."""
        kind, bits, after = (_Q11Cell, 8, 0) if self.packs_cells else (_Q27Cell, 32, 16)
        sigmoid, tanh = (
            make_curve(load_piecewise(name, self.table), bits, after)
            for name in ("sigmoid", "tanh")
        )
        weights, out, units = (
            self.make_hidden_sums().arguments(),
            self.rescale_o.compile_for_bound(1 << 31),
            self.units,
        )
        memory = (
            make_line_scratch(4 * units, 0),
            make_line_scratch(4 * units),
            make_line_scratch(4 * units),
            make_line_scratch(units),
            make_line_scratch(units),
        )
        return kind(weights, sigmoid, tanh, out, self.arithmetic == "wide", *memory)

    @classmethod
    def make_output_rescale(cls, arithmetic: str, ratio: float, bits: int) -> Rescale:
        """Return the rescaling of o * tanh(c) to a state at `ratio` counts per unit."""
        return Rescale.from_ratio(ratio * 2.0 ** -cls.fraction_bits[arithmetic][1], bits)
