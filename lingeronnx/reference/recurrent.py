"""LSTMInt and GRUInt, one step after another, unit by unit.

Inputs x, W_x [G*H, I], W_h [G*H, H], b_x, b_h; states start at 0. On `generic` lengths, a state and
a cell may stand behind x, absent or given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..targets import arithmetic
from ..targets.arithmetic import Arithmetic, GruVariant, LstmFormat, Requantization
from ._arithmetic import (
    cast_to_width,
    exact_log2,
    fixed_point_multiplier,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from ._base import Attributes, Integer, Outputs, expect_arithmetic
from .activation_tables import evaluate_curve

__all__ = ["FAMILY", "Gru", "Lstm"]

#: What is carried from step to step, unit by unit: the state, of an LSTM the cell too.
State = list[list[int]]

#: W_x, W_h, b_x, b_h, int64.
LayerWeights = list[np.ndarray]


def _saturate(value: int, bits: int) -> int:
    return min(max(value, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)


def _rescale_sums(
    values: np.ndarray, scale: float, bits: int, how: Arithmetic, left: bool = True
) -> list[int]:
    """Return sums of the given scale with `bits` fractional bits in int32.

    `left`: whether they may be shifted so.
    """
    if not how.requantize.shifts:
        m, s = fixed_point_multiplier(2.0**bits / scale)
        return [int(v) for v in saturate(round_shift_half_up(to_python_ints(values) * m, s), 32)]
    shift = exact_log2(scale) - bits
    return [
        int(v)
        for v in saturate(
            round_shift_half_up(
                saturate(to_python_ints(values), 32), shift if left or shift > 0 else 0
            ),
            32,
        )
    ]


class _RecurrentOpRun(Integer):
    gate_order: str

    def target_gate_order(self, how: Arithmetic) -> str:
        """Return in which order the platform has the gates."""
        raise NotImplementedError

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Walk along time; y stays at the place of its input."""
        x, *more = inputs[:-4]
        parts = [
            self.reorder_gates(w.astype(np.int64), self.target_gate_order(arithmetic))
            for w in inputs[-4:]
        ]
        lengths, *starts = [*more, None, None, None][:3]
        time_first = self.is_time_first(a, x)
        rows = np.moveaxis(x, 0, 1) if time_first else x  # [N, T, I]
        units = parts[1].shape[1]
        y = np.zeros((*rows.shape[:2], units), np.int64)
        last: list[State] = []
        for k, (sample, row) in enumerate(zip(y, rows.astype(np.int64), strict=True)):
            state = self.make_initial_state(units)
            for index, given in enumerate(starts):
                if given is not None:
                    state[index] = [
                        int(v) for v in np.broadcast_to(given, (len(y), 1, units))[k, 0]
                    ]
            times = range(len(row) if lengths is None else int(np.broadcast_to(lengths, len(y))[k]))
            for t in times if self.forward(a, arithmetic) else reversed(times):
                state = self.step(a, arithmetic, row[t], state, parts)
                sample[t] = state[0]
            last.append(state)
        return self.make_outputs(a, np.moveaxis(y, 0, 1) if time_first else y, last, arithmetic)

    def reorder_gates(self, array: np.ndarray, gates: str) -> np.ndarray:
        """Return a weight or bias with the gates in the order of this file."""
        parts = np.split(array, len(gates))
        return np.concatenate([parts[gates.index(gate)] for gate in self.gate_order])

    def is_time_first(self, a: Attributes, x: np.ndarray) -> bool:
        return not a.get("batch_first")

    def forward(self, a: Attributes, how: Arithmetic) -> bool:
        return bool(a.get("go_forward", 1))

    def make_initial_state(self, units: int) -> State:
        return [[0] * units]

    def state_scale(self, a: Attributes) -> float:
        """Return the scale of y, which is the state's."""
        return float(a.get("scale_o") or a.scale("scale_h"))

    def sums(
        self,
        a: Attributes,
        how: Arithmetic,
        x: np.ndarray,
        h: ArrayLike,
        parts: LayerWeights,
        bits: int,
        left: bool,
    ) -> tuple[list[int], list[int]]:
        """Return W_x x + b_x and W_h h + b_h with `bits` fractional bits."""
        own = _rescale_sums(
            parts[0] @ x + parts[2], a.scale("scale_x") * a.scale("scale_iw"), bits, how, left
        )
        inner = parts[1] @ np.array(h, np.int64) + parts[3]
        return own, _rescale_sums(inner, self.state_scale(a) * a.scale("scale_hw"), bits, how, left)

    def step(
        self, a: Attributes, how: Arithmetic, x: np.ndarray, state: State, parts: LayerWeights
    ) -> State:
        raise NotImplementedError

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last: list[State], how: Arithmetic
    ) -> Outputs:
        raise NotImplementedError


class Lstm(_RecurrentOpRun):
    """Gates i, f, g, o. venus: sums in Q11, gates of 8 bits.

    Otherwise sums in Q27, gates of 16 bits.
    """

    gate_order = "ifgo"
    names: tuple[str, ...] = ("LSTMInt", "QLSTM", "LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32")

    def target_gate_order(self, how: Arithmetic) -> str:
        """Return the row's."""
        return expect_arithmetic(how, arithmetic.LstmArithmetic).gates

    def is_time_first(self, a: Attributes, x: np.ndarray) -> bool:
        """The chips take [1, T, I] for either value of batch_first."""
        return not a.get("batch_first") and x.shape[0] != 1

    def make_initial_state(self, units: int) -> State:
        """Return a state and a cell of zeros."""
        return [[0] * units, [0] * units]

    def step(
        self, a: Attributes, how: Arithmetic, x: np.ndarray, state: State, parts: LayerWeights
    ) -> State:
        """Return state and cell after one step."""
        (h, c), how = state, expect_arithmetic(how, arithmetic.LstmArithmetic)
        coarse, scale, width = how.form is LstmFormat.Q11, self.state_scale(a), a.o_bits
        chip = how.table.value
        own, inner = self.sums(a, how, x, h, parts, 11 if coarse else 27, True)
        units = len(h)
        new_h, new_c = [], []
        for u in range(units):
            g = [
                _saturate(own[k * units + u] + inner[k * units + u], 16 if coarse else 32)
                for k in range(4)
            ]
            if coarse:
                i, f, o = (evaluate_curve("sigmoid", chip, g[k], 8) for k in (0, 1, 3))
                cell = _saturate(c[u] * f + i * evaluate_curve("tanh", chip, g[2], 8), 32)  # Q14
                out, held = (
                    o
                    * evaluate_curve("tanh", chip, _saturate(round_shift_half_up(cell, 3), 16), 8),
                    2.0**14,
                )
                new_c.append(_saturate(round_shift_half_up(cell, 7), 16))
            else:
                i, f, o = (
                    round_shift_half_up(evaluate_curve("sigmoid", chip, g[k], 32), 16)
                    for k in (0, 1, 3)
                )
                new = round_shift_half_up(evaluate_curve("tanh", chip, g[2], 32), 16)
                kept = (
                    c[u] * f
                    if how.form is LstmFormat.WIDE and width > 8
                    else _saturate(c[u] * f, 32)
                )
                cell = round_shift_half_up(kept + i * new, 3)  # Q27
                out, held = (
                    o
                    * round_shift_half_up(
                        evaluate_curve("tanh", chip, _saturate(cell, 32), 32), 16
                    ),
                    2.0**30,
                )
                new_c.append(_saturate(round_shift_half_up(cell, 12), 32))
            new_h.append(int(requantize([out], scale / held, width, how.requantize)[0]))
        return [new_h, new_c]

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last: list[State], how: Arithmetic
    ) -> Outputs:
        """The sequence, the last state, the last cell.

        Int32, on venus int16 numbers packed into its first half.
        """
        h = cast_to_width([state[0] for state in last], a.o_bits)
        c = np.array([state[1] for state in last], np.int64)
        if expect_arithmetic(how, arithmetic.LstmArithmetic).form is LstmFormat.Q11:
            packed = np.zeros((len(c), 2 * c.shape[1]), np.int16)
            packed[:, : c.shape[1]] = c
            cells = packed.view(np.int32)
        else:
            cells = c.astype(np.int32)
        if self.is_time_first(a, y):
            return cast_to_width(y, a.o_bits), h[None], cells[None]
        return cast_to_width(y, a.o_bits), h[:, None], cells[:, None]


class Gru(_RecurrentOpRun):
    """Gates r, z, n. Chips: gates of 8 bits, the state halved, time always forwards.

    `generic`: as it is defined.
    """

    gate_order = "rzn"
    names: tuple[str, ...] = ("GRUInt", "QGRU", "GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32")

    def target_gate_order(self, how: Arithmetic) -> str:
        """Return the row's."""
        return expect_arithmetic(how, arithmetic.GruArithmetic).gates

    def forward(self, a: Attributes, how: Arithmetic) -> bool:
        """Executors do not look at go_forward."""
        return expect_arithmetic(
            how, arithmetic.GruArithmetic
        ).form is not GruVariant.DEFINED or super().forward(a, how)

    def step(
        self, a: Attributes, how: Arithmetic, x: np.ndarray, state: State, parts: LayerWeights
    ) -> State:
        """Return the state after one step."""
        how = expect_arithmetic(how, arithmetic.GruArithmetic)
        compute = self.step_as_defined if how.form is GruVariant.DEFINED else self.step_on_chip
        return [compute(a, how, x, state[0], parts)]

    def step_on_chip(
        self,
        a: Attributes,
        how: arithmetic.GruArithmetic,
        x: np.ndarray,
        h: list[int],
        parts: LayerWeights,
    ) -> list[int]:
        """The executor's; on venusA the state is left out of r and z."""
        chip, units, apart = how.table.value, len(h), how.form is GruVariant.HALVED_NOT_IN_GATES
        own, inner = self.sums(a, how, x, h, parts, 11, False)
        new = []
        for u in range(units):
            r, z = (
                evaluate_curve(
                    "sigmoid", chip, _saturate(own[k] + (0 if apart else inner[k]), 16), 8
                )
                for k in (u, units + u)
            )
            k = 2 * units + u
            n = evaluate_curve(
                "tanh", chip, _saturate(own[k] + round_shift_half_up(r * inner[k], 7), 16), 8
            )
            mixed = z * round_shift_half_up(h[u], 1) + (128 - z) * n
            new.append(
                int(
                    requantize(
                        [mixed], self.state_scale(a) / 2**14, a.o_bits, Requantization(shifts=True)
                    )[0]
                )
            )
        return new

    def step_as_defined(
        self,
        a: Attributes,
        how: arithmetic.GruArithmetic,
        x: np.ndarray,
        h: list[int],
        parts: LayerWeights,
    ) -> list[int]:
        """Return n + z * (h - n).

        Gates in Q31 (Q15 for wide states), the reset gate after or before the product.
        """
        units, bits = len(h), 31 if a.o_bits <= 8 else 15
        after = bool(a.get("linear_before_reset", 1))
        own, inner = self.sums(a, how, x, h, parts, 27, True)
        r = [
            evaluate_curve("sigmoid", "arcs", _saturate(own[u] + inner[u], 32), bits + 1)
            for u in range(units)
        ]
        if after:
            reset = [round_shift_half_up(r[u] * inner[2 * units + u], bits) for u in range(units)]
        else:
            gated = [round_shift_half_up(r[u] * h[u], bits) for u in range(units)]
            reset = self.sums(a, how, x, gated, parts, 27, True)[1][2 * units :]
        new = []
        for u in range(units):
            z = evaluate_curve(
                "sigmoid", "arcs", _saturate(own[units + u] + inner[units + u], 32), bits + 1
            )
            n = evaluate_curve("tanh", "arcs", _saturate(own[2 * units + u] + reset[u], 32), 32)
            held = int(requantize([n], self.state_scale(a) / 2**31, a.o_bits, how.requantize)[0])
            new.append(_saturate(held + round_shift_half_up(z * (h[u] - held), bits), a.o_bits))
        return new

    def make_outputs(
        self, a: Attributes, y: np.ndarray, last: list[State], how: Arithmetic
    ) -> Outputs:
        """The sequence and the last state."""
        h = cast_to_width([state[0] for state in last], a.o_bits)
        return cast_to_width(y, a.o_bits), h[None] if self.is_time_first(a, y) else h[:, None]


FAMILY: tuple[type[Integer], ...] = (Lstm, Gru)
