"""LSTMInt and GRUInt, computed step by step and unit by unit.

Inputs are x, W_x [G*H, I], W_h [G*H, H], b_x and b_h for G gates and H units; initial states are 0.
On `generic`, the optional inputs lengths, initial state and initial cell follow x.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ...targets.arithmetic import (
    Arithmetic,
    GruArithmetic,
    GruVariant,
    LstmArithmetic,
    LstmFormat,
    Requantization,
)
from .._reference_arithmetic import (
    cast_to_width,
    exact_log2,
    fixed_point_multiplier,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic
from ..activation_tables.reference import evaluate_curve

__all__ = ["FAMILY", "Gru", "Lstm"]

#: State after a step: the hidden state of each unit, followed by the cell for an LSTM.
State = list[list[int]]

#: W_x, W_h, b_x, b_h, int64.
LayerWeights = list[np.ndarray]


def _saturate(value: int, bits: int) -> int:
    """Return `value` clamped to the signed integers of `bits` bits."""
    return int(min(max(value, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1))


def _rescale_sums(
    values: np.ndarray,
    scale: float,
    fraction_bits: int,
    arithmetic: Arithmetic,
    can_shift_left: bool,
) -> list[int]:
    """Rescale accumulators to int32 with `fraction_bits` fractional bits; return a list.

    Parameters
    ----------
    values
        Accumulators at `scale`.
    scale
        Scale of the accumulators.
    fraction_bits
        Fractional bits of the result.
    arithmetic
        Arithmetic of the target: a shift, or a multiplication.
    can_shift_left
        Whether the target shifts left; if not, a left shift is omitted.
    """
    integers = to_python_ints(values)
    if arithmetic.requantize.shifts:
        shift = exact_log2(scale) - fraction_bits
        if not can_shift_left:
            shift = max(shift, 0)
        rescaled = round_shift_half_up(saturate(integers, 32), shift)
    else:
        m, s = fixed_point_multiplier(2.0**fraction_bits / scale)
        rescaled = round_shift_half_up(integers * m, s)
    integers_32: list[int] = saturate(rescaled, 32).tolist()
    return integers_32


class _RecurrentOpRun(Integer):
    """Base of LSTMInt and GRUInt: iterates over samples and time steps."""

    #: Order of the gates in `step`.
    gate_order: str

    def get_target_gate_order(self, arithmetic: Arithmetic) -> str:
        """Return the order of the gates in the target's weights, such as "ifgo".

        Subclasses define it.
        """
        raise NotImplementedError

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Compute the hidden states of each sample step by step; steps past its length are 0.

        Inputs: x [N, T, I] or [T, N, I], optionally lengths [N] and initial states, and last the
        two weights and two biases. Outputs are the sequence and last states, as the subclass
        defines them.
        """
        x = inputs[0]
        optional_inputs: list[np.ndarray | None] = list(inputs[1:-4])
        first = optional_inputs[0] if optional_inputs else None
        if first is not None and first.ndim == 3:
            optional_inputs.insert(0, None)  # states without lengths
        gate_order = self.get_target_gate_order(arithmetic)
        weights = [self.reorder_gates(array.astype(np.int64), gate_order) for array in inputs[-4:]]
        lengths, *initial_states = [*optional_inputs, None, None, None][:3]
        is_time_first = self.is_time_first(a, arithmetic, x)
        batch = np.moveaxis(x, 0, 1) if is_time_first else x  # [N, T, I]
        units = weights[1].shape[1]
        y = np.zeros((*batch.shape[:2], units), np.int64)
        last_states: list[State] = []
        for index, sample in enumerate(batch.astype(np.int64)):
            state = self.make_initial_state(units)
            for state_index, array in enumerate(initial_states):
                if array is not None:
                    initial = np.broadcast_to(array.reshape(-1, units), (len(y), units))[index]
                    state[state_index] = initial.astype(np.int64).tolist()
            step_count = len(sample)
            if lengths is not None:
                step_count = int(np.broadcast_to(lengths, len(y))[index])
            times = range(step_count)
            for t in times if self.is_forward(a, arithmetic) else reversed(times):
                state = self.step(a, arithmetic, sample[t], state, weights)
                y[index, t] = state[0]
            last_states.append(state)
        y = np.moveaxis(y, 0, 1) if is_time_first else y
        return self.make_outputs(a, y, last_states, arithmetic)

    def reorder_gates(self, array: np.ndarray, gates: str) -> np.ndarray:
        """Return a weight or bias [G*H, ...] with its gates reordered for `step`.

        `gates` is the order of the array, a letter per gate; the result has the order of the class
        attribute `gate_order`.
        """
        by_gate = np.split(array, len(gates))
        return np.concatenate([by_gate[gates.index(gate)] for gate in self.gate_order])

    def is_time_first(self, a: Attributes, arithmetic: Arithmetic, x: np.ndarray) -> bool:
        """Whether axis 0 of `x` is time, not the batch: attribute batch_first is 0 or missing."""
        return not a.get("batch_first")

    def is_forward(self, a: Attributes, arithmetic: Arithmetic) -> bool:
        """Whether steps are computed in the order of time: attribute go_forward, default true."""
        return bool(a.get("go_forward", 1))

    def make_initial_state(self, units: int) -> State:
        """Return the state before the first step: [hidden state of zeros], one per unit."""
        return [[0] * units]

    def state_scale(self, a: Attributes) -> float:
        """Return the scale of output and hidden state: scale_o, or scale_h if it is absent."""
        return float(a.get("scale_o") or a.scale("scale_h"))

    def compute_sums(
        self,
        a: Attributes,
        arithmetic: Arithmetic,
        x: np.ndarray,
        h: ArrayLike,
        weights: LayerWeights,
        fraction_bits: int,
        can_shift_left: bool,
    ) -> tuple[list[int], list[int]]:
        """Return W_x x + b_x and W_h h + b_h, one int32 per gate row, with `fraction_bits`.

        `x` [I] and `h` [H] belong to one sample and step; `weights` are (W_x, W_h, b_x, b_h). A
        left shift, if scales have fewer fractional bits than that, is left out unless
        `can_shift_left`.
        """
        weight_x, weight_h, bias_x, bias_h = weights
        acc_x = weight_x @ x + bias_x
        acc_h = weight_h @ np.array(h, np.int64) + bias_h
        scale_x = a.scale("scale_x") * a.scale("scale_iw")
        scale_h = self.state_scale(a) * a.scale("scale_hw")
        return (
            _rescale_sums(acc_x, scale_x, fraction_bits, arithmetic, can_shift_left),
            _rescale_sums(acc_h, scale_h, fraction_bits, arithmetic, can_shift_left),
        )

    def step(
        self,
        a: Attributes,
        arithmetic: Arithmetic,
        x: np.ndarray,
        state: State,
        weights: LayerWeights,
    ) -> State:
        """Return the state of a sample after one step with input x [I]; subclasses define it.

        `state` is the state before, a list of hidden state and, for an LSTM, cell; it is not
        changed.
        """
        raise NotImplementedError

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last_states: list[State], arithmetic: Arithmetic
    ) -> Outputs:
        """Return the outputs of the node; subclasses define them.

        They are made of the sequence `y` of hidden states and the last state of each sample.
        """
        raise NotImplementedError


#: Format with gates in Q15 -> bits of the cell.
_Q15_CELL_BITS = {LstmFormat.Q15_CLIPPED_CELL: 16, LstmFormat.Q15_WIDE_CELL: 32}


class Lstm(_RecurrentOpRun):
    """LSTM with gates i, f, g, o.

    On venus, sums are Q11 and gates have 8 bits, or 16 in later executors; on the other targets,
    sums are Q27 and gates have 16 bits.
    """

    gate_order = "ifgo"
    names: tuple[str, ...] = ("LSTMInt", "QLSTM", "LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32")

    def get_target_gate_order(self, arithmetic: Arithmetic) -> str:
        """Return the order of the LSTM's gates in the target's weights, a permutation of "ifgo"."""
        return expect_arithmetic(arithmetic, LstmArithmetic).gates

    def is_time_first(self, a: Attributes, arithmetic: Arithmetic, x: np.ndarray) -> bool:
        """Whether axis 0 of `x` is time.

        Some executors treat [1, T, I] as batch first in any case, others follow the attribute.
        """
        follows_attribute = expect_arithmetic(arithmetic, LstmArithmetic).follows_batch_first
        return not a.get("batch_first") and (follows_attribute or x.shape[0] != 1)

    def make_initial_state(self, units: int) -> State:
        """Return the state before the first step: hidden state and cell of zeros, one per unit."""
        return [[0] * units, [0] * units]

    def step(
        self,
        a: Attributes,
        arithmetic: Arithmetic,
        x: np.ndarray,
        state: State,
        weights: LayerWeights,
    ) -> State:
        """Return [hidden state, cell], one integer per unit, after one step with input x [I].

        Gate sums and cells have 11 and 7 fractional bits, 11 and 15, or 27 and 15, as the target
        computes them; the hidden state has the output's scale.
        """
        arithmetic = expect_arithmetic(arithmetic, LstmArithmetic)
        h, c = state
        units, chip = len(h), arithmetic.table.value
        is_q11 = arithmetic.form in (LstmFormat.Q11, *_Q15_CELL_BITS)
        sums_x, sums_h = self.compute_sums(a, arithmetic, x, h, weights, 11 if is_q11 else 27, True)
        saturates_product = arithmetic.form is not LstmFormat.WIDE or a.o_bits <= 8
        new_h, new_c = [], []
        for u in range(units):
            gates = [
                _saturate(sums_x[k + u] + sums_h[k + u], 16 if is_q11 else 32)
                for k in range(0, 4 * units, units)
            ]
            if arithmetic.form in _Q15_CELL_BITS:
                output, cell = _step_lstm_q15(gates, c[u], chip, _Q15_CELL_BITS[arithmetic.form])
                output_scale = 2.0**30
            elif is_q11:
                output, cell = _step_lstm_q11(gates, c[u], chip)
                output_scale = 2.0**14
            else:
                output, cell = _step_lstm_q27(gates, c[u], chip, saturates_product)
                output_scale = 2.0**30
            ratio = self.state_scale(a) / output_scale
            new_h.append(int(requantize([output], ratio, a.o_bits, arithmetic.requantize)[0]))
            new_c.append(cell)
        return [new_h, new_c]

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last_states: list[State], arithmetic: Arithmetic
    ) -> Outputs:
        """Return the sequence `y`, the last hidden state and the last cell of an LSTM.

        Sequence and hidden state have the output's width. The cell is int32; where it has 16 bits,
        the first half contains packed int16 values. Both have an axis of size 1 for the direction,
        first if axis 0 of the sequence is time, else second.
        """
        h = cast_to_width([state[0] for state in last_states], a.o_bits)
        c = np.array([state[1] for state in last_states], np.int64)
        form = expect_arithmetic(arithmetic, LstmArithmetic).form
        if form in (LstmFormat.Q11, LstmFormat.Q15_CLIPPED_CELL):
            packed = np.zeros((len(c), 2 * c.shape[1]), np.int16)
            packed[:, : c.shape[1]] = c
            cells = packed.view(np.int32)
        else:
            cells = c.astype(np.int32)
        if self.is_time_first(a, arithmetic, y):
            return cast_to_width(y, a.o_bits), h[None], cells[None]
        return cast_to_width(y, a.o_bits), h[:, None], cells[:, None]


def _step_lstm_q11(gates: list[int], cell: int, chip: str) -> tuple[int, int]:
    """Return output (Q14) and new cell (Q7) of an LSTM unit from `gates` i, f, g, o in Q11.

    Qn has n fractional bits. `cell` is the old cell in Q7; `chip` selects the tables. The new cell
    is saturated to 32 bits before, and to 16 bits after it is rounded.
    """
    i, f, o = (evaluate_curve("sigmoid", chip, gates[k], 8) for k in (0, 1, 3))
    new_cell = _saturate(cell * f + i * evaluate_curve("tanh", chip, gates[2], 8), 32)  # Q14
    cell_q11 = _saturate(round_shift_half_up(new_cell, 3), 16)
    output = o * evaluate_curve("tanh", chip, cell_q11, 8)
    return output, _saturate(round_shift_half_up(new_cell, 7), 16)


def _step_lstm_q15(gates: list[int], cell: int, chip: str, cell_bits: int) -> tuple[int, int]:
    """Return output (Q30) and new cell (Q15) of an LSTM unit from `gates` i, f, g, o in Q11.

    Qn has n fractional bits. `cell` is the old cell in Q15; `chip` selects the tables. Both
    products and their sum are saturated to 32 bits, and the new cell to `cell_bits`.
    """
    i, f, o = (evaluate_curve("sigmoid", chip, gates[k], 16) for k in (0, 1, 3))
    candidate = _saturate(i * evaluate_curve("tanh", chip, gates[2], 16), 32)
    new_cell = _saturate(_saturate(cell * f, 32) + candidate, 32)  # Q30
    cell_q11 = _saturate(round_shift_half_up(new_cell, 19), 16)
    output = o * evaluate_curve("tanh", chip, cell_q11, 16)
    return output, _saturate(round_shift_half_up(new_cell, 15), cell_bits)


def _step_lstm_q27(
    gates: list[int], cell: int, chip: str, saturates_product: bool
) -> tuple[int, int]:
    """Return output (Q30) and new cell (Q15) of an LSTM unit from `gates` i, f, g, o in Q27.

    Qn has n fractional bits. `cell` is the old cell in Q15; `chip` selects the tables.
    `saturates_product`: whether the product of cell and forget gate is saturated to int32.
    """
    i, f, o = (
        round_shift_half_up(evaluate_curve("sigmoid", chip, gates[k], 32), 16) for k in (0, 1, 3)
    )
    candidate = round_shift_half_up(evaluate_curve("tanh", chip, gates[2], 32), 16)
    product = cell * f
    if saturates_product:
        product = _saturate(product, 32)
    new_cell = round_shift_half_up(product + i * candidate, 3)  # Q27
    activated = round_shift_half_up(evaluate_curve("tanh", chip, _saturate(new_cell, 32), 32), 16)
    return o * activated, _saturate(round_shift_half_up(new_cell, 12), 32)


#: Variants in which the state is halved in every step.
_HALVED_VARIANTS = (GruVariant.HALVED, GruVariant.HALVED_NOT_IN_GATES)


class Gru(_RecurrentOpRun):
    """GRU with gates r, z, n.

    On the chips, gates have 8 bits, the state is halved, and time is always forward; each chip has
    another formula in later executors. On `generic`, the computation is that of the definition.
    """

    gate_order = "rzn"
    names: tuple[str, ...] = ("GRUInt", "QGRU", "GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32")

    def get_target_gate_order(self, arithmetic: Arithmetic) -> str:
        """Return the order of the GRU's gates in the target's weights, a permutation of "rzn"."""
        return expect_arithmetic(arithmetic, GruArithmetic).gates

    def is_forward(self, a: Attributes, arithmetic: Arithmetic) -> bool:
        """Whether steps go forward in time: always where the state is halved.

        Otherwise the attribute go_forward decides, true by default.
        """
        is_halved = expect_arithmetic(arithmetic, GruArithmetic).form in _HALVED_VARIANTS
        return is_halved or super().is_forward(a, arithmetic)

    def step(
        self,
        a: Attributes,
        arithmetic: Arithmetic,
        x: np.ndarray,
        state: State,
        weights: LayerWeights,
    ) -> State:
        """Return [hidden state] of a GRU after one step with input x [I], as on the target.

        The generic target follows the definition, the chips their own arithmetic.
        """
        arithmetic = expect_arithmetic(arithmetic, GruArithmetic)
        steps = {
            GruVariant.DEFINED: self.step_as_defined,
            GruVariant.CANDIDATE_WEIGHTED: self.step_with_weighted_candidate,
            GruVariant.RESET_BEFORE: self.step_with_reset_before,
            GruVariant.RESET_AFTER: self.step_with_reset_after,
        }
        step = steps.get(arithmetic.form, self.step_on_chip)
        return [step(a, arithmetic, x, state[0], weights)]

    def step_on_chip(
        self,
        a: Attributes,
        arithmetic: GruArithmetic,
        x: np.ndarray,
        h: list[int],
        weights: LayerWeights,
    ) -> list[int]:
        """Return the new hidden state, one integer per unit, in the arithmetic of a chip.

        Sums have 11 fractional bits, gates 7; z * (h >> 1) + (128 - z) * n is requantized. On
        venusA, the hidden state does not affect the gates r and z.
        """
        chip, units = arithmetic.table.value, len(h)
        ignores_state = arithmetic.form is GruVariant.HALVED_NOT_IN_GATES
        sums_x, sums_h = self.compute_sums(a, arithmetic, x, h, weights, 11, False)
        ratio = self.state_scale(a) / 2**14
        new_h = []
        for u in range(units):
            gates = []
            for k in (u, units + u):
                gate_sum = sums_x[k] if ignores_state else sums_x[k] + sums_h[k]
                gates.append(evaluate_curve("sigmoid", chip, _saturate(gate_sum, 16), 8))
            r, z = gates
            k = 2 * units + u
            candidate_sum = _saturate(sums_x[k] + round_shift_half_up(r * sums_h[k], 7), 16)
            n = evaluate_curve("tanh", chip, candidate_sum, 8)
            mixed = z * round_shift_half_up(h[u], 1) + (128 - z) * n
            requantized = requantize([mixed], ratio, a.o_bits, Requantization(shifts=True))
            new_h.append(int(requantized[0]))
        return new_h

    def compute_accumulators(
        self, a: Attributes, x: np.ndarray, h: ArrayLike, weights: LayerWeights
    ) -> tuple[list[int], int, list[int], int]:
        """Return W_x x + b_x with its fractional bits, and W_h h + b_h with its fractional bits.

        Both are saturated to int32, one integer per gate row. The state `h` has the scale scale_h.
        """
        weight_x, weight_h, bias_x, bias_h = weights
        acc_x = saturate(to_python_ints(weight_x @ x + bias_x), 32).tolist()
        acc_h = saturate(to_python_ints(weight_h @ np.array(h, np.int64) + bias_h), 32).tolist()
        bits_x = exact_log2(a.scale("scale_x") * a.scale("scale_iw"))
        bits_h = exact_log2(a.scale("scale_h") * a.scale("scale_hw"))
        return acc_x, bits_x, acc_h, bits_h

    def step_with_weighted_candidate(
        self,
        a: Attributes,
        arithmetic: GruArithmetic,
        x: np.ndarray,
        h: list[int],
        weights: LayerWeights,
    ) -> list[int]:
        """Return the new hidden state h + z * (n - h), one integer per unit, as venus computes it.

        Gate sums have 11 fractional bits, gates 15. Raises ValueError if sums have less than 11.
        """
        chip, units = arithmetic.table.value, len(h)
        acc_x, bits_x, acc_h, bits_h = self.compute_accumulators(a, x, h, weights)
        if min(bits_x, bits_h) < 11:
            raise ValueError(f"gate sums have {bits_x} and {bits_h} fractional bits, less than 11")
        sums_x = [round_shift_half_up(value, bits_x - 11) for value in acc_x]
        sums_h = [round_shift_half_up(value, bits_h - 11) for value in acc_h]
        q_h, q_o = exact_log2(a.scale("scale_h")), exact_log2(self.state_scale(a))
        new_h = []
        for u in range(units):
            r, z = (
                evaluate_curve("sigmoid", chip, _saturate(sums_x[k] + sums_h[k], 16), 16)
                for k in (u, units + u)
            )
            k = 2 * units + u
            reset = round_shift_half_up(r * _saturate(sums_h[k], 16), 15)
            candidate_sum = _saturate(_saturate(sums_x[k], 16) + reset, 16)
            n = round_shift_half_up(evaluate_curve("tanh", chip, candidate_sum, 16), 15 - q_h)
            change = round_shift_half_up(z * (n - h[u]), 15 + q_h - q_o)
            new_h.append(_saturate(h[u] + change, a.o_bits))
        return new_h

    def step_with_reset_before(
        self,
        a: Attributes,
        arithmetic: GruArithmetic,
        x: np.ndarray,
        h: list[int],
        weights: LayerWeights,
    ) -> list[int]:
        """Return the new hidden state n + z * (h - n), one integer per unit, as arcs computes it.

        Gate sums have 27 fractional bits, gates 31; r multiplies the state before the product.
        """
        chip, units = arithmetic.table.value, len(h)

        def convert_to_q27(values: list[int], bits: int) -> list[int]:
            """Return int32 `values` with `bits` fractional bits, saturated, with 27 of them."""
            return [_saturate(round_shift_half_up(value, bits - 27), 32) for value in values]

        acc_x, bits_x, acc_h, bits_h = self.compute_accumulators(a, x, h, weights)
        sums_x, sums_h = convert_to_q27(acc_x, bits_x), convert_to_q27(acc_h, bits_h)

        def gate(k: int) -> int:
            """Return the sigmoid of the saturated sums of gate row `k`, in Q31."""
            return evaluate_curve("sigmoid", chip, _saturate(sums_x[k] + sums_h[k], 32), 32)

        gated_h = [_saturate(round_shift_half_up(gate(u) * h[u], 31), 8) for u in range(units)]
        acc_gated = self.compute_accumulators(a, x, gated_h, weights)[2]
        sums_gated = convert_to_q27(acc_gated, bits_h)[2 * units :]
        new_h = []
        for u in range(units):
            candidate_sum = _saturate(sums_x[2 * units + u] + sums_gated[u], 32)
            n_q31 = evaluate_curve("tanh", chip, candidate_sum, 32)
            n = round_shift_half_up(n_q31, 31 - exact_log2(a.scale("scale_h")))
            mixed = n + round_shift_half_up(gate(units + u) * (h[u] - n), 31)
            new_h.append(_saturate(mixed, a.o_bits))
        return new_h

    def step_with_reset_after(
        self,
        a: Attributes,
        arithmetic: GruArithmetic,
        x: np.ndarray,
        h: list[int],
        weights: LayerWeights,
    ) -> list[int]:
        """Return the new hidden state n + z * (h - n), one integer per unit, as venusA computes it.

        Both gate sums get the fractional bits of the finer one and are added; the result is shifted
        to 27 bits. Gates have 31 bits; r multiplies the product.
        """
        chip, units = arithmetic.table.value, len(h)
        acc_x, bits_x, acc_h, bits_h = self.compute_accumulators(a, x, h, weights)
        bits = max(bits_x, bits_h)
        sums_x = [_saturate(value * 2 ** (bits - bits_x), 32) for value in acc_x]
        sums_h = [_saturate(value * 2 ** (bits - bits_h), 32) for value in acc_h]

        def evaluate(function: str, value: int) -> int:
            """Return `function` of the sum `value`, in Q31."""
            value_q27 = round_shift_half_up(_saturate(value, 32), bits - 27)
            return evaluate_curve(function, chip, _saturate(value_q27, 32), 32)

        new_h = []
        for u in range(units):
            r, z = (evaluate("sigmoid", sums_x[k] + sums_h[k]) for k in (u, units + u))
            k = 2 * units + u
            reset = _saturate(round_shift_half_up(r * sums_h[k], 31), 32)
            n_q31 = evaluate("tanh", reset + sums_x[k])
            n = round_shift_half_up(n_q31, 31 - exact_log2(a.scale("scale_h")))
            new_h.append(_saturate(n + round_shift_half_up(z * (h[u] - n), 31), a.o_bits))
        return new_h

    def step_as_defined(
        self,
        a: Attributes,
        arithmetic: GruArithmetic,
        x: np.ndarray,
        h: list[int],
        weights: LayerWeights,
    ) -> list[int]:
        """Return the new hidden state n + z * (h - n), one integer per unit.

        Gates have 31 fractional bits, or 15 for states of more than 8 bits. The reset gate is
        applied after the product with h (`linear_before_reset`, the default) or before.
        """
        units, bits = len(h), 31 if a.o_bits <= 8 else 15
        sums_x, sums_h = self.compute_sums(a, arithmetic, x, h, weights, 27, True)

        def gate(k: int) -> int:
            """Return the sigmoid of the saturated sums of gate row `k`."""
            return evaluate_curve("sigmoid", "arcs", _saturate(sums_x[k] + sums_h[k], 32), bits + 1)

        r = [gate(u) for u in range(units)]
        if a.get("linear_before_reset", 1):
            reset = [round_shift_half_up(r[u] * sums_h[2 * units + u], bits) for u in range(units)]
        else:
            gated_h = [round_shift_half_up(r[u] * h[u], bits) for u in range(units)]
            reset = self.compute_sums(a, arithmetic, x, gated_h, weights, 27, True)[1][2 * units :]
        ratio = self.state_scale(a) / 2**31
        new_h = []
        for u in range(units):
            z = gate(units + u)
            candidate = _saturate(sums_x[2 * units + u] + reset[u], 32)
            n_q31 = evaluate_curve("tanh", "arcs", candidate, 32)
            n = int(requantize([n_q31], ratio, a.o_bits, arithmetic.requantize)[0])
            new_h.append(_saturate(n + round_shift_half_up(z * (h[u] - n), bits), a.o_bits))
        return new_h

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last_states: list[State], arithmetic: Arithmetic
    ) -> Outputs:
        """Return (sequence, last hidden states) of a GRU, both cast to the output's width.

        States are [1, N, H], or [N, 1, H] if the batch is on axis 0 of the sequence.
        """
        h = cast_to_width([state[0] for state in last_states], a.o_bits)
        return cast_to_width(y, a.o_bits), h[None] if self.is_time_first(a, arithmetic, y) else h[
            :, None
        ]


FAMILY: tuple[type[Integer], ...] = (Lstm, Gru)
