"""Softmax and its logarithm over rows, as the NPU computes them, in integers.

A row extends along `axis` and all following axes, or along `axis` alone. A table converts each
input integer to Q25.

    d = sat32(x - max)                               Q25, <= 0
    t = rsh(d * floor(2^29 * log2(e)), 31)           log2 of the result, Q23
    e = 2^t                                          a polynomial of degree 4 for the fraction,
                                                     a shift for the integer part
    S = sat32(sum of e)
    softmax: y = e / S in Q15                        log: y = d - ln S in Q15

The division modes differ in the last step of the polynomial and in the division:

=========  ==============================  ========================================
"divide"   rounded, then shifted by floor  restoring division, 2^52 / S rounded down
"fused"    one rounding for both           restoring division, 2^52 / S rounded down
"newton"   rounded, then shifted by floor  two Newton steps from a linear estimate
=========  ==============================  ========================================

For int8 inputs the softmax reads e from a table: d takes few values, and e depends on nothing else.

ln S has a table of 512 steps without interpolation; it is therefore up to 64 integer steps of Q15
too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import (
    Rescale,
    RescaleForm,
    RoundedShift,
    apply_rescale,
    round_shift_right,
    saturate,
)
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import require_signed_integer
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["LogSoftmax", "Softmax", "make_input_table"]

#: floor(2^29 * log2(e))
LOG2_E = 774541002
#: The polynomial of 2^f for -1 <= f < 0 in Q23, highest power first: a least-squares fit, rounded.
EXP2_C4, EXP2_C3, EXP2_C2, EXP2_C1, EXP2_C0 = 57364, 446161, 2008107, 5813551, 8388575
#: The Newton iteration starts from this minus the number, Q22.
NEWTON_SEED = 12275712

_DIVISION_MODES = {"divide": 0, "fused": 1, "newton": 2}
_DIVIDE, _FUSED, _NEWTON = 0, 1, 2
#: Bound of a softmax before its rescale: 2^15, and a little more by Newton's steps.
_MAX_TABLE_RESULT = 1 << 16


def make_input_table(ratio: float, bits: int) -> np.ndarray:
    """Return the Q25 values of all integers of `bits` bits, which stand for 2^-25 * `ratio` each.

    The table is int64 [2^bits], in ascending order of the integers, saturated to 32 bits.
    """
    top = 1 << (bits - 1)
    return Rescale.from_ratio(ratio, 32)(np.arange(-top, top))


@register_inline
def _exp_q23(d: Any, fused: Any) -> Any:
    """Return e^d in Q23 for d <= 0 in Q25.

    A polynomial gives 2^f, which is shifted by the whole part of d * log2(e). `fused` rounds the
    last step of the polynomial and the shift once.
    """
    t = round_shift_right(d * LOG2_E, 31)
    exponent, f = (t >> 23) + 1, (t & 0x7FFFFF) - 0x800000
    y = round_shift_right(EXP2_C4 * f, 23) + EXP2_C3
    y = round_shift_right(y * f, 23) + EXP2_C2
    y = round_shift_right(y * f, 23) + EXP2_C1
    if fused:
        shift = 30 - exponent
        return round_shift_right(((y * f) << 7) + (EXP2_C0 << 30), shift) if shift < 63 else 0
    y = round_shift_right(y * f, 23) + EXP2_C0
    return y << exponent if exponent > 0 else y >> min(-exponent, 62)


@register_inline
def _newton_reciprocal(total: Any) -> Any:
    """Approximate 2^46 / `total` for an int64 `total` from 1 to 2^31 - 1, by two Newton steps.

    This is the reciprocal in Q23 of `total` in Q23. The steps work on `total` scaled to [1/2, 1) in
    Q23. Returns a positive int64.
    """
    bits = 0
    while total >> bits:
        bits += 1
    n = 32 - bits - 9
    x = total << n if n >= 0 else total >> -n
    y = NEWTON_SEED - x
    for _ in range(2):
        y += round_shift_right(y * (2 * (0x400000 - round_shift_right(x * y, 23))), 23)
    return y << (n + 1) if n + 1 >= 0 else y >> -(n + 1)


@register_inline
def _exponentiate_row(x: Array, entry: Array, fused: Any, d: Array, e: Array) -> Any:
    """Fill d and e of one softmax row x [T]; return the sum of e, saturated to 32 bits.

    x are integers; `entry` is int64 [256] or [65536], the Q25 value of every integer from the
    smallest on. d, int64 [T], is the value minus the row's largest, Q25; e, int64 [T], is e^d in
    Q23. `fused` rounds the exponential once less.
    """
    offset = entry.size // 2
    top = entry[np.int64(x[0]) + offset]
    for i in range(x.size):
        top = max(top, entry[np.int64(x[i]) + offset])
    total = 0
    for i in range(x.size):
        d[i] = saturate(entry[np.int64(x[i]) + offset] - top, 32)
        e[i] = _exp_q23(d[i], fused)
        total += e[i]
    return saturate(total, 32)


@jit(allocates=True)
def _softmax(x: Array, entry: Array, mode: int, rescale: RescaleForm, out: Array) -> None:
    """Fill out [R, T] with the softmax of the rows of x [R, T].

    With e and their sum in Q23: out = rescale((2 * floor(2^52 / sum) * e) >> 38); mode 2 multiplies
    e by a Newton reciprocal of the sum instead, and shifts by 31. Modes 0 and 1 differ in the
    rounding of e only.

    Parameters
    ----------
    x
        Integers of 8 or 16 bits.
    entry
        int64 [256] or [65536]: the Q25 value of every input integer.
    mode
        0 for "divide", 1 for "fused", 2 for "newton".
    rescale
        Q15 -> output.
    out
        Integers [R, T], filled.
    """
    d, e = np.empty(x.shape[1], np.int64), np.empty(x.shape[1], np.int64)
    for row in range(x.shape[0]):
        total = _exponentiate_row(x[row], entry, mode == _FUSED, d, e)
        if mode == _NEWTON:
            factor = _newton_reciprocal(total)
            for i in range(d.size):
                out[row, i] = apply_rescale(
                    rescale, saturate(round_shift_right(factor * e[i], 31), 32)
                )
        else:
            factor = 2 * ((1 << 52) // total)
            for i in range(d.size):
                out[row, i] = apply_rescale(rescale, round_shift_right(factor * e[i], 38))


@jit
def _tabulate_exponentials(entry: Array, first: int, fused: bool, out: Array) -> None:
    """Fill out with e^d in Q23 for every pair of an int8 value and the largest value of its row.

    Parameters
    ----------
    entry
        int64 [256]: the Q25 value of every input integer, ascending.
    first
        Index in `entry` of the largest value that line 0 of `out` is for.
    fused
        Whether the exponential is rounded once less.
    out
        int32 [L, 256]; line l is for the largest value `first` + l. Entries of larger values than
        that are not written.
    """
    for line in range(out.shape[0]):
        top = first + line
        for i in range(top + 1):
            out[line, i] = _exp_q23(saturate(entry[i] - entry[top], 32), fused)


@jit(allocates=True)
def _softmax_by_table(
    x: Array, lines: Array, newton: bool, rescale: RescaleForm, out: Array
) -> None:
    """Fill out [R, T] with the softmax of the rows of int8 x [R, T], in 32-bit lanes.

    The integers are those of `_softmax`.

    Parameters
    ----------
    x
        int8.
    lines
        int32 [256, 256] of `_tabulate_exponentials`; [1, 256], for the largest value 127, if e
        depends on the difference of the integers only.
    newton
        Whether e is multiplied by a Newton reciprocal.
    rescale
        Q15 -> output.
    out
        Integers [R, T], filled.
    """
    flat, line = view_as(lines, (lines.size,)), np.empty(x.shape[1], np.int32)
    for row in range(x.shape[0]):
        source, target = x[row], out[row]
        top = source[0]
        for i in range(source.size):
            top = max(top, source[i])
        index = np.int64(top) + 128
        start = 128 + (256 * index if lines.shape[0] > 1 else 255 - index)
        total = np.int64(0)
        for i in range(source.size):
            line[i] = flat[start + source[i]]
            total += line[i]
        total = saturate(total, 32)
        # e <= S, both within 31 bits: a factor is at most 2^31 - 1, a product below 2^54
        wide = _newton_reciprocal(total) << 7 if newton else 2 * ((1 << 52) // total)
        factor = np.int32(wide)
        for i in range(source.size):
            upper = np.int32((np.int64(factor) * np.int64(line[i]) + (1 << 37)) >> 32)
            target[i] = apply_rescale(rescale, upper >> 6)


@jit(allocates=True)
def _log_softmax(
    x: Array, entry: Array, fused: bool, logs: Array, rescale: RescaleForm, out: Array
) -> None:
    """Fill out [R, T] with the logarithm of the softmax of the rows of x [R, T].

    out = rescale((d - ln(sum of e^d)) >> 1), with d, the value minus the row's largest, in Q16. x
    are integers of 8 or 16 bits, `entry` the int64 Q25 value of every input integer. `fused` says
    whether the division mode is "fused". `logs` is int64 [512], ln of 512/512 to 1023/512 in Q16.
    `rescale` converts Q15 -> output.
    """
    d, e = np.empty(x.shape[1], np.int64), np.empty(x.shape[1], np.int64)
    for row in range(x.shape[0]):
        total = _exponentiate_row(x[row], entry, fused, d, e)
        bits = 0
        while total >> bits:
            bits += 1
        log = (bits - 24) * 45426 + logs[_shift_right_floor(total, bits - 10) - 512]
        for i in range(d.size):
            out[row, i] = apply_rescale(rescale, round_shift_right((d[i] >> 9) - log, 1))


@register_inline
def _shift_right_floor(v: Any, s: Any) -> Any:
    """Return integer `v` shifted right by `s` bits, rounded down; a negative `s` shifts left."""
    return v >> s if s >= 0 else v << -s


@dataclass(frozen=True, eq=False)
class _RowKernel(Kernel):
    """A function of the rows of int8 or int16 x.

    Parameters
    ----------
    input_table
        int64 [256] or [65536]: the Q25 value of every input integer, within int32; see
        `make_input_table`.
    rescale
        Q15 -> output.
    axis
        First axis of a row; negative counts from the end.
    division_mode
        "divide", "fused" or "newton".
    single_axis
        Whether a row extends along `axis` only, not along the following axes.
    """

    input_table: np.ndarray
    rescale: Rescale | RoundedShift
    axis: int = -1
    division_mode: str = "divide"
    single_axis: bool = False

    layout: ClassVar[str] = "plain"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the rescale.

        Raises SimulatorError for x that is not int8 or int16, a table without one entry per value
        of that type, an axis that x lacks, or an unknown division mode.
        """
        (x,) = specs
        require_signed_integer(x, type(self).__name__)
        rank = len(x.shape)
        has_table = x.dtype.itemsize <= 2 and self.input_table.shape == (
            1 << (8 * x.dtype.itemsize),
        )
        require(has_table, f"a table of {self.input_table.size} entries does not match {x}")
        require(-rank <= self.axis < rank, f"axis {self.axis} does not exist in {x}")
        require(
            self.division_mode in _DIVISION_MODES,
            f"unknown division mode '{self.division_mode}'; choose from "
            f"{', '.join(_DIVISION_MODES)}",
        )
        return (TensorSpec(x.shape, self.rescale.dtype),)

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples may be stacked along axis 0: it must precede the axes of a row."""
        rank = len(specs[0].shape)
        if not rank or self.axis % rank == 0:
            return False
        return super().supports_batch(specs, batched)

    def _build_row_loop(self, spec: TensorSpec, function: Any, *constants: Any) -> RunFunction:
        """Build the loop that applies a jitted function(x [R, T], *constants, out [R, T]) to rows.

        A row is one axis with `single_axis` (moved to the end and back), else all axes from it on.
        """
        rank = len(spec.shape)
        if not self.single_axis or self.axis % rank == rank - 1:
            shape = (-1, math.prod(spec.shape[self.axis % rank :]))
            return NativeLoop(function, (InputRef(0, shape), *constants, OutputRef(0, shape)))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Apply the function to a copy of x whose axis is last, and move the axis back."""
            x = np.ascontiguousarray(np.moveaxis(ins[0], self.axis, -1))
            y = np.empty(x.shape, outs[0].dtype)
            rows = (-1, x.shape[-1])
            function(x.reshape(rows), *constants, y.reshape(rows))
            outs[0][...] = np.moveaxis(y, -1, self.axis)

        return run


def _make_exponential_table(entry: np.ndarray, fused: bool) -> np.ndarray | None:
    """Return the `lines` of `_softmax_by_table`, or None for a table that is not of int8.

    `entry` is int64 [256] or [65536]: the Q25 value of every input integer. None also if it does
    not ascend.
    """
    steps = np.diff(entry)
    if len(entry) != 256 or steps.min() < 0:
        return None
    lines = np.zeros((256 if steps.min() < steps.max() else 1, 256), np.int32)
    first = 256 - len(lines)
    NativeLoop(_tabulate_exponentials, (entry, first, fused, OutputRef(0)))([], [lines])
    return lines


@dataclass(frozen=True, eq=False)
class Softmax(_RowKernel):
    """Softmax of each row: exponentials divided by their sum."""

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the softmax loop over rows, in the division mode of the kernel."""
        mode = _DIVISION_MODES[self.division_mode]
        entry = np.ascontiguousarray(self.input_table, np.int64)
        lines = _make_exponential_table(entry, mode == _FUSED)
        if lines is None:
            form = self.rescale.compile_for_bound(1 << 31)
            return self._build_row_loop(specs[0], _softmax, entry, mode, form)
        return self._build_row_loop(
            specs[0],
            _softmax_by_table,
            lines,
            mode == _NEWTON,
            self.rescale.compile_for_bound(_MAX_TABLE_RESULT),
        )


@dataclass(frozen=True, eq=False)
class LogSoftmax(_RowKernel):
    """Logarithm of the softmax of each row; no division mode "newton"."""

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the log-softmax loop over rows, with its table of logarithms (512 entries, Q16).

        Raises SimulatorError for division mode "newton".
        """
        require(
            self.division_mode != "newton", "log-softmax does not support division mode 'newton'"
        )
        form, fused = self.rescale.compile_for_bound(1 << 31), self.division_mode == "fused"
        entry = np.ascontiguousarray(self.input_table, np.int64)
        logs = np.floor(2.0**16 * np.log(np.arange(512, 1024) / 512) + 0.5).astype(np.int64)
        return self._build_row_loop(specs[0], _log_softmax, entry, fused, logs, form)
