"""Gated recurrent unit (GRU), gates r, z, n: as defined, and as the chips' executors compute it.

a and b are the gate sums of the input and of the state (see `layer`) for the respective gate.

As defined (`Gru`): sums in Q27, gates in Q31 (or Q15 with `gate_bits` 16):

    r, z = sigmoid(sat32(a + b))
    n    = tanh(sat32(a + r*b))          `reset_after` True: r multiplies the product
    n    = tanh(sat32(a + b[r*h]))       False: r multiplies the state, r*h is rounded to its scale
    h    = sat(n + rsh(z*(h - n)))       n rescaled to the state's scale

As the executor computes it (`ExecutorGru`): sums in Q11, gates in Q7 (8 bits):

    r, z = sigmoid(sat16(a + b))         `uses_state_sums` False: sigmoid(sat16(a))
    n    = tanh(sat16(a + rsh(r*b, 7)))
    h    = sat8(rescale(z*rsh(h, 1) + (128 - z)*n))

This is not a correct GRU: h is halved, and time always runs forward. Sums are never shifted left,
and some chips pass them to tables for Q27.

Later executors of arcs and venusA compute `Gru` with an n that is not cut to the width of the state
(`saturates_candidate` False); that of venusA adds the sums of a gate at the finer of their scales
and shifts the result to Q27 (`sum_fraction_bits`). The later one of venus (`CandidateGru`) has sums
in Q11 and gates in Q15, and z weighs the candidate instead of the state:

    r, z = sigmoid(sat16(a + b))
    n    = tanh(sat16(sat16(a) + rsh(r*sat16(b), 15)))
    h    = sat(h + rescale(z*(n - h)))         n rescaled to the state's scale, not saturated
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, round_shift_right, saturate
from simulator.kernels.loops._common import max_magnitude
from simulator.kernels.loops._conv_simd import make_tile_form
from simulator.kernels.loops._vector_curve import Curve, evaluate_curve_rows, make_curve
from simulator.kernels.recurrent._sequence_loop import (
    CompiledRecurrentKernel,
    add_saturated,
    make_line_scratch,
    make_sample_scratch,
    unpack_step,
    view_lines,
)
from simulator.kernels.recurrent._vector_cell import VectorCell, make_vector_cell
from simulator.kernels.recurrent._vector_gru import (
    CandidateArithmetic,
    DefinedArithmetic,
    ExecutorArithmetic,
    write_gru_ir,
)
from simulator.kernels.recurrent.layer import GateSums, compute_gate_sums
from simulator.piecewise import load_piecewise

__all__ = ["CandidateGru", "ExecutorGru", "Gru"]


@jit
def _executor_step(cell: Any, memory: Any) -> None:
    """Compute a step as the executor does, and update the states h in place.

    With the sums a of the inputs and b of h: r, z = sigmoid(a + b), b being 0 there unless
    `cell.uses_state_sums`; n = tanh(a_n + (r * b_n >> 7)); h = out(z * (h >> 1) + (128 - z) * n).
    Gates are in Q7 of 8 bits; sums are saturated to 16 bits. Samples whose length is reached keep
    their h. cell : an `_ExecutorCell`; memory : holds a, h, the lengths and the index of the step.
    """
    a, h, _, lengths, step = unpack_step(memory)
    samples, units = h.shape
    state_sums = view_lines(cell.state_sums, samples)
    sums, rz = view_lines(cell.sums, samples), view_lines(cell.rz, samples)
    inner, n = view_lines(cell.inner, samples), view_lines(cell.n, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], state_sums)
    for k in range(samples):
        for u in range(0 if cell.uses_state_sums else 2 * units):
            state_sums[k, u] = 0
        add_saturated(a[k, : 2 * units], state_sums[k], 16, sums[k])
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        input_n, b, r, line = a[k, 2 * units :], state_sums[k, 2 * units :], rz[k], inner[k]
        for u in range(units):
            line[u] = saturate(input_n[u] + round_shift_right(np.int64(r[u]) * b[u], 7), 16)
    evaluate_curve_rows(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            state[u] = apply_rescale(
                cell.out, z[u] * round_shift_right(np.int64(state[u]), 1) + (128 - z[u]) * line[u]
            )


class _ExecutorCell(NamedTuple):
    """Constants and scratch memory of a step of the executor's unit."""

    weights: Any  # `words` and `plain` of the states' sums, see `compute_gate_sums`; int32 Q11
    sigmoid: Curve  # the chip's table with int8 Q7 results
    tanh: Curve
    out: RescaleForm  # the new state in Q14 -> output
    uses_state_sums: bool  # whether r and z read the states' sums
    state_sums: Any  # `make_line_scratch` of 3H without spare elements
    sums: Any  # `make_line_scratch` of 2H
    rz: Any  # `make_line_scratch` of 2H
    inner: Any  # `make_line_scratch` of H
    n: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of a step as the chips' executor computes it."""
        return _executor_step


@dataclass(frozen=True, eq=False)
class ExecutorGru(CompiledRecurrentKernel):
    """GRU layer as the chips' executor computes it, with its faults.

    The state is halved, h = z * (h / 2) + (1 - z) * n, and time always runs forward; sums are in
    Q11, gates in Q7. `rescale_o` converts the new state from Q14.

    Parameters
    ----------
    table
        Chip whose sigmoid and tanh tables are used.
    uses_state_sums
        Whether the gates r and z read the state's sums; otherwise only those of the input.
    """

    table: str = "venus"
    uses_state_sums: bool = True

    gates: ClassVar[int] = 3

    def make_cell(self, largest_input: int = 1 << 31) -> _ExecutorCell | VectorCell:
        """Return the constants of a GRU step of the executor, and scratch memory for a group.

        A `VectorCell` where there is an instruction set that computes the tables and the output
        form of this layer. `largest_input` is not used.
        """
        out = self.rescale_o.compile_for_bound(1 << 16)
        arithmetic = ExecutorArithmetic(self.uses_state_sums)
        vector_cell = make_vector_cell(
            self, write_gru_ir, arithmetic, self.table, [(8, 0)] * 2, [out]
        )
        return vector_cell or self._make_scalar_cell(out)

    def _make_scalar_cell(self, out: RescaleForm) -> _ExecutorCell:
        """Return the constants of a step in scalar code, and its scratch memory.

        Constants are packed hidden weights, 8-bit sigmoid and tanh of `table`, and the form `out`
        of the new state.
        """
        sigmoid, tanh = (
            make_curve(load_piecewise(name, self.table), 8) for name in ("sigmoid", "tanh")
        )
        weights, units = self.make_hidden_sums().arguments(), self.units
        memory = (
            make_line_scratch(3 * units, 0),
            make_line_scratch(2 * units),
            make_line_scratch(2 * units),
            make_line_scratch(units),
            make_line_scratch(units),
        )
        return _ExecutorCell(weights, sigmoid, tanh, out, self.uses_state_sums, *memory)


@register_inline
def _shift_saturated(line: Any, shift: Any) -> Any:
    """Shift the int32 elements of `line` right by `shift`, rounded half up, in place.

    A negative `shift` shifts left; results are saturated to 32 bits.
    """
    for u in range(line.size if shift else 0):
        line[u] = saturate(round_shift_right(np.int64(line[u]), shift), 32)


@jit
def _defined_step(cell: Any, memory: Any) -> None:  # noqa: C901 - one loop per gate
    """Compute a step as the unit is defined, and update the states h in place.

    With the sums a of the inputs and b of h: r, z = sigmoid(a + b); n = new(tanh(a_n + m)), where m
    are the sums of r * h, or with `cell.reset_after` r times the sums of h; h = n + z * (h - n),
    saturated to `cell.bits` bits. Gates have `cell.down` fractional bits, tanh 31; sums are
    saturated to 32 bits, and shifted right by `cell.sum_shift` to Q27 before the tables. Samples
    whose length is reached keep their h. cell : a `_DefinedCell`; memory : holds a, h, the lengths
    and the index of the step.
    """
    a, h, _, lengths, step = unpack_step(memory)
    samples, units = h.shape
    b, m = view_lines(cell.b, samples), view_lines(cell.m, samples)
    gated = view_lines(cell.gated, samples)
    sums, rz = view_lines(cell.sums, samples), view_lines(cell.rz, samples)
    inner, n = view_lines(cell.inner, samples), view_lines(cell.n, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], b)
    for k in range(samples):
        add_saturated(a[k, : 2 * units], b[k], 32, sums[k])
        _shift_saturated(sums[k, : 2 * units], cell.sum_shift)
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        r, state, line = rz[k], h[k], gated[k]
        for u in range(units):
            line[u] = (
                state[u]
                if cell.reset_after
                else round_shift_right(np.int64(r[u]) * state[u], cell.down)
            )
    compute_gate_sums(gated, cell.weights_n[0], cell.weights_n[1], m)
    for k in range(samples):
        input_n, r, state_n, line = a[k, 2 * units :], rz[k], m[k], inner[k]
        if cell.reset_after:
            for u in range(units):
                line[u] = saturate(
                    input_n[u] + round_shift_right(np.int64(r[u]) * state_n[u], cell.down), 32
                )
        else:
            add_saturated(input_n, state_n, 32, line)
        _shift_saturated(line[:units], cell.sum_shift)
    evaluate_curve_rows(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            new = np.int64(apply_rescale(cell.new, line[u]))
            state[u] = saturate(
                new + round_shift_right(z[u] * (state[u] - new), cell.down), cell.bits
            )


class _DefinedCell(NamedTuple):
    """Constants and scratch memory of a step of the unit as defined."""

    weights: Any  # `words` and `plain` of the states' sums of r and z, see `compute_gate_sums`
    weights_n: Any  # those of n; all sums are int32
    sigmoid: Curve  # int32 Q27 -> Q31 or Q15
    tanh: Curve  # int32 Q27 -> Q31
    new: RescaleForm  # n in Q31 -> the state's scale
    down: int  # fractional bits of r and z
    reset_after: bool  # whether r multiplies the sums of n; otherwise the state that they read
    bits: int  # width of the state
    sum_shift: int  # fractional bits of the sums beyond 27
    b: Any  # `make_line_scratch` of 2H without spare elements: the states' sums of r and z
    m: Any  # `make_line_scratch` of H without spare elements: those of n
    gated: Any  # [N, H] in the states' type: input of the sums of n
    sums: Any  # `make_line_scratch` of 2H
    rz: Any  # `make_line_scratch` of 2H
    inner: Any  # `make_line_scratch` of H
    n: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of a GRU step as the unit is defined."""
        return _defined_step


@dataclass(frozen=True, eq=False)
class Gru(CompiledRecurrentKernel):
    """GRU layer as defined; `rescale_o` converts n from Q31 to the state's scale.

    Parameters
    ----------
    reset_after
        Whether the reset gate multiplies the product with the weights (and its bias), or the state
        before it.
    gate_bits
        Width of r and z: 32 (Q31) or 16 (Q15).
    table
        Chip whose sigmoid and tanh tables are used.
    saturates_candidate
        Whether n is saturated to the width of the state.
    sum_fraction_bits
        Fractional bits of the gate sums, which are shifted to 27 for the tables.
    """

    reset_after: bool = True
    gate_bits: int = 32
    table: str = "arcs"
    saturates_candidate: bool = True
    sum_fraction_bits: int = 27

    gates: ClassVar[int] = 3

    def make_cell(self, largest_input: int = 1 << 31) -> _DefinedCell | VectorCell:
        """Return the constants of a GRU step as defined, and scratch memory per sample of a group.

        A `VectorCell` if r multiplies the sums of n, h - n fits 32 bits, and there is an
        instruction set that computes the tables, the shift of the sums and the rescale of n.
        `largest_input` is not used.
        """
        candidate_rescale = (
            self.rescale_o if self.saturates_candidate else replace(self.rescale_o, bits=32)
        )
        # vector code has n from -2^31 + 1 on, which must give what -2^31 gives
        is_symmetric = len(set(candidate_rescale([-1 << 31, 1 - (1 << 31)]).tolist())) == 1
        difference_bound = candidate_rescale.output_bound(1 << 31) + max_magnitude(
            self.rescale_o.dtype
        )
        fits_int32 = is_symmetric and difference_bound < 1 << 31
        sum_shift, vector_cell = self.sum_fraction_bits - 27, None
        if self.reset_after and fits_int32 and sum_shift >= 0:
            vector_cell = make_vector_cell(
                self,
                write_gru_ir,
                DefinedArithmetic(self.gate_bits - 1, sum_shift),
                self.table,
                [(self.gate_bits, 0), (32, 0)],
                [candidate_rescale.compile_for_bound((1 << 31) - 1)],
            )
        return vector_cell or self._make_scalar_cell(candidate_rescale)

    def _make_scalar_cell(self, candidate_rescale: Rescale) -> _DefinedCell:
        """Return the constants of a step in scalar code, and its scratch memory.

        The weights of n are separate, because they may read another state. Sigmoid values have
        `gate_bits` bits, tanh values 32; `candidate_rescale` converts these to the state's scale.
        """
        sigmoid = make_curve(load_piecewise("sigmoid", self.table), self.gate_bits)
        tanh = make_curve(load_piecewise("tanh", self.table), 32)
        units, kind, bits = self.units, self.rescale_o.dtype, self.rescale_o.bits
        gates, inner = (
            GateSums(self.weight_h[rows], self.bias_h[rows], kind, 1 << (bits - 1), self.rescale_h)
            for rows in (slice(2 * units), slice(2 * units, None))
        )
        return _DefinedCell(
            gates.arguments(),
            inner.arguments(),
            sigmoid,
            tanh,
            candidate_rescale.compile_for_bound(1 << 31),
            self.gate_bits - 1,
            self.reset_after,
            bits,
            self.sum_fraction_bits - 27,
            b=make_line_scratch(2 * units, 0),
            m=make_line_scratch(units, 0),
            gated=make_sample_scratch(units, kind),
            sums=make_line_scratch(2 * units),
            rz=make_line_scratch(2 * units),
            inner=make_line_scratch(units),
            n=make_line_scratch(units),
        )

    @classmethod
    def make_output_rescale(cls, scale: float, bits: int) -> Rescale:
        """Return the rescale of n (Q31) to a `bits`-bit state with `scale` integers per unit."""
        return Rescale.from_ratio(scale * 2.0**-31, bits)


@jit
def _candidate_step(cell: Any, memory: Any) -> None:
    """Compute a step in which z weighs the candidate, and update the states h in place.

    With the sums a of the inputs and b of h, in Q11: r, z = sigmoid(a + b); n = new(tanh(a_n + (r *
    b_n >> 15))); h = h + increment(z * (n - h)), saturated to `cell.bits` bits. Gates and tanh are
    in Q15; sums are saturated to 16 bits. Samples whose length is reached keep their h. cell : a
    `_CandidateCell`; memory : holds a, h, the lengths and the index of the step.
    """
    a, h, _, lengths, step = unpack_step(memory)
    samples, units = h.shape
    b, sums = view_lines(cell.b, samples), view_lines(cell.sums, samples)
    rz, inner = view_lines(cell.rz, samples), view_lines(cell.inner, samples)
    n = view_lines(cell.n, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], b)
    for k in range(samples):
        add_saturated(a[k, : 2 * units], b[k], 16, sums[k])
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        input_n, state_n, r, line = a[k, 2 * units :], b[k, 2 * units :], rz[k], inner[k]
        for u in range(units):
            reset = round_shift_right(np.int64(r[u]) * saturate(state_n[u], 16), 15)
            line[u] = saturate(saturate(input_n[u], 16) + reset, 16)
    evaluate_curve_rows(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            new = np.int64(apply_rescale(cell.new, line[u]))
            change = np.int64(apply_rescale(cell.increment, z[u] * (new - state[u])))
            state[u] = saturate(state[u] + change, cell.bits)


class _CandidateCell(NamedTuple):
    """Constants and scratch memory of a step of `CandidateGru`."""

    weights: Any  # `words` and `plain` of the states' sums, see `compute_gate_sums`; int32 Q11
    sigmoid: Curve  # int16 Q11 -> Q15
    tanh: Curve
    new: RescaleForm  # n in Q15 -> the state's scale
    increment: RescaleForm  # z * (n - h) -> output
    bits: int  # width of the state
    b: Any  # `make_line_scratch` of 3H without spare elements: the states' sums
    sums: Any  # `make_line_scratch` of 2H
    rz: Any  # `make_line_scratch` of 2H
    inner: Any  # `make_line_scratch` of H
    n: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the jitted function of a step in which z weighs the candidate."""
        return _candidate_step


@dataclass(frozen=True, eq=False)
class CandidateGru(CompiledRecurrentKernel):
    """GRU layer with h = h + z * (n - h), gate sums in Q11 and gates in Q15.

    Here z weighs the candidate n; as the unit is defined, z weighs the state. `rescale_o` converts
    n from Q15 to the state's scale.

    Parameters
    ----------
    table
        Chip whose sigmoid and tanh tables are used.
    increment_rescale
        z * (n - h), Q15 times the state's scale -> output. `None` keeps the state's scale.
    """

    table: str = "venus"
    increment_rescale: Rescale | None = None

    gates: ClassVar[int] = 3

    def make_cell(self, largest_input: int = 1 << 31) -> _CandidateCell | VectorCell:
        """Return the constants of a step, and scratch memory per sample of a group.

        A `VectorCell` where there is an instruction set that computes the tables and the rescales,
        and z * (n - h) fits 32 bits. `largest_input` is not used.
        """
        candidate_rescale = replace(self.rescale_o, bits=32)
        candidate = candidate_rescale.compile_for_bound(1 << 15)
        increment = self.increment_rescale or Rescale.from_shift(15, 32)
        # |z| <= 2^15 in Q15
        bound = (
            candidate_rescale.output_bound(1 << 15) + max_magnitude(self.rescale_o.dtype)
        ) << 15
        tile_form = make_tile_form(candidate, 32)
        vector_cell = None
        if tile_form is not None and bound < 1 << 31:
            vector_cell = make_vector_cell(
                self,
                write_gru_ir,
                CandidateArithmetic(len(tile_form[0])),
                self.table,
                [(16, 0)] * 2,
                [candidate, increment.compile_for_bound(bound)],
            )
        return vector_cell or self._make_scalar_cell(candidate, increment)

    def _make_scalar_cell(self, candidate: RescaleForm, increment: Rescale) -> _CandidateCell:
        """Return the constants of a step in scalar code, and its scratch memory.

        Constants are packed hidden weights, sigmoid and tanh of `table` with 16 bits, the form of n
        (`candidate`), which is not saturated to the width of the state, and that of `increment`, of
        z * (n - h).
        """
        sigmoid, tanh = (
            make_curve(load_piecewise(name, self.table), 16) for name in ("sigmoid", "tanh")
        )
        units, bits = self.units, self.rescale_o.bits
        return _CandidateCell(
            self.make_hidden_sums().arguments(),
            sigmoid,
            tanh,
            candidate,
            increment.compile_for_bound(1 << 48),
            bits,
            b=make_line_scratch(3 * units, 0),
            sums=make_line_scratch(2 * units),
            rz=make_line_scratch(2 * units),
            inner=make_line_scratch(units),
            n=make_line_scratch(units),
        )
