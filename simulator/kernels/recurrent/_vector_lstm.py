"""A step of an LSTM in one function: a vector of units from the gate sums to state and cell.

`write_lstm_ir` writes it in LLVM's language for one of the arithmetics of `lstm`, whose formulas it
follows. Nothing is stored between the gate sums and the results. All arguments are 64-bit integers,
some of them addresses:

    input_sums, state_sums    int32 [N, 4H]: the gate sums of inputs and states
    states, cells             [N, H] in the state's type, int32 [N, H]: changed in place
    lengths, step             int64 [N]; samples whose length is `step` or less are left as they are
    samples, units            N and H
    sigmoid, tanh             tables of `_vector_curve.pack_curve`
    form                      of o * tanh(c) -> state, see `_register_tile`

Must not know: records, layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from simulator.instruction_sets import InstructionSet
from simulator.kernels.loops._register_tile import DWORD, INDEX, TileIrWriter, TileShape
from simulator.kernels.loops._vector_curve import CurveEmitter, CurveKind

__all__ = ["ARGUMENTS", "write_lstm_ir"]

ARGUMENTS = (
    "input_sums",
    "state_sums",
    "states",
    "cells",
    "lengths",
    "step",
    "samples",
    "units",
    "sigmoid",
    "tanh",
    "form",
)
_GATES = 4
_MAX_INT32 = (1 << 31) - 1


def write_lstm_ir(
    instructions: InstructionSet,
    arithmetic: str,
    sigmoid: CurveKind,
    tanh: CurveKind,
    form: tuple[str, ...],
    bits: int,
) -> str:
    """Write the LLVM module of an LSTM step; the arguments of its function are `ARGUMENTS`.

    Up to one vector is read after the end of a row of sums.

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
    shape = TileShape("pairs", False, 1, 1, form, bits)
    writer = TileIrWriter(instructions, ARGUMENTS, shape)
    _LstmStep(writer, arithmetic, sigmoid, tanh).emit()
    return str(writer.module)


class _LstmStep:
    """Emits the loops over samples and vectors of units of one arithmetic."""

    def __init__(
        self, writer: TileIrWriter, arithmetic: str, sigmoid: CurveKind, tanh: CurveKind
    ) -> None:
        """Emit the loads of the tables and of the form's constants."""
        self._writer, self._is_wide = writer, arithmetic.endswith("wide")
        self._sum_bits = 32 if arithmetic in ("q27", "wide") else 16
        self._update_cell: Callable[[Any, Any, Any, Any], tuple[Any, Any]] = {
            "q27": self._update_q27_cell,
            "wide": self._update_q27_cell,
            "q11": self._update_q11_cell,
            "q15": self._update_q15_cell,
            "q15_wide": self._update_q15_cell,
        }[arithmetic]
        self._sigmoid = CurveEmitter(writer, writer.arguments["sigmoid"], sigmoid)
        self._tanh = CurveEmitter(writer, writer.arguments["tanh"], tanh)
        self._form = writer.load_form()

    def emit(self) -> None:
        """Emit the function."""
        writer, b, a = self._writer, self._writer.b, self._writer.arguments
        with writer.loop(a["samples"], 1) as sample:
            length = writer.load(writer.element_address(a["lengths"], sample, 8), INDEX)
            with b.if_then(b.icmp_signed("<", a["step"], length), likely=True):
                first = b.mul(sample, a["units"])
                with writer.loop(a["units"], writer.target.lanes) as unit:
                    self._emit_units(first, unit)
        b.ret_void()

    def _emit_units(self, first: Any, unit: Any) -> None:
        """Emit a vector of units from index `unit` on; `first` is the sample's first in a state."""
        writer, b, a = self._writer, self._writer.b, self._writer.arguments
        start = b.add(b.mul(first, ir.Constant(INDEX, _GATES)), unit)
        sums = []
        for _ in range(_GATES):
            sums.append(self._emit_gate_sum(start))
            start = b.add(start, a["units"])
        i, f, g, o = (
            self._sigmoid(sums[0]),
            self._sigmoid(sums[1]),
            self._tanh(sums[2]),
            self._sigmoid(sums[3]),
        )
        index, remaining = b.add(first, unit), b.sub(a["units"], unit)
        cell_address = writer.element_address(a["cells"], index, 4)
        cell, inner = self._update_cell(f, writer.load(cell_address, writer.vector), i, g)
        writer.store_lanes(cell, b.inttoptr(cell_address, cell.type.as_pointer()), remaining)
        state = writer.emit_rescale(b.mul(o, self._tanh(inner)), self._form)
        state_address = writer.element_address(a["states"], index, writer.shape.bits // 8)
        writer.store_lanes(state, b.inttoptr(state_address, state.type.as_pointer()), remaining)

    def _emit_gate_sum(self, index: Any) -> Any:
        """Emit the saturated sum of inputs' and states' gate sums from `index` on; return it."""
        writer = self._writer
        terms = [
            writer.load(writer.element_address(writer.arguments[name], index, 4), writer.vector)
            for name in ("input_sums", "state_sums")
        ]
        return self._saturate(writer.add_saturated(*terms), self._sum_bits)

    def _update_q27_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q27" and "wide"; return the cell in Q15, and in Q27."""
        writer, b = self._writer, self._writer.b
        retained = self._multiply(f, cell)
        if not self._is_wide:
            retained = b.sext(self._narrow(retained), retained.type)
        total = b.add(retained, self._multiply(i, g))
        inner = writer.round_shift_right(total, 3)
        return self._narrow(writer.round_shift_right(inner, 12)), self._narrow(inner)

    def _update_q11_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q11"; return the cell in Q7, and in Q11."""
        writer, b = self._writer, self._writer.b
        total = self._narrow(b.add(self._multiply(f, cell), self._multiply(i, g)))
        cell, inner = (writer.round_shift_right(total, shift) for shift in (7, 3))
        return self._saturate(cell, 16), self._saturate(inner, 16)

    def _update_q15_cell(self, f: Any, cell: Any, i: Any, g: Any) -> tuple[Any, Any]:
        """Emit c = f * c + i * g of "q15" and "q15_wide"; return the cell in Q15, and in Q11.

        Gates have 16 bits, and an initial cell may have 32.
        """
        writer, b = self._writer, self._writer.b
        retained = self._narrow(self._multiply(f, cell))
        total = writer.add_saturated(retained, b.mul(i, g))
        cell, inner = (writer.round_shift_right(total, shift) for shift in (15, 19))
        return self._saturate(cell, 32 if self._is_wide else 16), inner  # of 13 bits

    def _multiply(self, x: Any, y: Any) -> Any:
        """Emit the products of int32 vectors in 64 bits; return them."""
        wide = ir.VectorType(INDEX, self._writer.target.lanes)
        return self._writer.b.mul(self._writer.b.sext(x, wide), self._writer.b.sext(y, wide))

    def _narrow(self, x: Any) -> Any:
        """Emit the int64 vector x saturated to 32 bits; return it as int32."""
        low, high = (self._writer.constant(v, INDEX) for v in (-_MAX_INT32 - 1, _MAX_INT32))
        return self._writer.b.trunc(self._writer.clamp(x, low, high), self._writer.vector)

    def _saturate(self, x: Any, bits: int) -> Any:
        """Emit the int32 vector x saturated to `bits` bits; return it."""
        if bits == 32:
            return x
        top = 1 << (bits - 1)
        low, high = (self._writer.constant(v, DWORD) for v in (-top, top - 1))
        return self._writer.clamp(x, low, high)
