"""A step of an LSTM in one function: a vector of units from the gate sums to state and cell.

`write_lstm_ir` writes it in LLVM's language for one of the arithmetics of `lstm`, whose formulas it
follows. For arguments of the function see `_vector_step`; the form is that of o * tanh(c) -> state.

Must not know: records, layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from simulator.instruction_sets import InstructionSet
from simulator.kernels.loops._register_tile import INDEX
from simulator.kernels.loops._short_curve import ShortCurveEmitter, ShortCurveKind
from simulator.kernels.loops._vector_curve import CurveKind
from simulator.kernels.recurrent._vector_step import StepEmitter

__all__ = ["write_lstm_ir", "write_short_lstm_ir"]

_GATES = 4


def write_lstm_ir(
    instructions: InstructionSet,
    arithmetic: str,
    sigmoid: CurveKind,
    tanh: CurveKind,
    form: tuple[str, ...],
    bits: int,
) -> str:
    """Write the LLVM module of an LSTM step; the arguments are `_vector_step.ARGUMENTS`.

    Parameters
    ----------
    instructions
        The instruction set.
    arithmetic
        "q27", "wide", "q11", "q15" or "q15_wide".
    sigmoid, tanh
        Kinds of the gates' functions.
    form
        Stages of the form that gives the state, see `_register_tile`.
    bits
        Width of the state.

    Returns
    -------
    str
        Module whose function is `_register_tile.FUNCTION_NAME`.
    """
    return _LstmStep(instructions, arithmetic, sigmoid, tanh, form, bits).emit()


def write_short_lstm_ir(
    instructions: InstructionSet,
    arithmetic: str,
    sigmoid: ShortCurveKind,
    tanh: ShortCurveKind,
    form: tuple[str, ...],
    bits: int,
) -> str:
    """Write the LLVM module of an LSTM step of `arithmetic` "q11" in lanes of 16 bits.

    The other arguments are those of `write_lstm_ir`, the form is "shift". Cells have 16 bits, the
    gate sums of inputs and states fit 32 bits together, and o * tanh(c) plus the form's half fits
    16.
    """
    assert arithmetic == "q11"
    assert (form, bits) == (("shift",), 8)
    return _ShortLstmStep(instructions, sigmoid, tanh, form, bits).emit()


class _ShortLstmStep(StepEmitter):
    """Emits the step of "q11" in lanes of 16 bits.

    Vectors of 16-bit lanes have four lanes of either half of the units in turn, see
    `TileIrWriter.pack_words`; those of 32-bit lanes are the two halves.
    """

    curve_emitter = ShortCurveEmitter
    vectors = 2

    def emit_units(self, first: Any, unit: Any) -> None:
        """Emit two vectors of units from index `unit` on; see `_LstmStep.emit_units`.

        f is at most 127, so that the cell keeps within 16 bits.
        """
        writer, b, a = self.writer, self.writer.b, self.writer.arguments
        lanes = ir.Constant(INDEX, writer.target.lanes)
        sums = []
        for start in self.list_gate_starts(first, unit, _GATES):
            halves = []
            for index in (start, b.add(start, lanes)):
                terms = [self.load_sum(name, index) for name in ("input_sums", "state_sums")]
                halves.append(b.add(*terms))
            sums.append(writer.pack_words(*halves))
        i, f, o = (self.sigmoid(sums[gate]) for gate in (0, 1, 3))
        g = self.tanh(sums[2])
        index, remaining = b.add(first, unit), b.sub(a["units"], unit)
        indices = index, b.add(index, lanes)
        cell = writer.pack_words(*(self.load_sum("cells", position) for position in indices))
        totals = writer.add_word_products((f, i), (cell, g))
        for position, total, count in zip(
            indices, totals, (remaining, b.sub(remaining, lanes)), strict=True
        ):
            self.store_units(writer.round_half_up(total, 7), "cells", position, count)
        inner = writer.pack_words(*(writer.round_half_up(total, 3) for total in totals))
        product = b.mul(o, self.tanh(inner))
        self._store_states(product, index, remaining)

    def _store_states(self, product: Any, index: Any, remaining: Any) -> None:
        """Emit the rescale of o * tanh(c), and the stores of `remaining` states from `index` on."""
        writer, b, lanes = self.writer, self.writer.b, self.writer.target.lanes
        half, shift, low, high = (
            writer.narrow_lanes(self.form[0][name]) for name in ("half", "shift", "low", "high")
        )
        states = writer.clamp(b.ashr(b.add(product, half), shift), low, high)
        order = [lane // 4 % 2 * 8 + lane // 8 * 4 + lane % 4 for lane in range(2 * lanes)]
        places = ir.VectorType(ir.IntType(32), 2 * lanes)
        states = b.shuffle_vector(states, states, ir.Constant(places, order))
        states = b.trunc(states, ir.VectorType(ir.IntType(8), 2 * lanes))
        address = writer.element_address(writer.arguments["states"], index, 1)
        is_full = b.icmp_signed(">=", remaining, ir.Constant(INDEX, 2 * lanes))
        with b.if_else(is_full, likely=True) as (full, partial):
            with full:
                b.store(states, b.inttoptr(address, states.type.as_pointer())).align = 1
            with partial:
                for first in (0, lanes):
                    chosen = list(range(first, first + lanes))
                    part_places = ir.VectorType(ir.IntType(32), lanes)
                    part = b.shuffle_vector(states, states, ir.Constant(part_places, chosen))
                    offset = ir.Constant(INDEX, first)
                    position, count = b.add(index, offset), b.sub(remaining, offset)
                    self.store_units(part, "states", position, count)


class _LstmStep(StepEmitter):
    """Emits the step of one arithmetic."""

    def __init__(
        self,
        instructions: InstructionSet,
        arithmetic: str,
        sigmoid: CurveKind,
        tanh: CurveKind,
        form: tuple[str, ...],
        bits: int,
    ) -> None:
        """Start the function of the step; the arguments are those of `write_lstm_ir`."""
        super().__init__(instructions, sigmoid, tanh, form, bits)
        self._is_wide = arithmetic.endswith("wide")
        self._sum_bits = 32 if arithmetic in ("q27", "wide") else 16
        self._update_cell: Callable[[Any, Any, Any, Any], tuple[Any, Any]] = {
            "q27": self._update_q27_cell,
            "wide": self._update_q27_cell,
            "q11": self._update_q11_cell,
            "q15": self._update_q15_cell,
            "q15_wide": self._update_q15_cell,
        }[arithmetic]

    def emit_units(self, first: Any, unit: Any) -> None:
        """Emit a vector of units from index `unit` on; `first` is the sample's first in a state."""
        writer, b, a = self.writer, self.writer.b, self.writer.arguments
        starts = self.list_gate_starts(first, unit, _GATES)
        sums = [self.emit_gate_sum(start, self._sum_bits) for start in starts]
        i, f, g, o = (
            self.sigmoid(sums[0]),
            self.sigmoid(sums[1]),
            self.tanh(sums[2]),
            self.sigmoid(sums[3]),
        )
        index, remaining = b.add(first, unit), b.sub(a["units"], unit)
        cell, inner = self._update_cell(f, self.load_sum("cells", index), i, g)
        self.store_units(cell, "cells", index, remaining)
        state = writer.emit_rescale(b.mul(o, self.tanh(inner)), self.form)
        self.store_units(state, "states", index, remaining)

    def _update_q27_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q27" and "wide"; return the cell in Q15, and in Q27."""
        writer = self.writer
        retained = writer.multiply(f, cell)
        if not self._is_wide:
            retained = writer.multiply(writer.saturate_products(retained), writer.constant(1))
        total = writer.add_products(retained, writer.multiply(i, g))
        # both shifts round: (((t + 4) >> 3) + 2^11) >> 12 = (t + 4 + 2^14) >> 15
        cell = writer.saturate_products(total, 15, 4 + (1 << 14))
        return cell, writer.saturate_products(total, 3, 4)

    def _update_q11_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q11"; return the cell in Q7, and in Q11."""
        writer = self.writer
        products = writer.add_products(writer.multiply(f, cell), writer.multiply(i, g))
        total = writer.saturate_products(products)
        cell, inner = (writer.round_shift_right(total, shift) for shift in (7, 3))
        return self.saturate(cell, 16), self.saturate(inner, 16)

    def _update_q15_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q15" and "q15_wide"; return the cell in Q15, and in Q11.

        Gates have 16 bits, and an initial cell may have 32.
        """
        writer = self.writer
        retained = writer.saturate_products(writer.multiply(f, cell))
        total = writer.add_saturated(retained, writer.b.mul(i, g))
        cell, inner = (writer.round_shift_right(total, shift) for shift in (15, 19))
        return self.saturate(cell, 32 if self._is_wide else 16), inner  # of 13 bits
