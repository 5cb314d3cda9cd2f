"""Long short-term memory (LSTM), gates i, f, g, o, in the arithmetics of chips and a wide one.

    s = sat(a + b)                                   a, b: the gate sums of `layer`
    i, f, o = sigmoid(s), g = tanh(s)
    c = f*c + i*g                                    h = o*tanh(c)

========  =====================================  =========================================
          "q27" (arcs, venusA)                    "q11" (venus)
========  =====================================  =========================================
s         Q27, 32 bits                           Q11, 16 bits
gates     Q31, then Q15                          Q7, 8 bits
f*c       Q30, saturated to 32 bits              Q14, the sum is saturated to 32 bits
c         Q27 for the tanh, stored in Q15        Q14, Q11 for the tanh, stored in Q7 (16 bits)
h         o*tanh(c) in Q30 -> output             Q14 -> output
========  =====================================  =========================================

"wide" (generic) is "q27" without the saturation of f*c: a cell reaches 2^16, not 2. The tanh reads
it saturated to 32 bits of Q27.

Later executors of venus have sums in Q11 like "q11", but gates in Q15 and f*c + i*g in Q30, where
both products and their sum are saturated to 32 bits. The tanh reads it in Q11 of 16 bits; the cell
is stored in Q15, in 16 bits ("q15": it stays within +-1) or in 32 ("q15_wide").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import (
    Rescale,
    RescaleForm,
    ShiftForm,
    apply_rescale,
    round_shift_right,
    saturate,
)
from simulator.kernel import TensorSpec
from simulator.kernels.loops._conv_simd import active_instruction_set
from simulator.kernels.loops._short_curve import pack_short_curve
from simulator.kernels.loops._vector_curve import (
    Curve,
    evaluate_curve_rows,
    make_curve,
)
from simulator.kernels.recurrent._sequence_loop import (
    CompiledRecurrentKernel,
    add_saturated,
    make_line_scratch,
    unpack_step,
    view_lines,
)
from simulator.kernels.recurrent._vector_cell import make_vector_cell
from simulator.kernels.recurrent._vector_lstm import write_lstm_ir, write_short_lstm_ir
from simulator.kernels.recurrent.layer import compute_gate_sums
from simulator.piecewise import load_piecewise

__all__ = ["Lstm"]


@register_inline
def _compute_gates(cell: Any, a: Any, h: Any, bits: Any) -> Any:
    """Return the gates, int32 [N, 4H + spare], of input sums a and states h.

    The gates are i, f, g, o: the sigmoid, of g the tanh, of a plus the sums of h, saturated to
    `bits` bits. a : int32 [N, 4H]. h : [N, H]. The result is scratch memory of `cell`.
    """
    samples, units = h.shape
    state_sums = view_lines(cell.state_sums, samples)
    sums, gates = view_lines(cell.sums, samples), view_lines(cell.gates, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], state_sums)
    for n in range(samples):
        add_saturated(a[n], state_sums[n], bits, sums[n])
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, gates)
    evaluate_curve_rows(cell.tanh, sums, 2 * units, units, gates)
    evaluate_curve_rows(cell.sigmoid, sums, 3 * units, units, gates)
    return gates


@register_inline
def _compute_output(cell: Any, gates: Any, inner: Any, h: Any, lengths: Any, step: Any) -> Any:
    """Fill h with o * tanh(inner), rescaled, for the samples with step < lengths.

    gates : int32 [N, 4H + spare] in the order i, f, g, o. inner : int32 [N, H + spare], the input
    of tanh. h : [N, H]; other samples keep their h.
    """
    samples, units = h.shape
    outer = view_lines(cell.outer, samples)
    evaluate_curve_rows(cell.tanh, inner, 0, units, outer)
    for n in range(samples):
        o, curve, state = gates[n, 3 * units :], outer[n], h[n]
        for u in range(units if step < lengths[n] else 0):
            state[u] = apply_rescale(cell.out, o[u] * curve[u])


@jit
def _q27_step(cell: Any, memory: Any) -> None:
    """Compute a step of "q27" or "wide": sums in Q27, gates rounded to Q15, c in Q15 of 32 bits.

    c = f * c + i * g, h = out(o * tanh(c)), where tanh reads c in Q27 before it is rounded to Q15.
    h and c, views of `memory`, change in place, unless the length of a sample is reached; gate sums
    of the inputs are read from `memory`. Only "q27" saturates f * c to 32 bits. cell : a
    `_Q27Cell`.
    """
    a, h, c, lengths, step = unpack_step(memory)
    samples, units = h.shape
    gates, inner = _compute_gates(cell, a, h, 32), view_lines(cell.inner, samples)
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            retained = np.int64(f[u]) * cells[u]
            wide = round_shift_right(
                (retained if cell.wide else saturate(retained, 32)) + np.int64(i[u]) * g[u], 3
            )
            cells[u] = saturate(round_shift_right(wide, 12), 32)
            line[u] = saturate(wide, 32)
    _compute_output(cell, gates, inner, h, lengths, step)


@jit
def _q11_step(cell: Any, memory: Any) -> None:
    """Compute a step of "q11": sums in Q11, gates in Q7, c in Q7 of 16 bits.

    c = f * c + i * g, h = out(o * tanh(c)), where tanh reads c in Q11 before it is rounded to Q7. h
    and c, views of `memory`, change in place, unless the length of a sample is reached; gate sums
    of the inputs are read from `memory`. cell : a `_Q11Cell`.
    """
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


@jit
def _q15_step(cell: Any, memory: Any) -> None:
    """Compute a step of "q15" or "q15_wide": sums in Q11, gates in Q15, c in Q15.

    c = f * c + i * g, h = out(o * tanh(c)), where tanh reads c in Q11 before it is rounded to Q15.
    Products and their sum are saturated to 32 bits; c to 16 bits, with `cell.wide` to 32. h and c,
    views of `memory`, change in place, unless the length of a sample is reached; gate sums of the
    inputs are read from `memory`. cell : a `_Q15Cell`.
    """
    a, h, c, lengths, step = unpack_step(memory)
    samples, units = h.shape
    gates, inner = _compute_gates(cell, a, h, 16), view_lines(cell.inner, samples)
    cell_bits = 32 if cell.wide else 16
    for n in range(samples):
        i, f, g = gates[n, :units], gates[n, units : 2 * units], gates[n, 2 * units : 3 * units]
        cells, line = c[n], inner[n]
        for u in range(units if step < lengths[n] else 0):
            retained = saturate(np.int64(f[u]) * cells[u], 32)
            total = saturate(retained + saturate(np.int64(i[u]) * g[u], 32), 32)
            cells[u] = saturate(round_shift_right(total, 15), cell_bits)
            line[u] = saturate(round_shift_right(total, 19), 16)
    _compute_output(cell, gates, inner, h, lengths, step)


class _Q27Cell(NamedTuple):
    """Constants and scratch memory of a step of "q27" and "wide"."""

    weights: Any  # `words` and `plain` of the states' sums, see `compute_gate_sums`; int32 Q27
    sigmoid: Curve  # int32 Q27 -> Q31, rounded to Q15
    tanh: Curve
    out: RescaleForm  # o*tanh(c) in Q30 -> output
    wide: bool  # whether f*c is not saturated to 32 bits
    state_sums: Any  # `make_line_scratch` of 4H without spare elements: the states' sums
    sums: Any  # `make_line_scratch` of 4H
    gates: Any  # `make_line_scratch` of 4H
    inner: Any  # `make_line_scratch` of H
    outer: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of an LSTM step with sums in Q27."""
        return _q27_step


class _Q11Cell(NamedTuple):
    """Constants and scratch memory of an LSTM step with sums in Q11 and gates in Q7.

    The fields are those of `_Q27Cell`, in these formats.
    """

    weights: Any  # result int32 in Q11
    sigmoid: Curve  # int16 Q11 -> Q7
    tanh: Curve
    out: RescaleForm  # o*tanh(c) in Q14 -> output
    wide: bool  # unused
    state_sums: Any
    sums: Any
    gates: Any
    inner: Any
    outer: Any

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of an LSTM step with sums in Q11."""
        return _q11_step


class _Q15Cell(NamedTuple):
    """Constants and scratch memory of an LSTM step with sums in Q11 and gates in Q15.

    The fields are those of `_Q27Cell`, in these formats.
    """

    weights: Any  # result int32 in Q11
    sigmoid: Curve  # int16 Q11 -> Q15
    tanh: Curve
    out: RescaleForm  # o*tanh(c) in Q30 -> output
    wide: bool  # whether cells have 32 bits, not 16
    state_sums: Any
    sums: Any
    gates: Any
    inner: Any
    outer: Any

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of an LSTM step with gates in Q15."""
        return _q15_step


#: Arithmetic -> (constants of a step, width of table values, right shift after the table).
_CELLS: dict[str, tuple[Any, int, int]] = {
    "q27": (_Q27Cell, 32, 16),
    "wide": (_Q27Cell, 32, 16),
    "q11": (_Q11Cell, 8, 0),
    "q15": (_Q15Cell, 16, 0),
    "q15_wide": (_Q15Cell, 16, 0),
}


@dataclass(frozen=True, eq=False)
class Lstm(CompiledRecurrentKernel):
    """LSTM layer with outputs sequence, final state and final cell.

    The cell is int32: Q15 for "q27", "wide" and "q15_wide"; for "q11" (Q7) and "q15" (Q15) the H
    int16 values fill the first half of its bytes, and the remaining bytes are 0.

    Parameters
    ----------
    arithmetic
        "q27", "wide", "q11", "q15" or "q15_wide".
    table
        Chip whose sigmoid and tanh tables are used.
    """

    arithmetic: str = "q27"
    table: str = "arcs"

    gates: ClassVar[int] = 4

    #: Fractional bits: gate sums, o * tanh(c).
    fraction_bits: ClassVar[dict[str, tuple[int, int]]] = {
        "q27": (27, 30),
        "wide": (27, 30),
        "q11": (11, 14),
        "q15": (11, 30),
        "q15_wide": (11, 30),
    }

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of final state and final cell (int32), each [samples, 1, units]."""
        return [
            *super().final_state_specs(samples),
            TensorSpec((samples, 1, self.units), np.dtype(np.int32)),
        ]

    @property
    def packs_cells(self) -> bool:
        """Whether output cells are packed int16, as "q11" and "q15" have them."""
        return self.arithmetic in ("q11", "q15")

    def make_cell(self, largest_input: int = 1 << 31) -> Any:
        """Return the constants of an LSTM step, and scratch memory per sample of a group.

        A `VectorCell` where there is an instruction set that computes the tables and the output
        form of this layer; otherwise the class of its arithmetic.
        """
        _, bits, after = _CELLS[self.arithmetic]
        # |o * tanh(c)| <= 1, which is 2^14 in Q14 and 2^30 in Q30
        bound = 1 << self.fraction_bits[self.arithmetic][1]
        form = self.rescale_o.compile_for_bound(bound)
        if self._fits_short_lanes(form, largest_input):
            short_cell = make_vector_cell(
                self, write_short_lstm_ir, "q11", self.table, [(8, 0)] * 2, [form], pack_short_curve
            )
            if short_cell is not None:
                return short_cell
        vector_cell = make_vector_cell(
            self, write_lstm_ir, self.arithmetic, self.table, [(bits, after)] * 2, [form]
        )
        return vector_cell or self._make_scalar_cell()

    def _fits_short_lanes(self, form: RescaleForm, largest_input: int) -> bool:
        """Whether `write_short_lstm_ir` computes this layer, whose rescale of the state is `form`.

        Inputs are |x| <= `largest_input`. Cells that start at 0 have 16 bits, as f is below 1.
        """
        instructions = active_instruction_set()
        if self.arithmetic != "q11" or instructions is None or not instructions.has_word_lanes:
            return False
        if "c" in self.state_inputs or "c" in self.constant_states:
            return False
        if not isinstance(form, ShiftForm) or not 0 <= form.half < 1 << 14 or form.shift > 15:
            return False
        has_int8_states = bool(self.rescale_o.dtype == np.int8)
        return has_int8_states and self.bound_gate_sums(largest_input) < 1 << 31

    def _make_scalar_cell(self) -> _Q27Cell | _Q11Cell | _Q15Cell:
        """Return the constants of a step in scalar code, and its scratch memory.

        Table values have 8 bits for "q11", 16 for "q15" and "q15_wide", else 32 rounded to 16.
        """
        kind, bits, after = _CELLS[self.arithmetic]
        sigmoid, tanh = (
            make_curve(load_piecewise(name, self.table), bits, after)
            for name in ("sigmoid", "tanh")
        )
        weights, units = self.make_hidden_sums().arguments(), self.units
        out = self.rescale_o.compile_for_bound(1 << 31)
        memory = (
            make_line_scratch(4 * units, 0),
            make_line_scratch(4 * units),
            make_line_scratch(4 * units),
            make_line_scratch(units),
            make_line_scratch(units),
        )
        is_wide = self.arithmetic.endswith("wide")
        cell: _Q27Cell | _Q11Cell | _Q15Cell = kind(weights, sigmoid, tanh, out, is_wide, *memory)
        return cell

    @classmethod
    def make_output_rescale(cls, arithmetic: str, ratio: float, bits: int) -> Rescale:
        """Return the rescale of o * tanh(c) to a signed state of `bits` bits.

        `ratio` is the number of integer steps per unit of the state; `arithmetic`, such as "q27",
        gives the fractional bits of the product.
        """
        return Rescale.from_ratio(ratio * 2.0 ** -cls.fraction_bits[arithmetic][1], bits)
