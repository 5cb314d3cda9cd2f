"""The compiled loop over the time steps of recurrent layers.

A group of samples is processed together, so that the states of a step are one matrix product with
the weights; the inputs of several steps are another one. The arithmetic of a step is the layer's
`cell`, a named tuple with its constants and memory, whose `rule` is a separately compiled function,
because all layers share the loop. Order of time, lengths and initial states: see `layer`.

Must not know: gates, number formats, rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import saturate
from simulator.kernel import Array, RunFunction, TensorSpec
from simulator.kernels.loops._common import max_magnitude
from simulator.kernels.loops._conv_simd import run_record
from simulator.kernels.loops._view import view_as
from simulator.kernels.recurrent.layer import RecurrentKernel, compute_gate_sums
from simulator.native import InputRef, NativeLoop, NestedLoop, OutputRef, Scratch

__all__ = [
    "CompiledRecurrentKernel",
    "add_saturated",
    "make_line_scratch",
    "make_sample_scratch",
    "unpack_step",
    "view_lines",
]

_SAMPLES_PER_GROUP = 32  # samples that are processed together
_ROWS_PER_PRODUCT = 64  # inputs (of samples and steps) whose gate sums are one product
#: Elements that vector code may access after the end of a row, see `evaluate_curve_rows`.
VECTOR_PADDING = 16


@register_inline
def step_time(step: Any, length: Any, forward: Any) -> Any:
    """Return the time index of step `step` of a sample with `length` steps.

    `step` itself forward, else counted from the last step back. For steps from `length` on the
    result is an arbitrary valid index.
    """
    return max(min(step, length - 1) if forward else length - 1 - step, 0)


@register_inline
def add_saturated(a: Any, b: Any, bits: Any, out: Any) -> Any:
    """Fill the first elements of int32 out with a + b (int32), saturated to `bits` bits."""
    for i in range(a.size):
        out[i] = saturate(np.int64(a[i]) + b[i], bits)


class SequenceMemory(NamedTuple):
    """State of the loop for a group of N <= `_SAMPLES_PER_GROUP` samples; flat arrays.

    `now` is int64: number of samples, index of the step, first row of `sums` of this step.
    """

    now: Any
    h: Any  # [N, H] in y's type: states
    c: Any  # int32 [N, H]: cells
    lengths: Any  # int64 [N]: number of steps of each sample, from 0 to T
    sums: Any  # int32 [_ROWS_PER_PRODUCT, G*H]: gate sums of the inputs


@register_inline
def unpack_step(memory: Any) -> Any:
    """Return (a, h, c, lengths, step) of the current step, as views of the loop's `memory`.

    For a group of N samples: `a` is int32 [N, G*H], gate sums of the inputs; `h` [N, H] in y's type
    and `c` int32 [N, H] are states, which the rule updates in place for the samples with step <
    lengths; `lengths` is [N], `step` the index of the step.
    """
    count, step, first = memory.now[0], memory.now[1], memory.now[2]
    units, gates = memory.h.size // _SAMPLES_PER_GROUP, memory.sums.size // _ROWS_PER_PRODUCT
    h = view_as(memory.h, (_SAMPLES_PER_GROUP, units))[:count]
    c = view_as(memory.c, (_SAMPLES_PER_GROUP, units))[:count]
    a = view_as(memory.sums, (_ROWS_PER_PRODUCT, gates))[first : first + count]
    return a, h, c, memory.lengths[:count], step


@jit
def _initialize_states(
    memory: SequenceMemory,
    units: int,
    first: int,
    count: int,
    times: int,
    lengths: Array,
    h0: Array,
    c0: Array,
) -> tuple[Array, Array, Array, int]:
    """Initialize the states of `count` samples from sample `first` on, in `memory`.

    `lengths`, `h0` and `c0` have one row per sample or one for all; empty ones give `times`, 0 and
    0. Returns views of `memory`: h and c [count, units] and lengths [count], limited to 0..times;
    and the longest of the lengths.
    """
    h = view_as(memory.h, (_SAMPLES_PER_GROUP, units))[:count]
    c = view_as(memory.c, (_SAMPLES_PER_GROUP, units))[:count]
    group_lengths, longest = memory.lengths[:count], 0
    for n in range(count):
        group_lengths[n] = (
            min(max(lengths[(first + n) % len(lengths)], 0), times) if len(lengths) else times
        )
        longest = max(longest, group_lengths[n])
        for u in range(units):
            h[n, u] = h0[(first + n) % len(h0), u] if len(h0) else 0
            c[n, u] = c0[(first + n) % len(c0), u] if len(c0) else 0
    return h, c, group_lengths, longest


@jit
def run_sequence(
    x: Array,
    time_first: bool,
    weights: Any,
    cell: Any,
    units: int,
    input_scratch: Array,
    lengths: Array,
    h0: Array,
    c0: Array,
    forward: bool,
    packed: bool,
    memory: SequenceMemory,
    y: Array,
    last_state: Array,
    last_cell: Array,
) -> None:
    """Compute all steps of a recurrent layer for all samples, in groups of `_SAMPLES_PER_GROUP`.

    Parameters
    ----------
    x
        Integers [N, T, I], with `time_first` [T, N, I].
    weights
        (words, plain) of the inputs' gate sums: the record of a loop with dot instructions, or
        (weight, bias, rescale form) of a scalar one; the other is None.
    cell
        Record of the nested loop that computes a step on the states and sums in `memory`.
    units
        Number of units, H.
    input_scratch
        Scratch memory for inputs [_ROWS_PER_PRODUCT, I].
    lengths, h0, c0
        Lengths [N], initial states and cells [N, H]; or [1] and [1, H] for all samples; or empty
        for T and zeros.
    forward
        Whether time runs forward.
    packed
        Whether output cells are int16, in the first half of the bytes; the remaining bytes are 0.
    memory
        Scratch memory of the loop.
    y, last_state, last_cell
        Outputs: states of all steps, ordered as x, final states [N, H], and final cells int32 [N,
        H]; empty if not requested. y is 0 from the length of a sample on.
    """
    samples, times = (x.shape[1], x.shape[0]) if time_first else (x.shape[0], x.shape[1])
    inputs, now = view_as(input_scratch, (_ROWS_PER_PRODUCT, x.shape[2])), memory.now
    sums = view_as(memory.sums, (_ROWS_PER_PRODUCT, memory.sums.size // _ROWS_PER_PRODUCT))
    for base in range(0, samples, _SAMPLES_PER_GROUP):
        count = min(_SAMPLES_PER_GROUP, samples - base)
        h, c, long, longest = _initialize_states(memory, units, base, count, times, lengths, h0, c0)
        for begin in range(0, longest, _ROWS_PER_PRODUCT // count):
            steps = min(_ROWS_PER_PRODUCT // count, longest - begin)
            for k in range(steps * count):
                n = k % count
                _read_step_input(
                    x,
                    base + n,
                    step_time(begin + k // count, long[n], forward),
                    time_first,
                    inputs[k],
                )
            compute_gate_sums(
                inputs[: steps * count], weights[0], weights[1], sums[: steps * count]
            )
            for k in range(steps):
                now[0], now[1], now[2] = count, begin + k, k * count
                run_record(cell)
                for n in range(count if y.size else 0):
                    if begin + k < long[n]:
                        _write_step_output(
                            h[n], base + n, step_time(begin + k, long[n], forward), time_first, y
                        )
        _write_final_states(
            h, c, long, base, times if y.size else 0, time_first, packed, y, last_state, last_cell
        )


@jit
def _read_step_input(x: Array, n: int, t: int, time_first: bool, out: Array) -> None:
    """Copy the elements of sample n at time t of x to flat `out` [I].

    x is [N, T, I], or [T, N, I] if `time_first`; both have one type.
    """
    row, line = (t, n) if time_first else (n, t)
    for u in range(out.size):
        out[u] = x[row, line, u]


@jit
def _write_step_output(x: Array, n: int, t: int, time_first: bool, out: Array) -> None:
    """Copy flat x [H] to the elements of sample n at time t of `out`.

    out is [N, T, H], or [T, N, H] if `time_first`; both have one type.
    """
    row, line = (t, n) if time_first else (n, t)
    for u in range(x.size):
        out[row, line, u] = x[u]


@jit
def _write_final_states(  # noqa: C901 - three short loops
    h: Array,
    c: Array,
    lengths: Array,
    first: int,
    times: int,
    time_first: bool,
    packed: bool,
    y: Array,
    last_state: Array,
    last_cell: Array,
) -> None:
    """Write the final states and cells of a group, and zeros in y beyond each sample's length.

    h, c [count, H] and lengths [count] are those of the group, whose first sample is `first`.
    `times` is the number of steps T, 0 if y is not requested; empty `last_state` or `last_cell` are
    not requested. With `packed`, cells are written as pairs of int16.
    """
    samples, units = h.shape
    for n in range(samples):
        for t in range(lengths[n], times):
            row, line = (t, first + n) if time_first else (first + n, t)
            for u in range(units):
                y[row, line, u] = 0
        for u in range(units if last_state.size else 0):
            last_state[first + n, u] = h[n, u]
        if last_cell.size and packed:
            _pack_int16_pairs(c[n], last_cell[first + n])
        elif last_cell.size:
            for u in range(units):
                last_cell[first + n, u] = c[n, u]


@register_inline
def _pack_int16_pairs(c: Any, out: Any) -> Any:
    """Pack the 16-bit numbers c [H] in pairs, the first one lower, into int32 out [H].

    The remaining elements are 0.
    """
    for i in range(c.size):
        low = c[2 * i] & 0xFFFF if 2 * i < c.size else 0
        out[i] = low | (c[2 * i + 1] << 16 if 2 * i + 1 < c.size else 0)


@dataclass(frozen=True, eq=False)
class CompiledRecurrentKernel(RecurrentKernel):
    """A recurrent layer whose steps are one compiled loop; subclasses define `make_cell`."""

    @property
    def packs_cells(self) -> bool:
        """Whether output cells are int16 in the first half of the int32 bytes.

        False in this base.
        """
        return False

    def make_cell(self, largest_input: int = 1 << 31) -> Any:
        """Return the arithmetic of a step, a named tuple of constants and scratch memory.

        Inputs are |x| <= `largest_input`. This base raises NotImplementedError; subclasses define
        it. The scratch memory is for `_SAMPLES_PER_GROUP` samples. The static method `rule` of the
        tuple returns the jitted function of a step, with arguments (tuple, `SequenceMemory`).
        """
        raise NotImplementedError

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pack the weights of a recurrent layer, and return the compiled loop over all its steps.

        Lengths and initial states are constants of the kernel, inputs, or absent (empty arrays);
        outputs that are not requested are empty arrays, too.
        """
        x, units, kind = specs[0], self.units, self.rescale_o.dtype
        initial: dict[str, Any] = {
            "lengths": np.zeros(0, np.int64),
            "h": np.zeros((0, units), kind),
            "c": np.zeros((0, units), np.int32),
        }
        shapes = {name: (-1, *array.shape[1:]) for name, array in initial.items()}
        for name, array in self.constant_states.items():
            initial[name] = np.array(array).reshape(shapes[name])
        for index, name in enumerate(self.state_inputs):
            initial[name] = InputRef(1 + index, shapes[name])
        outputs: list[Any] = [
            np.zeros((0, 0, 0), kind),
            np.zeros((0, 0), kind),
            np.zeros((0, 0), np.int32),
        ]
        for position, index in enumerate(self.output_indices):
            outputs[index] = OutputRef(position, (-1, units) if index else None)
        memory = SequenceMemory(
            Scratch(3, np.int64),
            make_sample_scratch(units, kind),
            make_sample_scratch(units, np.int32),
            make_sample_scratch(1, np.int64),
            Scratch(_ROWS_PER_PRODUCT * len(self.bias_x), np.int32),
        )
        weights, time_first = self.make_input_sums(x.dtype).arguments(), self.time_axis == 0
        cell, input_scratch = (
            self.make_cell(max_magnitude(x.dtype)),
            Scratch(_ROWS_PER_PRODUCT * x.shape[2], x.dtype),
        )
        step = NestedLoop(NativeLoop(cell.rule(), (cell, memory)))
        inputs = (InputRef(0), time_first, weights, step, units, input_scratch, *initial.values())
        options = (bool(self.is_forward), self.packs_cells)
        return NativeLoop(run_sequence, (*inputs, *options, memory, *outputs))


def make_line_scratch(numbers: int, spare: int = VECTOR_PADDING) -> Scratch:
    """Return scratch memory for `numbers` + `spare` int32 elements per sample of a group."""
    return make_sample_scratch(numbers + spare, np.int32)


def make_sample_scratch(numbers: int, dtype: Any) -> Scratch:
    """Return scratch memory for `numbers` elements of `dtype` per sample of a group."""
    return Scratch(_SAMPLES_PER_GROUP * numbers, dtype)


@register_inline
def view_lines(memory: Any, samples: Any) -> Any:
    """Return flat scratch memory of a group as rows, one for each of the first `samples`."""
    return view_as(memory, (_SAMPLES_PER_GROUP, memory.size // _SAMPLES_PER_GROUP))[:samples]
