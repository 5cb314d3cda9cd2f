"""Recurrent layers as training libraries compute them, where the executor computes something else.

Long short-term memory (`TrainedLstm`), s = a + b the sums of `recurrent` in Q11:

========  ==================================  ======================================
          "q15"                               "q7"
========  ==================================  ======================================
gates     Q15, of s cut to 16 bits            Q7, likewise
c         f*c + i*g in Q30, kept in Q15       f*c + i*g in Q14, where c is read in Q7
tanh(c)   of c in Q11, rounded from Q30       of c in Q11, rounded from Q14
h         o*tanh(c) in Q30 -> output          o*tanh(c) in Q14 -> output
========  ==================================  ======================================

Gated recurrent unit (`TrainedGru`), d fractional bits in a gate, n brought to the state's scale:

==========  ====  ============================================================================================
            d
==========  ====  ============================================================================================
"q15"       15    sums in Q11; n = tanh(a + r*b); h = h + z*(n - h), n - h cut to 16 bits
"q7"        7     sums in Q11; n = tanh(a + r*b); h = n + z*(h - n) in Q14, h read in Q7
"before"    31    sums in Q27; n = tanh(a + b[r*h])
"common"    31    sums at the finer of their scales, brought to Q27 where a gate reads them; n =
tanh(a + r*b)
==========  ====  ============================================================================================

For the last two h = n + z*(h - n). n is not saturated before, h is. The units read sums in Q11 as
they are: beyond the table there is 0 (`Piecewise.unsaturated`). The state that goes round is the
output, for "q7" requantized once more.

All loops take the same arguments, with G = 4 gates in the order i, f, g, o or G = 3 in the order r,
z, n:

===============  ===========================================================================================
sums             int32 [N, T, G*H]: the inputs' sums a, in the format of the sums
lengths          int64 [N], 0 to T: how many steps each sample has
weight, bias     the states' weights [H, 4H] and [4H] of an LSTM
weights          of a GRU: weight [H, 2H] and bias [2H] of r and z, weight [H, H] and bias [H] of n
form             the states' products -> the format of the sums
sigmoid, tanh    the chip's tables
out              the new state -> output
again            output -> the state that the next step multiplies; "q7" only
forward          whether time runs from 0 on; otherwise from a sample's last step to 0
y                [N, T, H], filled at every step that a sample has: the output, at the output's
scale last             [N, H] in y's type: the state to begin with, and in the end the last one
c                int64 [N, H]: the cell to begin with, and in the end the last one
===============  ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, round_shift_right, saturate
from simulator.kernel import Array, TensorSpec
from simulator.kernels.loops._common import max_magnitude
from simulator.kernels.recurrent.layer import RecurrentKernel, matmul_rescale, prepare_gate_weights
from simulator.native import InputRef, NativeLoop, OutputRef
from simulator.piecewise import KernelCurve, evaluate_curve, load_piecewise

__all__ = ["TrainedGru", "TrainedLstm"]


@register_inline
def _evaluate_unsaturated(curve: Any, x: Any) -> Any:
    """Return the value of a table of 16-bit numbers, 0 beyond it."""
    return evaluate_curve(curve, x) if -32768 <= x <= 32768 else 0


@jit
def _lstm_q15(
    sums: Array,
    lengths: Array,
    weight: Array,
    bias: Array,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    again: RescaleForm,
    forward: bool,
    y: Array,
    last: Array,
    c: Array,
) -> None:
    """Walk through all steps of an LSTM with gates in Q15.

    Tables int16 Q11 -> int16 Q15, c Q15, o*tanh(c) Q30.
    """
    samples, _, units = y.shape
    h, b = np.empty((1, units), y.dtype), np.empty((1, 4 * units), np.int64)
    for n in range(samples):
        h[0] = last[n]
        for step in range(lengths[n]):
            t = step if forward else lengths[n] - 1 - step
            matmul_rescale(h, weight, bias, form, b)
            a = sums[n, t]
            for u in range(units):
                i = evaluate_curve(sigmoid, saturate(a[u] + b[0, u], 16))
                f = evaluate_curve(sigmoid, saturate(a[units + u] + b[0, units + u], 16))
                g = evaluate_curve(tanh, saturate(a[2 * units + u] + b[0, 2 * units + u], 16))
                o = evaluate_curve(sigmoid, saturate(a[3 * units + u] + b[0, 3 * units + u], 16))
                cell = f * c[n, u] + i * g
                c[n, u] = saturate(round_shift_right(cell, 15), 32)
                h[0, u] = apply_rescale(
                    out, o * evaluate_curve(tanh, saturate(round_shift_right(cell, 19), 16))
                )
                y[n, t, u] = h[0, u]
        last[n] = h[0]


@jit
def _lstm_q7(
    sums: Array,
    lengths: Array,
    weight: Array,
    bias: Array,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    again: RescaleForm,
    forward: bool,
    y: Array,
    last: Array,
    c: Array,
) -> None:
    """Walk through all steps of an LSTM with gates in Q7.

    Tables int16 Q11 -> int8 Q7, c Q14, o*tanh(c) Q14.
    """
    samples, _, units = y.shape
    h, b = np.empty((1, units), y.dtype), np.empty((1, 4 * units), np.int64)
    for n in range(samples):
        for step in range(lengths[n]):
            t = step if forward else lengths[n] - 1 - step
            for u in range(units):
                h[0, u] = apply_rescale(again, last[n, u])
            matmul_rescale(h, weight, bias, form, b)
            a = sums[n, t]
            for u in range(units):
                i = max(evaluate_curve(sigmoid, saturate(a[u] + b[0, u], 16)), 0)
                f = max(evaluate_curve(sigmoid, saturate(a[units + u] + b[0, units + u], 16)), 0)
                g = evaluate_curve(tanh, saturate(a[2 * units + u] + b[0, 2 * units + u], 16))
                o = max(
                    evaluate_curve(sigmoid, saturate(a[3 * units + u] + b[0, 3 * units + u], 16)), 0
                )
                c[n, u] = f * round_shift_right(c[n, u], 7) + i * g
                last[n, u] = apply_rescale(
                    out, o * evaluate_curve(tanh, saturate(round_shift_right(c[n, u], 3), 16))
                )
                y[n, t, u] = last[n, u]


@jit
def _gru_q15(
    sums: Array,
    lengths: Array,
    weights: Any,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    formats: Any,
    forward: bool,
    y: Array,
    last: Array,
) -> None:
    """Walk through all steps of a GRU with gates in Q15: tables int16 Q11 -> int16 Q15.

    formats : (right shift of n from Q15 to the state's scale, bits of the state). out : not used.
    """
    samples, _, units = y.shape
    weight, bias, inner, inner_bias = weights
    new, bits = formats[0], formats[1]
    h, b = np.empty((1, units), y.dtype), np.empty((1, 2 * units), np.int64)
    m = np.empty((1, units), np.int64)
    for k in range(samples):
        h[0] = last[k]
        for step in range(lengths[k]):
            t = step if forward else lengths[k] - 1 - step
            matmul_rescale(h, weight, bias, form, b)
            matmul_rescale(h, inner, inner_bias, form, m)
            a = sums[k, t]
            for u in range(units):
                r = _evaluate_unsaturated(sigmoid, saturate(a[u] + b[0, u], 32))
                z = _evaluate_unsaturated(sigmoid, saturate(a[units + u] + b[0, units + u], 32))
                n = round_shift_right(
                    _evaluate_unsaturated(
                        tanh, saturate(a[2 * units + u] + round_shift_right(r * m[0, u], 15), 32)
                    ),
                    new,
                )
                h[0, u] = saturate(
                    h[0, u] + round_shift_right(z * saturate(n - h[0, u], 16), 15), bits
                )
                y[k, t, u] = h[0, u]
        last[k] = h[0]


@jit
def _gru_q7(
    sums: Array,
    lengths: Array,
    weights: Any,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    formats: Any,
    forward: bool,
    y: Array,
    last: Array,
) -> None:
    """Walk through all steps of a GRU with gates in Q7.

    Tables int16 Q11 -> int8 Q7, the new state in Q14.
    formats : (0, bits of the state, output -> the state that the next step multiplies, output -> h
    in Q7).
    """
    samples, _, units = y.shape
    weight, bias, inner, inner_bias = weights
    again, read = formats[2], formats[3]
    h, b = np.empty((1, units), y.dtype), np.empty((1, 2 * units), np.int64)
    m = np.empty((1, units), np.int64)
    for k in range(samples):
        for step in range(lengths[k]):
            t = step if forward else lengths[k] - 1 - step
            for u in range(units):
                h[0, u] = apply_rescale(again, last[k, u])
            matmul_rescale(h, weight, bias, form, b)
            matmul_rescale(h, inner, inner_bias, form, m)
            a = sums[k, t]
            for u in range(units):
                r = max(_evaluate_unsaturated(sigmoid, a[u] + b[0, u]), 0)
                z = max(_evaluate_unsaturated(sigmoid, a[units + u] + b[0, units + u]), 0)
                n = _evaluate_unsaturated(
                    tanh, a[2 * units + u] + round_shift_right(r * m[0, u], 7)
                )
                last[k, u] = apply_rescale(
                    out, (n << 7) + z * (apply_rescale(read, last[k, u]) - n)
                )
                y[k, t, u] = last[k, u]


@jit
def _gru_q31(
    sums: Array,
    lengths: Array,
    weights: Any,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    formats: Any,
    forward: bool,
    y: Array,
    last: Array,
) -> None:
    """Walk through all steps of a GRU with gates in Q31 ("before", "common").

    Tables int32 Q27 -> int32 Q31.
    formats : (right shift of n from Q31 to the state's scale, bits of the state, whether r
    multiplies the state before the product, right shift of the sums to Q27). out : not used.
    """
    samples, _, units = y.shape
    weight, bias, inner, inner_bias = weights
    new, bits, before, down = formats
    h, b = np.empty((1, units), y.dtype), np.empty((1, 2 * units), np.int64)
    gated, m, r = (
        np.empty((1, units), y.dtype),
        np.empty((1, units), np.int64),
        np.empty(units, np.int64),
    )
    for k in range(samples):
        h[0] = last[k]
        for step in range(lengths[k]):
            t = step if forward else lengths[k] - 1 - step
            matmul_rescale(h, weight, bias, form, b)
            a = sums[k, t]
            for u in range(units):
                r[u] = evaluate_curve(
                    sigmoid, saturate(round_shift_right(a[u] + b[0, u], down), 32)
                )
                gated[0, u] = round_shift_right(r[u] * h[0, u], 31) if before else h[0, u]
            matmul_rescale(gated, inner, inner_bias, form, m)
            for u in range(units):
                own = m[0, u] if before else round_shift_right(r[u] * m[0, u], 31)
                z = evaluate_curve(
                    sigmoid, saturate(round_shift_right(a[units + u] + b[0, units + u], down), 32)
                )
                n = round_shift_right(
                    evaluate_curve(
                        tanh, saturate(round_shift_right(a[2 * units + u] + own, down), 32)
                    ),
                    new,
                )
                h[0, u] = saturate(n + round_shift_right(z * (h[0, u] - n), 31), bits)
                y[k, t, u] = h[0, u]
        last[k] = h[0]


@dataclass(frozen=True, eq=False)
class _TrainingRecurrentKernel(RecurrentKernel):
    """What LSTM and GRU of the training libraries add to `RecurrentKernel`.

    Parameters
    ----------
    arithmetic
        The column or row of the module's tables.
    table
        The chip whose sigmoid and tanh are used.
    again
        Output -> the state that the next step multiplies ("q7").
    """

    arithmetic: str = "q15"
    table: str = "venus"
    feedback_rescale: Rescale = Rescale.from_shift(0, 8)  # noqa: RUF009

    def hidden_weights(self) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
        """Return weight [H, G*H], bias and rescaling of the states' sums."""
        largest = max(
            max_magnitude(self.rescale_o.dtype), max_magnitude(self.feedback_rescale.dtype)
        )
        return prepare_gate_weights(self.weight_h, self.bias_h, largest, self.rescale_h)


@dataclass(frozen=True, eq=False)
class TrainedLstm(_TrainingRecurrentKernel):
    """Map x to the sequence, the last state and the last cell, int32 in Q15 ("q15") or Q14 ("q7")."""

    gates: ClassVar[int] = 4

    #: Fractional bits of o * tanh(c), bits of a gate, fractional bits of the cell.
    fraction_bits: ClassVar[dict[str, tuple[int, int, int]]] = {
        "q15": (30, 16, 15),
        "q7": (14, 8, 14),
    }

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of the last state and of the last cell."""
        return [
            *super().final_state_specs(samples),
            TensorSpec((samples, 1, self.units), np.dtype(np.int32)),
        ]

    def make_step_function(self) -> Any:
        """Return the loop of `arithmetic` with its tables and weights."""
        fine, (product, bits, _) = self.arithmetic == "q15", self.fraction_bits[self.arithmetic]
        sigmoid, tanh = (
            load_piecewise(name, self.table).curve(bits) for name in ("sigmoid", "tanh")
        )
        weight, bias, form = self.hidden_weights()
        out, again = (
            self.rescale_o.compile_for_bound(1 << product),
            self.feedback_rescale.compile_for_bound(max_magnitude(self.rescale_o.dtype)),
        )
        constants = weight, bias, form, sigmoid, tanh, out, again, self.is_forward
        loop = NativeLoop(
            _lstm_q15 if fine else _lstm_q7,
            (InputRef(0), InputRef(1), *constants, OutputRef(0), OutputRef(1), OutputRef(2)),
        )

        def step(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            loop([sums, lengths], [y, h, c])
            return [h[:, None], c.astype(np.int32)[:, None]]

        return step


@dataclass(frozen=True, eq=False)
class TrainedGru(_TrainingRecurrentKernel):
    """Map x to the sequence and the last state.

    Parameters
    ----------
    scale
        log2 of the scale of the state.
    sums
        Fractional bits of the sums ("common").
    """

    scale: int = 7
    sums: int = 27

    gates: ClassVar[int] = 3

    def make_step_function(self) -> Any:
        """Return the loop of `arithmetic` with the weights of n apart.

        They may read another state.
        """
        bits = {"q15": 16, "q7": 8}.get(self.arithmetic, 32)
        sigmoid, tanh = (
            load_piecewise(name, self.table).curve(bits) for name in ("sigmoid", "tanh")
        )
        form, cut = self.hidden_weights()[2], 2 * self.units
        largest = max(
            max_magnitude(self.rescale_o.dtype), max_magnitude(self.feedback_rescale.dtype)
        )
        weights = (
            *prepare_gate_weights(self.weight_h[:cut], self.bias_h[:cut], largest, self.rescale_h)[
                :2
            ],
            *prepare_gate_weights(self.weight_h[cut:], self.bias_h[cut:], largest, self.rescale_h)[
                :2
            ],
        )
        kernel, out, width = (
            _gru_q31,
            self.rescale_o.compile_for_bound(1 << 16),
            self.rescale_o.bits,
        )
        formats: tuple[Any, ...] = (
            31 - self.scale,
            width,
            self.arithmetic == "before",
            self.sums - 27,
        )
        if self.arithmetic == "q15":
            kernel, formats = _gru_q15, (15 - self.scale, width)
        elif self.arithmetic == "q7":
            size = max_magnitude(self.rescale_o.dtype)
            read = Rescale.from_shift(self.scale - 7, 32)
            kernel, formats = (
                _gru_q7,
                (
                    0,
                    width,
                    self.feedback_rescale.compile_for_bound(size),
                    read.compile_for_bound(size),
                ),
            )

        constants = weights, form, sigmoid, tanh, out, formats, self.is_forward
        loop = NativeLoop(
            kernel, (InputRef(0), InputRef(1), *constants, OutputRef(0), OutputRef(1))
        )

        def step(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            loop([sums, lengths], [y, h])
            return [h[:, None]]

        return step
