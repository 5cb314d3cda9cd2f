"""A step of a GRU in one function: a vector of units from the gate sums to the state.

`write_gru_ir` writes it in LLVM's language for one of the arithmetics of `gru`, whose formulas it
follows. For arguments of the function see `_vector_step`; `cells` is not used.

Must not know: records, layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from simulator.instruction_sets import InstructionSet
from simulator.kernels.loops._vector_curve import CurveKind
from simulator.kernels.recurrent._vector_step import StepEmitter

__all__ = ["CandidateArithmetic", "DefinedArithmetic", "ExecutorArithmetic", "write_gru_ir"]

_GATES = 3


class DefinedArithmetic(NamedTuple):
    """The unit as defined, r multiplying the sums of n; the stages of the form are those of n.

    gate_fraction_bits : of r and z. sum_shift : right shift of sums to Q27.
    """

    gate_fraction_bits: int
    sum_shift: int


class CandidateArithmetic(NamedTuple):
    """The unit whose z weighs the candidate.

    candidate_stages : number of the stages of the form that convert n to the state's scale; the
    others are those of the change of the state.
    """

    candidate_stages: int


class ExecutorArithmetic(NamedTuple):
    """The executor's unit; the stages of the form are those of the new state.

    uses_state_sums : whether r and z read the states' sums.
    """

    uses_state_sums: bool


def write_gru_ir(
    instructions: InstructionSet,
    arithmetic: DefinedArithmetic | CandidateArithmetic | ExecutorArithmetic,
    sigmoid: CurveKind,
    tanh: CurveKind,
    stages: tuple[str, ...],
    bits: int,
) -> str:
    """Write the LLVM module of a GRU step; the arguments are `_vector_step.ARGUMENTS`.

    Parameters
    ----------
    instructions
        The instruction set.
    arithmetic
        Arithmetic of the unit.
    sigmoid, tanh
        Kinds of the gates' functions.
    stages
        Stages of the rescales, see `_register_tile`.
    bits
        Width of the state.

    Returns
    -------
    str
        Module whose function is `_register_tile.FUNCTION_NAME`.
    """
    kind = _STEPS[type(arithmetic)]
    return kind(instructions, arithmetic, sigmoid, tanh, stages, bits).emit()


class _GruStep(StepEmitter):
    """Emits the step of an arithmetic; subclasses define `_emit_state`."""

    def __init__(
        self,
        instructions: InstructionSet,
        arithmetic: Any,
        sigmoid: CurveKind,
        tanh: CurveKind,
        stages: tuple[str, ...],
        bits: int,
    ) -> None:
        """Start the function of the step; the arguments are those of `write_gru_ir`."""
        super().__init__(instructions, sigmoid, tanh, stages, bits)
        self._arithmetic = arithmetic

    def emit_units(self, first: Any, unit: Any) -> None:
        """Emit a vector of units from index `unit` on; `first` is the sample's first in a state."""
        writer, b = self.writer, self.writer.b
        starts = self.list_gate_starts(first, unit, _GATES)
        index, bits = b.add(first, unit), writer.shape.bits
        address = writer.element_address(writer.arguments["states"], index, bits // 8)
        states = writer.load(address, ir.VectorType(ir.IntType(bits), writer.target.lanes))
        new = self._emit_state(starts, b.sext(states, writer.vector))
        self.store_units(new, "states", index, b.sub(writer.arguments["units"], unit))

    def _emit_state(self, starts: list[Any], state: Any) -> Any:
        """Emit the new state of a vector of units; return it in the state's type.

        `starts` are the indices of its sums of r, z and n, `state` is the old state, int32. This
        base raises NotImplementedError; subclasses define it.
        """
        raise NotImplementedError

    def _weigh(self, gate: Any, x: Any, fraction_bits: int) -> Any:
        """Emit gate * x >> fraction_bits, rounded, of int32 vectors for 0 <= gate < 1."""
        products = self.writer.multiply(gate, x)
        return self.writer.shift_products(products, fraction_bits, 1 << (fraction_bits - 1))

    def _to_state_type(self, x: Any) -> Any:
        """Emit the int32 vector x saturated to the state's width; return it in the state's type."""
        bits = self.writer.shape.bits
        narrow = ir.VectorType(ir.IntType(bits), self.writer.target.lanes)
        return self.writer.b.trunc(self.saturate(x, bits), narrow)


class _DefinedStep(_GruStep):
    """Emits h = sat(n + rsh(z * (h - n))) with sums in Q27."""

    _arithmetic: DefinedArithmetic

    def _emit_state(self, starts: list[Any], state: Any) -> Any:
        """Emit the new state; see the base class."""
        writer, b = self.writer, self.writer.b
        gate_bits, sum_shift = self._arithmetic
        r, z = (
            self.sigmoid(writer.round_shift_right(self.emit_gate_sum(start, 32), sum_shift))
            for start in starts[:2]
        )
        state_sum, input_sum = (self.load_sum(f"{n}_sums", starts[2]) for n in ("state", "input"))
        inner = writer.add_saturated(input_sum, self._weigh(r, state_sum, gate_bits))
        n = self.tanh(writer.round_shift_right(inner, sum_shift))
        new = writer.emit_stages(n, writer.shape.form, self.form)
        return self._to_state_type(b.add(new, self._weigh(z, b.sub(state, new), gate_bits)))


class _CandidateStep(_GruStep):
    """Emits h = sat(h + rescale(z * (n - h))) with sums in Q11 and gates in Q15."""

    _arithmetic: CandidateArithmetic

    def _emit_state(self, starts: list[Any], state: Any) -> Any:
        """Emit the new state; see the base class."""
        writer, b = self.writer, self.writer.b
        r, z = (self.sigmoid(self.emit_gate_sum(start, 16)) for start in starts[:2])
        state_sum, input_sum = (
            self.saturate(self.load_sum(f"{name}_sums", starts[2]), 16)
            for name in ("state", "input")
        )
        inner = b.add(input_sum, writer.round_shift_right(b.mul(r, state_sum), 15))
        n, count = self.tanh(self.saturate(inner, 16)), self._arithmetic.candidate_stages
        new = writer.emit_stages(n, writer.shape.form[:count], self.form[:count])
        change = writer.emit_stages(
            b.mul(z, b.sub(new, state)), writer.shape.form[count:], self.form[count:]
        )
        return self._to_state_type(writer.add_saturated(state, change))


class _ExecutorStep(_GruStep):
    """Emits h = sat(rescale(z * (h / 2) + (128 - z) * n)) with gates in Q7."""

    _arithmetic: ExecutorArithmetic

    def _emit_state(self, starts: list[Any], state: Any) -> Any:
        """Emit the new state; see the base class."""
        writer, b = self.writer, self.writer.b
        if self._arithmetic.uses_state_sums:
            sums = [self.emit_gate_sum(start, 16) for start in starts[:2]]
        else:
            sums = [self.saturate(self.load_sum("input_sums", start), 16) for start in starts[:2]]
        r, z = (self.sigmoid(total) for total in sums)
        state_sum, input_sum = (self.load_sum(f"{n}_sums", starts[2]) for n in ("state", "input"))
        inner = writer.add_saturated(input_sum, self._weigh(r, state_sum, 7))
        n = self.tanh(self.saturate(inner, 16))
        retained = b.mul(z, writer.round_shift_right(state, 1))
        total = b.add(retained, b.mul(b.sub(writer.constant(128), z), n))
        return writer.emit_rescale(total, self.form)


_STEPS: dict[type, type[_GruStep]] = {
    DefinedArithmetic: _DefinedStep,
    CandidateArithmetic: _CandidateStep,
    ExecutorArithmetic: _ExecutorStep,
}
