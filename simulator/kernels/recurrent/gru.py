"""Gated recurrent unit (GRU), with gates r, z, n.

As it is defined, and as the chips' executor computes it.
a are the sums of the input, b those of the state (`recurrent`), for the gate in question.

As it is defined (`Gru`): sums in Q27, gates in Q31 (or Q15, `gate_bits` 16):

    r, z = sigmoid(sat32(a + b))
    n    = tanh(sat32(a + r*b))                   reset after the product, or
    n    = tanh(sat32(a + b[r*h]))                `reset_after` False: before it, r*h rounded to the
    state's integers n    -> the state's scale                     h = sat(n + rsh(z*(h - n)))

As the executor computes it (`ExecutorGru`): sums in Q11, gates in Q7 (8 bits):

    r, z = sigmoid(sat16(a + b))                  `add_saturated` False: of a alone
    n    = tanh(sat16(a + rsh(r*b, 7)))
    h    = sat8(rescale(z*rsh(h, 1) + (128 - z)*n))

This is not a right GRU: h is halved, and time always runs forwards. Sums are never shifted left,
and some chips hand them to tables that take Q27.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, round_shift_right, saturate
from simulator.kernels.loops._vector_curve import Curve, evaluate_curve_rows, make_curve
from simulator.kernels.recurrent._sequence_loop import (
    CompiledRecurrentKernel,
    add_saturated,
    make_line_scratch,
    make_sample_scratch,
    unpack_step,
    view_lines,
)
from simulator.kernels.recurrent.layer import GateSums, compute_gate_sums
from simulator.piecewise import load_piecewise

__all__ = ["ExecutorGru", "Gru"]


@jit
def _executor_step(cell: Any, memory: Any) -> None:
    """Do a step as the executor does."""
    a, h, _, lengths, step = unpack_step(memory)
    samples, units = h.shape
    own, sums, rz = (
        view_lines(cell.own, samples),
        view_lines(cell.sums, samples),
        view_lines(cell.rz, samples),
    )
    inner, n = view_lines(cell.inner, samples), view_lines(cell.n, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], own)
    for k in range(samples):
        for u in range(0 if cell.joined else 2 * units):
            own[k, u] = 0
        add_saturated(a[k, : 2 * units], own[k], 16, sums[k])
    evaluate_curve_rows(cell.sigmoid, sums, 0, 2 * units, rz)
    for k in range(samples):
        given, b, r, line = a[k, 2 * units :], own[k, 2 * units :], rz[k], inner[k]
        for u in range(units):
            line[u] = saturate(given[u] + round_shift_right(np.int64(r[u]) * b[u], 7), 16)
    evaluate_curve_rows(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            state[u] = apply_rescale(
                cell.out, z[u] * round_shift_right(np.int64(state[u]), 1) + (128 - z[u]) * line[u]
            )


class _ExecutorCell(NamedTuple):
    """A step of the executor's unit."""

    # `words` and `plain` of the states' sums, see `recurrent.products`; result int32 in Q11
    weights: Any
    sigmoid: Curve  # the chip's tables with results of int8 Q7
    tanh: Curve
    out: RescaleForm  # the new state in Q14 -> output
    joined: bool  # whether r and z read the states' sums
    own: Any  # `make_line_scratch` of 3H without spare ones: those sums
    sums: Any  # `make_line_scratch` of 2H
    rz: Any  # `make_line_scratch` of 2H
    inner: Any  # `make_line_scratch` of H
    n: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _executor_step


@dataclass(frozen=True, eq=False)
class ExecutorGru(CompiledRecurrentKernel):
    """The unit as the chips' executor computes it, faults included.

    `rescale_o` takes Q14 to the state.

    Parameters
    ----------
    table
        The chip whose sigmoid and tanh are used.
    joined
        Whether the gates r and z read the state's sums; otherwise the input's alone.
    """

    table: str = "venus"
    uses_state_sums: bool = True

    gates: ClassVar[int] = 3

    def make_cell(self) -> _ExecutorCell:
        """Return the step with tables of 8 bits."""
        sigmoid, tanh = (
            make_curve(load_piecewise(name, self.table), 8) for name in ("sigmoid", "tanh")
        )
        weights, out, units = (
            self.make_hidden_sums().arguments(),
            self.rescale_o.compile_for_bound(1 << 16),
            self.units,
        )
        memory = (
            make_line_scratch(3 * units, 0),
            make_line_scratch(2 * units),
            make_line_scratch(2 * units),
            make_line_scratch(units),
            make_line_scratch(units),
        )
        return _ExecutorCell(weights, sigmoid, tanh, out, self.uses_state_sums, *memory)


@jit
def _defined_step(cell: Any, memory: Any) -> None:
    """Do a step as the unit is defined."""
    a, h, _, lengths, step = unpack_step(memory)
    samples, units = h.shape
    b, m, gated = (
        view_lines(cell.b, samples),
        view_lines(cell.m, samples),
        cell.gated.reshape((-1, units))[:samples],
    )
    sums, rz = view_lines(cell.sums, samples), view_lines(cell.rz, samples)
    inner, n = view_lines(cell.inner, samples), view_lines(cell.n, samples)
    compute_gate_sums(h, cell.weights[0], cell.weights[1], b)
    for k in range(samples):
        add_saturated(a[k, : 2 * units], b[k], 32, sums[k])
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
        given, r, own, line = a[k, 2 * units :], rz[k], m[k], inner[k]
        if cell.reset_after:
            for u in range(units):
                line[u] = saturate(
                    given[u] + round_shift_right(np.int64(r[u]) * own[u], cell.down), 32
                )
        else:
            add_saturated(given, own, 32, line)
    evaluate_curve_rows(cell.tanh, inner, 0, units, n)
    for k in range(samples):
        z, line, state = rz[k, units:], n[k], h[k]
        for u in range(units if step < lengths[k] else 0):
            new = np.int64(apply_rescale(cell.new, line[u]))
            state[u] = saturate(
                new + round_shift_right(z[u] * (state[u] - new), cell.down), cell.bits
            )


class _DefinedCell(NamedTuple):
    """A step of the unit as it is defined."""

    # `words` and `plain` of the states' sums of r and z, see `compute_gate_sums`; in int32 Q27
    weights: Any
    weights_n: Any  # the same for n
    sigmoid: Curve  # int32 Q27 -> Q31 or Q15
    tanh: Curve  # int32 Q27 -> Q31
    new: RescaleForm  # n in Q31 -> the state's scale
    down: int  # fractional bits of r and z
    reset_after: bool  # whether r multiplies the sums of n; otherwise the state that goes into them
    bits: int  # width of the state
    b: Any  # `make_line_scratch` of 2H without spare ones: the states' sums
    m: Any  # `make_line_scratch` of H without spare ones: those of n
    gated: Any  # [N, H] in the states' type: what n's sums read
    sums: Any  # `make_line_scratch` of 2H
    rz: Any  # `make_line_scratch` of 2H
    inner: Any  # `make_line_scratch` of H
    n: Any  # `make_line_scratch` of H

    @staticmethod
    def rule() -> Any:
        """Return the loop of a step."""
        return _defined_step


@dataclass(frozen=True, eq=False)
class Gru(CompiledRecurrentKernel):
    """The unit as it is defined; `rescale_o` takes n from Q31 to the state.

    Parameters
    ----------
    reset_after
        Whether the reset gate acts on the product with the weights (and its bias) or on the state
        before it.
    gate_bits
        Width of r and z: 32 (Q31) or 16 (Q15).
    table
        The chip whose sigmoid and tanh are used.
    """

    reset_after: bool = True
    gate_bits: int = 32
    table: str = "arcs"

    gates: ClassVar[int] = 3

    def make_cell(self) -> _DefinedCell:
        """Return the step with the weights of n apart.

        They may read another state than those of r and z.
        """
        sigmoid, tanh = (
            make_curve(load_piecewise("sigmoid", self.table), self.gate_bits),
            make_curve(load_piecewise("tanh", self.table), 32),
        )
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
            self.rescale_o.compile_for_bound(1 << 31),
            self.gate_bits - 1,
            self.reset_after,
            bits,
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
        """Return the rescaling of n to a state at `scale` counts per unit."""
        return Rescale.from_ratio(scale * 2.0**-31, bits)
