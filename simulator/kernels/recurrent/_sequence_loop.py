"""The walk of a recurrent layer through all its steps, in compiled code.

Samples walk together, so that a step's states are one product with the weights; the inputs of some
steps are another one. What a step does with the sums is the layer's `cell`, a named tuple with its
constants and memory, whose `rule` works on whole lines of numbers: a loop of its own, compiled
apart, since all layers share the walk. Order of time, lengths and first states: see `recurrent`.

Must not know: gates, formats, rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import saturate
from simulator.kernel import Array, RunFunction, TensorSpec
from simulator.kernels.loops._conv_simd import run_record
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

_SAMPLES_PER_GROUP = 32  # samples that walk together
_ROWS_PER_PRODUCT = 64  # inputs, of samples and steps, whose gate sums are made at once
# numbers that a vector may read and write behind the end of a line, see
# `_curve.evaluate_curve_rows`
VECTOR_PADDING = 16


@register_inline
def step_time(step: Any, length: Any, forward: Any) -> Any:
    """Return the time of a step of a sample of `length` steps, for steps behind its last one any time that exists."""
    return max(min(step, length - 1) if forward else length - 1 - step, 0)


@register_inline
def add_saturated(a: Any, b: Any, bits: Any, out: Any) -> Any:
    """Fill the beginning of int32 `out` with the sums of int32 a and b, saturated to `bits` bits."""
    for i in range(a.size):
        out[i] = saturate(np.int64(a[i]) + b[i], bits)


class SequenceMemory(NamedTuple):
    """What a walk holds of at most `_SAMPLES_PER_GROUP` samples, flat; its cell reads it too."""

    # int64: samples that walk, number of the step, row of `sums` where those of the step begin
    now: Any
    h: Any  # [N, H] in y's type: the states
    c: Any  # int32 [N, H]: the cells
    lengths: Any  # int64 [N]: steps of each sample, from 0 to T
    sums: Any  # int32 [_ROWS, G*H]: gate sums of the inputs


@register_inline
def unpack_step(memory: Any) -> Any:
    """Return, for a cell's rule.

    Sums a of the inputs int32 [N, G*H], h and c [N, H], lengths [N], number of the step.
    The rule does the step in h and c, for the samples that have it.
    """
    count, step, first = memory.now[0], memory.now[1], memory.now[2]
    units, gates = memory.h.size // _SAMPLES_PER_GROUP, memory.sums.size // _ROWS_PER_PRODUCT
    h, c = (
        memory.h.reshape((_SAMPLES_PER_GROUP, units))[:count],
        memory.c.reshape((_SAMPLES_PER_GROUP, units))[:count],
    )
    a = memory.sums.reshape((_ROWS_PER_PRODUCT, gates))[first : first + count]
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
    """Return h, c and lengths of samples first..first+count to begin with, and the greatest length."""
    h, c = (
        memory.h.reshape((_SAMPLES_PER_GROUP, units))[:count],
        memory.c.reshape((_SAMPLES_PER_GROUP, units))[:count],
    )
    found, longest = memory.lengths[:count], 0
    for n in range(count):
        found[n] = (
            min(max(lengths[(first + n) % len(lengths)], 0), times) if len(lengths) else times
        )
        longest = max(longest, found[n])
        for u in range(units):
            h[n, u] = h0[(first + n) % len(h0), u] if len(h0) else 0
            c[n, u] = c0[(first + n) % len(c0), u] if len(c0) else 0
    return h, c, found, longest


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
    """Walk through all steps of a layer.

    Parameters
    ----------
    x
        Integers [N, T, I], with `time_first` [T, N, I].
    weights
        `words` and `plain` of the inputs' sums, see `recurrent.products`.
    cell
        The loop that does a step, see `native.Called` and `unpack_step`.
    lines
        Memory for inputs [_ROWS, I].
    lengths, h0, c0
        Integers [N], states and cells [N, H] to begin with, or [1] and [1, H] for all samples; none
        stand for T and zeros.
    packed
        Whether cells go out as int16, in the first half of the bytes; the rest is 0.
    y, last, end
        Outputs: states at every step, ordered as x, at the end [N, H], and cells int32 [N, H];
        empty where not asked for.
    """
    samples, times = (x.shape[1], x.shape[0]) if time_first else (x.shape[0], x.shape[1])
    inputs, now = input_scratch.reshape((_ROWS_PER_PRODUCT, x.shape[2])), memory.now
    sums = memory.sums.reshape((_ROWS_PER_PRODUCT, memory.sums.size // _ROWS_PER_PRODUCT))
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
    """Copy the numbers of sample n at time t of x, ordered as in `run_sequence`, to flat `out`."""
    row, line = (t, n) if time_first else (n, t)
    for u in range(out.size):
        out[u] = x[row, line, u]


@jit
def _write_step_output(x: Array, n: int, t: int, time_first: bool, out: Array) -> None:
    """Copy flat x to the numbers of sample n at time t of `out`."""
    row, line = (t, n) if time_first else (n, t)
    for u in range(x.size):
        out[row, line, u] = x[u]


@jit
def _write_final_states(
    h: Array,
    c: Array,
    lengths: Array,
    first: int,
    times: int,
    time_first: bool,
    packed: bool,
    y: Array,
    last: Array,
    end: Array,
) -> None:
    """Write what a walk leaves.

    Zeros in y from each sample's length on, the last states and cells.
    """
    samples, units = h.shape
    for n in range(samples):
        for t in range(lengths[n], times):
            row, line = (t, first + n) if time_first else (first + n, t)
            for u in range(units):
                y[row, line, u] = 0
        for u in range(units if last.size else 0):
            last[first + n, u] = h[n, u]
        if end.size and packed:
            _pack_int16_pairs(c[n], end[first + n])
        elif end.size:
            for u in range(units):
                end[first + n, u] = c[n, u]


@register_inline
def _pack_int16_pairs(c: Any, out: Any) -> Any:
    """Fill int32 out [H] with the 16-bit numbers c [H], two by two, the first one lower.

    The rest is 0.
    """
    for i in range(c.size):
        low = c[2 * i] & 0xFFFF if 2 * i < c.size else 0
        out[i] = low | (c[2 * i + 1] << 16 if 2 * i + 1 < c.size else 0)


@dataclass(frozen=True, eq=False)
class CompiledRecurrentKernel(RecurrentKernel):
    """A layer whose steps are one compiled loop."""

    @property
    def packs_cells(self) -> bool:
        """Whether cells go out as int16, see `run_sequence`."""
        return False

    def make_cell(self) -> Any:
        """Return the arithmetic of a step.

        A named tuple with its constants, and memory for `_SAMPLES_PER_GROUP` samples.
        Its `rule` is the jitted loop of a step, of (the tuple, `SequenceMemory`).
        """
        raise NotImplementedError

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pack the weights."""
        x, units, kind = specs[0], self.units, self.rescale_o.dtype
        begin: dict[str, Any] = {
            "lengths": np.zeros(0, np.int64),
            "h": np.zeros((0, units), kind),
            "c": np.zeros((0, units), np.int32),
        }
        shapes = {name: (-1, *array.shape[1:]) for name, array in begin.items()}
        begin |= {name: np.array(array).reshape(shapes[name]) for name, array in self.fixed.items()}
        begin |= {name: InputRef(1 + i, shapes[name]) for i, name in enumerate(self.given)}
        outs: list[Any] = [
            np.zeros((0, 0, 0), kind),
            np.zeros((0, 0), kind),
            np.zeros((0, 0), np.int32),
        ]
        for place, output in enumerate(self.kept):
            outs[output] = OutputRef(place, (-1, units) if output else None)
        memory = SequenceMemory(
            Scratch(3, np.int64),
            make_sample_scratch(units, kind),
            make_sample_scratch(units, np.int32),
            make_sample_scratch(1, np.int64),
            Scratch(_ROWS_PER_PRODUCT * len(self.bias_x), np.int32),
        )
        weights, time_first = self.make_input_sums(x.dtype).arguments(), self.time_axis == 0
        cell, taken = self.make_cell(), Scratch(_ROWS_PER_PRODUCT * x.shape[2], x.dtype)
        step = NestedLoop(NativeLoop(cell.rule(), (cell, memory)))
        begins, ends = begin.values(), (bool(self.is_forward), self.packs_cells, memory, *outs)
        return NativeLoop(
            run_sequence, (InputRef(0), time_first, weights, step, units, taken, *begins, *ends)
        )


def make_line_scratch(numbers: int, spare: int = VECTOR_PADDING) -> Scratch:
    """Return memory for int32 `numbers` and spare ones behind them, of every sample that walks."""
    return make_sample_scratch(numbers + spare, np.int32)


def make_sample_scratch(numbers: int, dtype: Any) -> Scratch:
    """Return memory for `numbers` of every sample that walks."""
    return Scratch(_SAMPLES_PER_GROUP * numbers, dtype)


@register_inline
def view_lines(memory: Any, samples: Any) -> Any:
    """Return what `make_line_scratch` stands for as [N, numbers and spare ones] of so many samples."""
    return memory.reshape((_SAMPLES_PER_GROUP, memory.size // _SAMPLES_PER_GROUP))[:samples]
