"""What the steps of recurrent layers in LLVM's language share: loops, curves and saturation.

`StepEmitter` emits a function that computes the states of all samples, a vector of units at a time;
subclasses emit the arithmetic. Nothing is stored between the gate sums and the results. All
arguments are 64-bit integers, some of them addresses:

    input_sums, state_sums    int32 [N, G*H]: the gate sums of inputs and states
    states, cells             [N, H] in the state's type, int32 [N, H]: changed in place
    lengths, step             int64 [N]; samples whose length is `step` or less are left as they are
    samples, units            N and H
    sigmoid, tanh             tables of `_vector_curve.pack_curve`
    form                      stages of rescales, see `_register_tile`

Must not know: records, layers.
"""

from __future__ import annotations

from typing import Any, ClassVar

from llvmlite import ir

from simulator.instruction_sets import InstructionSet
from simulator.kernels.loops._register_tile import DWORD, INDEX, TileIrWriter, TileShape
from simulator.kernels.loops._short_curve import ShortCurveKind
from simulator.kernels.loops._vector_curve import CurveEmitter, CurveKind

__all__ = ["ARGUMENTS", "StepEmitter"]

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


class StepEmitter:
    """Emits the loops over samples and vectors of units; subclasses define `emit_units`.

    Up to one vector is read after the end of a row of sums or states.

    Class attribute `curve_emitter` is the class of the functions' emitters, `vectors` the number of
    vectors of 32-bit lanes that `emit_units` computes.

    Attributes
    ----------
    writer
        Writer of the function.
    sigmoid, tanh
        Emitters of the gates' functions on vectors of 32-bit lanes.
    form
        Values of the stages of the rescales, see `TileIrWriter.load_form`.
    """

    curve_emitter: ClassVar[Any] = CurveEmitter
    vectors: ClassVar[int] = 1

    def __init__(
        self,
        instructions: InstructionSet,
        sigmoid: CurveKind | ShortCurveKind,
        tanh: CurveKind | ShortCurveKind,
        stages: tuple[str, ...],
        bits: int,
    ) -> None:
        """Start the function: emit the loads of the tables and of the constants of rescales.

        `stages` are those of the rescales, `bits` is the width of the state.
        """
        shape = TileShape("pairs", False, 1, 1, stages, bits)
        self.writer = TileIrWriter(instructions, ARGUMENTS, shape)
        arguments = self.writer.arguments
        self.sigmoid = self.curve_emitter(self.writer, arguments["sigmoid"], sigmoid)
        self.tanh = self.curve_emitter(self.writer, arguments["tanh"], tanh)
        self.form = self.writer.load_form()

    def emit(self) -> str:
        """Emit the function and return the LLVM module as text."""
        writer, b, a = self.writer, self.writer.b, self.writer.arguments
        with writer.loop(a["samples"], 1) as sample:
            length = writer.load(writer.element_address(a["lengths"], sample, 8), INDEX)
            with b.if_then(b.icmp_signed("<", a["step"], length), likely=True):
                first = b.mul(sample, a["units"])
                with writer.loop(a["units"], self.vectors * writer.target.lanes) as unit:
                    self.emit_units(first, unit)
        b.ret_void()
        return str(writer.module)

    def emit_units(self, first: Any, unit: Any) -> None:
        """Emit a vector of units from index `unit` on; `first` is the sample's first in a state.

        This base raises NotImplementedError; subclasses define it.
        """
        raise NotImplementedError

    def list_gate_starts(self, first: Any, unit: Any, gates: int) -> list[Any]:
        """Emit the indices of a vector's first element in the sums of each of `gates` gates."""
        b = self.writer.b
        starts = [b.add(b.mul(first, ir.Constant(INDEX, gates)), unit)]
        while len(starts) < gates:
            starts.append(b.add(starts[-1], self.writer.arguments["units"]))
        return starts

    def load_sum(self, name: str, index: Any) -> Any:
        """Emit the load of int32 sums, of argument `name`, from `index` on; return it."""
        address = self.writer.element_address(self.writer.arguments[name], index, 4)
        return self.writer.load(address, self.writer.vector)

    def emit_gate_sum(self, index: Any, bits: int) -> Any:
        """Emit inputs' plus states' gate sums from `index` on, saturated to `bits` bits."""
        terms = [self.load_sum(name, index) for name in ("input_sums", "state_sums")]
        return self.saturate(self.writer.add_saturated(*terms), bits)

    def store_units(self, value: Any, name: str, index: Any, remaining: Any) -> None:
        """Emit the store of a vector of `remaining` units to argument `name` from `index` on."""
        size = value.type.element.width // 8
        address = self.writer.element_address(self.writer.arguments[name], index, size)
        pointer = self.writer.b.inttoptr(address, value.type.as_pointer())
        self.writer.store_lanes(value, pointer, remaining)

    def saturate(self, x: Any, bits: int) -> Any:
        """Emit the int32 vector x saturated to `bits` bits; return it."""
        if bits == 32:
            return x
        top = 1 << (bits - 1)
        low, high = (self.writer.constant(v, DWORD) for v in (-top, top - 1))
        return self.writer.clamp(x, low, high)
