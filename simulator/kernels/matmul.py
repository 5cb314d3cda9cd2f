"""Matrix product of two computed tensors.

    y = rescale(x @ y)      [.., N, M] x [.., M, P] -> [.., N, P], NumPy's rules

Must not know: rounding. The accumulator is int32 where M products provably fit, else int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator import _llvm
from simulator._jit import jit
from simulator.fixed import Form, Rescale, apply
from simulator.kernel import Array, Run, Spec, require
from simulator.kernels.loops import _simd, _tile
from simulator.kernels.loops._common import Clipped, SlidingWindow, broadcast, integer, magnitude
from simulator.native import In, Loop, Out, Scratch
from simulator.rows import InstructionSet

__all__ = ["MatMul"]


@jit
def _matmul(x: Array, y: Array, zero: Array, rescale: Form, out: Array) -> None:
    acc = np.empty(y.shape[2], zero.dtype)
    for b in range(out.shape[0]):
        for n in range(x.shape[1]):
            acc[:] = 0
            for m in range(x.shape[2]):
                value, row = np.int64(x[b % len(x), n, m]), y[b % len(y), m]
                for p in range(acc.size):
                    acc[p] += value * row[p]
            target = out[b, n]
            for p in range(acc.size):
                target[p] = apply(rescale, acc[p])


@jit
def _dots(
    x: Array,
    y: Array,
    code: int,
    packed: _simd.PackedConv,
    g: _simd.WindowGeometry,
    late: Form | None,
    line: Array,
    padded: Array,
    sums: Array,
    pair: Array,
    weight: Array,
    out: Array,
) -> None:
    """The same by dot instructions: the rows of y [B, M, P] are packed, two by two, as weights are."""
    batch, rows, columns = out.shape
    inner, wide = y.shape[1], pair.size // 2
    for i in range(pair.size):
        pair[i] = 0
    packed = _simd.PackedConv(packed.tile, weight, packed.bias, packed.table, packed.taps, packed.form)
    for b in range(batch):
        if b < len(y):  # otherwise one y serves all
            for tap in range(g.taps):
                for half in range(2):
                    for p in range(columns):
                        pair[half * wide + p] = y[b, 2 * tap + half, p] if 2 * tap + half < inner else 0
                for block in range(g.blocks):
                    count, at = min(g.lanes, columns - block * g.lanes), (block * g.taps + tap) * g.lanes
                    source = _simd.address(pair) + block * g.lanes * pair.itemsize
                    _simd.call(code, (source, _simd.address(weight) + 4 * at, count, wide * pair.itemsize, 0, 0))
        source, target = x[b % len(x)].reshape((1, rows, 1, inner)), out[b].reshape((1, rows, 1, columns))
        _simd.convolve(source, packed, g, None, late, line, padded, sums, target)


def _packing(row: InstructionSet, specs: Sequence[Spec], out: Spec, form: Form) -> tuple[Any, ...]:
    """Return the arguments of `_dots` between y and the output."""
    (rows, inner), columns = specs[0].shape[-2:], specs[1].shape[-1]
    weight, pixels = np.zeros((columns, inner, 1, 1), np.int16), Spec((1, inner, 1, rows), specs[0].dtype)
    build = _simd.pack(row, weight, np.zeros(columns, np.int64), SlidingWindow((1, 1)), pixels, form, out.dtype)
    _, packed, geometry, _, late, line, padded, sums, _ = build(In(0), Out(0)).arguments
    code = _llvm.address(_tile.spread, (row, "pairs", 8 * specs[1].dtype.itemsize), _tile.NAME, row.features)
    pair = Scratch(2 * (columns + 64), specs[1].dtype)
    return code, packed, geometry, late, line, padded, sums, pair, Scratch(packed.weight.size + 64, np.int32)


@dataclass(frozen=True, eq=False)
class MatMul(Clipped):
    """Product of two integer tensors of rank 2 and more; leading axes broadcast."""

    rescale: Rescale
    clip: tuple[int, int] | None = None

    layout: ClassVar[str] = "plain"

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x, y -> x @ y."""
        x, y = specs
        integer(x, "MatMul")
        integer(y, "MatMul")
        fits = min(len(x.shape), len(y.shape)) >= 2 and x.shape[-1] == y.shape[-2]
        require(fits, f"{x} and {y} cannot be multiplied as matrices")
        batch = broadcast([Spec(s.shape[:-2], s.dtype) for s in specs])
        return (Spec((*batch, x.shape[-2], y.shape[-1]), self.rescale.dtype),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Bound the accumulator by the length of the rows."""
        bound = specs[0].shape[-1] * magnitude(specs[0].dtype) * magnitude(specs[1].dtype)
        require(bound < 1 << 62, f"accumulators up to {bound} do not fit 62 bits")
        form = self.rescale.within(bound, self.clip)
        zero = np.zeros(1, np.int32 if bound < 1 << 31 else np.int64)  # its dtype is the accumulator's
        (y,) = self.infer(*specs)
        if all(spec.shape[1:-2] == y.shape[1:-2] and len(spec.shape) > 2 for spec in specs):
            x_in, y_in = (In(i, (-1, *spec.shape[-2:])) for i, spec in enumerate(specs))
            target, row = Out(0, (-1, *y.shape[-2:])), _simd.available() if bound < 1 << 31 else None
            if row is None or max(spec.dtype.itemsize for spec in specs) > 2 or 0 in y.shape:
                return Loop(_matmul, (x_in, y_in, zero, form, target))
            return Loop(_dots, (x_in, y_in, *_packing(row, specs, y, form), target))

        loop = Loop(_matmul, (In(0), In(1), zero, form, Out(0)))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            pair = [np.ascontiguousarray(_matrices(array, outs[0].shape[:-2])) for array in ins]
            loop(pair, [outs[0].reshape(-1, *outs[0].shape[-2:])])

        return run


def _matrices(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Return `x` with its leading axes broadcast to `batch` and joined into one."""
    wide = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return np.ascontiguousarray(wide).reshape(-1, *x.shape[-2:])
