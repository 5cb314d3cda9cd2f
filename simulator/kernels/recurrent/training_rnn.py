"""Recurrent layers as training libraries compute them, where the executor differs.

Long short-term memory (`TrainedLstm`), s = a + b are the gate sums of `layer` in Q11:

========  ==================================  ======================================
          "q15"                               "q7"
========  ==================================  ======================================
gates     Q15, of s saturated to 16 bits      Q7, of s saturated to 16 bits
c         f*c + i*g in Q30, stored in Q15     f*c + i*g in Q14, where c is read in Q7
tanh(c)   of c in Q11, rounded from Q30       of c in Q11, rounded from Q14
h         o*tanh(c) in Q30 -> output          o*tanh(c) in Q14 -> output
========  ==================================  ======================================

Gated recurrent unit (`TrainedGru`), d fractional bits in a gate, n rescaled to the state's scale:

==========  ====  ==================================================================================
            d
==========  ====  ==================================================================================
"q15"       15    sums in Q11; n = tanh(a + r*b); h = h + z*(n - h), n - h saturated to 16 bits
"q7"        7     sums in Q11; n = tanh(a + r*b); h = n + z*(h - n) in Q14, h read in Q7
"before"    31    sums in Q27; n = tanh(a + b[r*h])
"common"    31    sums at the finer of their scales, rescaled to Q27 for each gate;
                  n = tanh(a + r*b)
==========  ====  ==================================================================================

For the last two h = n + z*(h - n), where h is saturated, but not n. The units of Q11 do not
saturate their sums: beyond the table the result is 0 (`Piecewise.evaluate_unsaturated`). The state
for the next step is the output, for "q7" requantized once more.

All loops have the same arguments, with G = 4 gates in the order i, f, g, o or G = 3 in the order r,
z, n:

===============  ===================================================================================
sums             int32 [N, T, G*H]: the inputs' sums a
lengths          int64 [N], 0 to T: number of steps of each sample
weight, bias     states' weights [H, 4H] and bias [4H] of an LSTM
weights          of a GRU: weight [H, 2H] and bias [2H] of r and z, weight [H, H] and bias [H] of n
form             rescale form of the states' products -> the format of the sums
sigmoid, tanh    the chip's tables
out              rescale form of the new state -> output
feedback         rescale form of output -> the state that the next step multiplies; "q7" only
forward          whether time runs forward; otherwise from a sample's last step to 0
y                [N, T, H], filled at every step of a sample with the output
last             [N, H] in y's type: the initial state, updated to the final one
c                int64 [N, H]: the initial cell, updated to the final one
===============  ===================================================================================
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
    """Return the value of table `curve` at integer x, or 0 if |x| is above 2^15."""
    return evaluate_curve(curve, x) if -32768 <= x <= 32768 else 0


@jit(allocates=True)
def _lstm_q15(
    sums: Array,
    lengths: Array,
    weight: Array,
    bias: Array,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    feedback: RescaleForm,
    forward: bool,
    y: Array,
    last: Array,
    c: Array,
) -> None:
    """Compute all steps of an LSTM with gates in Q15, in place.

    Gates i, f, g, o; c = f * c + i * g; h = out(o * tanh(c)). Tables int16 Q11 -> int16 Q15, c Q15
    of 32 bits, o*tanh(c) Q30. `sums` are int32 [N, T, 4H], gate sums of the inputs in Q11;
    `lengths` [N] steps are computed, y is left as it is beyond. weight [H, 4H], bias [4H] and form
    give the gate sums of the state; `out` is the form of o * tanh(c) -> state; `feedback` is
    unused. y [N, T, H] is written; last [N, H] and c int64 [N, H], the initial state and cell, are
    overwritten by the final ones.
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


@jit(allocates=True)
def _lstm_q7(
    sums: Array,
    lengths: Array,
    weight: Array,
    bias: Array,
    form: RescaleForm,
    sigmoid: KernelCurve,
    tanh: KernelCurve,
    out: RescaleForm,
    feedback: RescaleForm,
    forward: bool,
    y: Array,
    last: Array,
    c: Array,
) -> None:
    """Compute all steps of an LSTM with gates in Q7, in place.

    Gates i, f, g, o; c = f * c + i * g; h = out(o * tanh(c)). Tables int16 Q11 -> int8 Q7, negative
    sigmoids become 0; c Q14, not saturated; o*tanh(c) Q14. `sums` are int32 [N, T, 4H], gate sums
    of the inputs in Q11; `lengths` [N] steps are computed. `feedback` is the form of state -> the
    state that the next step multiplies with weight [H, 4H]. y [N, T, H] is written; last [N, H] and
    c int64 [N, H] are overwritten by the final ones.
    """
    samples, _, units = y.shape
    h, b = np.empty((1, units), y.dtype), np.empty((1, 4 * units), np.int64)
    for n in range(samples):
        for step in range(lengths[n]):
            t = step if forward else lengths[n] - 1 - step
            for u in range(units):
                h[0, u] = apply_rescale(feedback, last[n, u])
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


@jit(allocates=True)
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
    """Compute all steps of a GRU with gates r, z, n in Q15, in place: tables int16 Q11 -> Q15.

    h = h + z * (n - h), where n = tanh(a_n + r * m), with the sums a of the inputs and m of the
    state. `sums` are int32 [N, T, 3H]; `lengths` [N] steps are computed. `weights` are (weight [H,
    2H], bias [2H]) of r and z, and (weight [H, H], bias [H]) of n, as one tuple of four; `form` is
    the rescale of their sums. `formats` are (right shift of n from Q15 to the state's scale, bits
    of the state); `out` is unused. y [N, T, H] is written; last [N, H], the initial state, is
    overwritten by the final one.
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


@jit(allocates=True)
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
    """Compute all steps of a GRU with gates r, z, n in Q7, in place: tables int16 Q11 -> int8 Q7.

    h = out(n + z * (h - n)), where n = tanh(a_n + r * m), with the sums a of the inputs and m of
    the state. Negative sigmoids become 0; the new state is in Q14, which `out` rescales. `formats`
    are (0, bits of the state, rescale form of output -> the state that the next step multiplies,
    rescale form of output -> h in Q7). `sums` are int32 [N, T, 3H], `weights` (weight, bias) of r
    and z, then of n. y [N, T, H] is written; last [N, H] is overwritten by the final state.
    """
    samples, _, units = y.shape
    weight, bias, inner, inner_bias = weights
    feedback, read = formats[2], formats[3]
    h, b = np.empty((1, units), y.dtype), np.empty((1, 2 * units), np.int64)
    m = np.empty((1, units), np.int64)
    for k in range(samples):
        for step in range(lengths[k]):
            t = step if forward else lengths[k] - 1 - step
            for u in range(units):
                h[0, u] = apply_rescale(feedback, last[k, u])
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


@jit(allocates=True)
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
    """Compute all steps of a GRU with gates r, z, n in Q31, in place: tables int32 Q27 -> Q31.

    h = n + z * (h - n), where n = tanh(a_n + r * m), or m are the sums of r * h if the third of
    `formats` is true. `formats` are (right shift of n from Q31 to the state's scale, bits of the
    state, whether r multiplies the state before the product, right shift of the sums to Q27).
    `sums` are int32 [N, T, 3H], `weights` (weight, bias) of r and z, then of n; `out` is unused. y
    [N, T, H] gets the state of each step; last [N, H], the initial state, is overwritten by the
    final one.
    """
    samples, _, units = y.shape
    weight, bias, inner, inner_bias = weights
    new, bits, before, down = formats
    h, b = np.empty((1, units), y.dtype), np.empty((1, 2 * units), np.int64)
    gated, m = np.empty((1, units), y.dtype), np.empty((1, units), np.int64)
    r = np.empty(units, np.int64)
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
                state_n = m[0, u] if before else round_shift_right(r[u] * m[0, u], 31)
                z = evaluate_curve(
                    sigmoid, saturate(round_shift_right(a[units + u] + b[0, units + u], down), 32)
                )
                n = round_shift_right(
                    evaluate_curve(
                        tanh, saturate(round_shift_right(a[2 * units + u] + state_n, down), 32)
                    ),
                    new,
                )
                h[0, u] = saturate(n + round_shift_right(z * (h[0, u] - n), 31), bits)
                y[k, t, u] = h[0, u]
        last[k] = h[0]


@dataclass(frozen=True, eq=False)
class _TrainingRecurrentKernel(RecurrentKernel):
    """Common part of the LSTM and GRU layers of training libraries.

    Parameters
    ----------
    arithmetic
        Number formats and formula: "q15" or "q7"; for a GRU also "before" or "common".
    table
        Chip whose sigmoid and tanh tables are used.
    feedback_rescale
        Output -> the state that the next step multiplies ("q7").
    """

    arithmetic: str = "q15"
    table: str = "venus"
    feedback_rescale: Rescale = Rescale.from_shift(0, 8)  # noqa: RUF009

    def hidden_weights(self) -> tuple[np.ndarray, np.ndarray, RescaleForm]:
        """Return (weight [H, G*H], bias [G*H], rescale form) of the states' gate sums."""
        return prepare_gate_weights(self.weight_h, self.bias_h, self._max_state(), self.rescale_h)

    def _max_state(self) -> int:
        """Return the largest |state| that the weights may multiply.

        It is the larger magnitude of the types of output and feedback.
        """
        return max(max_magnitude(self.rescale_o.dtype), max_magnitude(self.feedback_rescale.dtype))


@dataclass(frozen=True, eq=False)
class TrainedLstm(_TrainingRecurrentKernel):
    """LSTM layer with outputs sequence, final state and final cell.

    The cell is int32 in Q15 ("q15") or Q14 ("q7").
    """

    gates: ClassVar[int] = 4

    #: Fractional bits of o * tanh(c), bits of a gate, fractional bits of the cell.
    fraction_bits: ClassVar[dict[str, tuple[int, int, int]]] = {
        "q15": (30, 16, 15),
        "q7": (14, 8, 14),
    }

    def final_state_specs(self, samples: int) -> list[TensorSpec]:
        """Return the specs of final state and final cell (int32), each [samples, 1, units]."""
        return [
            *super().final_state_specs(samples),
            TensorSpec((samples, 1, self.units), np.dtype(np.int32)),
        ]

    def make_step_function(self) -> Any:
        """Return the function of (sums, lengths, y, h, c) that runs all steps of the LSTM.

        `sums` are int32 [N, T, 4H], gate sums of the inputs; `lengths` int64 [N]. y [N, T, H] is
        filled; h [N, H] and c int64 [N, H] are overwritten by the final states. The function
        returns them as [N, 1, H], c in int32.
        """
        product, bits, _ = self.fraction_bits[self.arithmetic]
        sigmoid, tanh = (
            load_piecewise(name, self.table).curve(bits) for name in ("sigmoid", "tanh")
        )
        weight, bias, form = self.hidden_weights()
        out = self.rescale_o.compile_for_bound(1 << product)
        feedback = self.feedback_rescale.compile_for_bound(max_magnitude(self.rescale_o.dtype))
        constants = weight, bias, form, sigmoid, tanh, out, feedback, self.is_forward
        loop = NativeLoop(
            _lstm_q15 if self.arithmetic == "q15" else _lstm_q7,
            (InputRef(0), InputRef(1), *constants, OutputRef(0), OutputRef(1), OutputRef(2)),
        )

        def run_steps(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            """Run all steps: fill y, update h and c.

            Return [h, c (int32)] with a direction axis 1.
            """
            loop([sums, lengths], [y, h, c])
            return [h[:, None], c.astype(np.int32)[:, None]]

        return run_steps


@dataclass(frozen=True, eq=False)
class TrainedGru(_TrainingRecurrentKernel):
    """GRU layer with outputs sequence and final state.

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
        """Return the function of (sums, lengths, y, h, c) that runs all steps of the GRU.

        `sums` are int32 [N, T, 3H], gate sums of the inputs; `lengths` int64 [N]. y [N, T, H] is
        filled; h [N, H] is overwritten by the final state, which the function returns in a list, as
        [N, 1, H]. c is unused. The weights of n are separate, because they may read another state.
        """
        bits = {"q15": 16, "q7": 8}.get(self.arithmetic, 32)
        sigmoid, tanh = (
            load_piecewise(name, self.table).curve(bits) for name in ("sigmoid", "tanh")
        )
        form = self.hidden_weights()[2]
        weights: list[np.ndarray] = []
        for rows in (slice(2 * self.units), slice(2 * self.units, None)):
            weight, bias = self.weight_h[rows], self.bias_h[rows]
            prepared = prepare_gate_weights(weight, bias, self._max_state(), self.rescale_h)
            weights += prepared[:2]
        out = self.rescale_o.compile_for_bound(1 << 16)
        kernel, formats = self._select_loop()
        constants = tuple(weights), form, sigmoid, tanh, out, formats, self.is_forward
        loop = NativeLoop(
            kernel, (InputRef(0), InputRef(1), *constants, OutputRef(0), OutputRef(1))
        )

        def run_steps(sums: Array, lengths: Array, y: Array, h: Array, c: Array) -> list[Array]:
            """Run all steps: fill y and update h.

            Return [h] with a direction axis 1. c is unused.
            """
            loop([sums, lengths], [y, h])
            return [h[:, None]]

        return run_steps

    def _select_loop(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the jitted loop of the arithmetic and its tuple of number formats.

        "q15" and "q7" have loops of their own, other arithmetics share one with values in Q31,
        which also takes whether the arithmetic is "before".
        """
        width = self.rescale_o.bits
        if self.arithmetic == "q15":
            return _gru_q15, (15 - self.scale, width)
        if self.arithmetic != "q7":
            is_before = self.arithmetic == "before"
            return _gru_q31, (31 - self.scale, width, is_before, self.sums - 27)
        size = max_magnitude(self.rescale_o.dtype)
        feedback = self.feedback_rescale.compile_for_bound(size)
        to_q7 = Rescale.from_shift(self.scale - 7, 32)
        return _gru_q7, (0, width, feedback, to_q7.compile_for_bound(size))
