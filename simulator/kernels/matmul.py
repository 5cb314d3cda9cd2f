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
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale
from simulator.instruction_sets import InstructionSet
from simulator.kernel import Array, RunFunction, TensorSpec, require
from simulator.kernels.loops import _conv_simd, _register_tile
from simulator.kernels.loops._common import (
    ClampableKernel,
    SlidingWindow,
    broadcast_shape,
    max_magnitude,
    require_signed_integer,
)
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef, Scratch

__all__ = ["MatMul"]


@jit(allocates=True)
def _matmul(x: Array, y: Array, zero: Array, rescale: RescaleForm, out: Array) -> None:
    """Fill out [B, N, P] with rescale(x [B, N, M] @ y [B, M, P]), in integers.

    An x or y of batch 1 serves all. `zero` is any array of the accumulator's type, int32 or int64;
    its values are not used.
    """
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
                target[p] = apply_rescale(rescale, acc[p])


@jit
def _matmul_simd(
    x: Array,
    y: Array,
    code: int,
    packed: _conv_simd.PackedConv,
    g: _conv_simd.WindowGeometry,
    spread: _conv_simd.InterleavePlan,
    late: RescaleForm | None,
    line: Array,
    padded: Array,
    sums: Array,
    pair: Array,
    weight: Array,
    out: Array,
) -> None:
    """Fill out [B, N, P] with the rescaled product x [B, N, M] @ y [B, M, P], by dot instructions.

    x and y have at most 16 bits; one of batch 1 serves all. The rows of y are packed in pairs, like
    the weights of a convolution, by the function at address `code`. `pair` and `weight` are scratch
    memory for two rows, and for packed y; `packed`, `g` and `late` are constants, sizes and
    deferred rescale form of a 1x1 convolution, `line`, `padded` and `sums` its scratch memory.
    """
    batch, rows, columns = out.shape
    inner, wide = y.shape[1], pair.size // 2
    for i in range(pair.size):
        pair[i] = 0
    packed = _conv_simd.PackedConv(
        packed.tile,
        weight,
        packed.bias,
        packed.table,
        packed.taps,
        packed.form,
        packed.places,
    )
    for b in range(batch):
        if b < len(y):  # a single y is packed once and serves all
            for tap in range(g.taps):
                for half in range(2):
                    for p in range(columns):
                        pair[half * wide + p] = (
                            y[b, 2 * tap + half, p] if 2 * tap + half < inner else 0
                        )
                for block in range(g.blocks):
                    count, at = (
                        min(g.lanes, columns - block * g.lanes),
                        (block * g.taps + tap) * g.lanes,
                    )
                    source = _conv_simd.array_address(pair) + block * g.lanes * pair.itemsize
                    _conv_simd.call_code(
                        code,
                        (
                            source,
                            _conv_simd.array_address(weight) + 4 * at,
                            count,
                            1,
                            0,
                            0,
                            wide * pair.itemsize,
                            0,
                            0,
                        ),
                    )
        source, target = (
            view_as(x[b % len(x)], (1, rows, 1, inner)),
            view_as(out[b], (1, rows, 1, columns)),
        )
        _conv_simd.convolve(source, packed, g, spread, late, line, padded, sums, target)


def _make_simd_arguments(
    instructions: InstructionSet, specs: Sequence[TensorSpec], out: TensorSpec, form: RescaleForm
) -> tuple[Any, ...]:
    """Return the arguments that `_matmul_simd` takes between y and out.

    The loop is that of a 1x1 convolution whose weights are packed from y at run time; `specs` are
    those of x [..., R, K] and y [..., K, O].
    """
    (rows, inner), columns = specs[0].shape[-2:], specs[1].shape[-1]
    placeholder_weight = np.zeros((columns, inner, 1, 1), np.int16)
    pixels, bias = TensorSpec((1, inner, 1, rows), specs[0].dtype), np.zeros(columns, np.int64)
    build = _conv_simd.pack_convolution(
        instructions, placeholder_weight, bias, SlidingWindow((1, 1)), pixels, form, out.dtype
    )
    _, packed, geometry, spread, late, line, padded, sums, _ = build(
        InputRef(0), OutputRef(0)
    ).arguments
    code = _llvm.get_function_address(
        _register_tile.write_interleave_ir,
        (instructions, "pairs", 8 * specs[1].dtype.itemsize),
        _register_tile.FUNCTION_NAME,
        instructions.features,
    )
    pair = Scratch(2 * (columns + 64), specs[1].dtype)
    weight = Scratch(packed.weight.size + 64, np.int32)
    return code, packed, geometry, spread, late, line, padded, sums, pair, weight


@dataclass(frozen=True, eq=False)
class MatMul(ClampableKernel):
    """Matrix product of two integer tensors of rank 2 or more; leading axes broadcast."""

    rescale: Rescale
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "plain"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the matrix product x @ y with broadcast leading axes, of the type of the rescale.

        Raises SimulatorError unless both are signed integers of at least two axes that can be
        multiplied.
        """
        x, y = specs
        require_signed_integer(x, "MatMul")
        require_signed_integer(y, "MatMul")
        is_compatible = min(len(x.shape), len(y.shape)) >= 2 and x.shape[-1] == y.shape[-2]
        require(is_compatible, f"{x} and {y} cannot be multiplied as matrices")
        batch = broadcast_shape([TensorSpec(s.shape[:-2], s.dtype) for s in specs])
        return (TensorSpec((*batch, x.shape[-2], y.shape[-1]), self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of the matrix product; the length of a sum bounds the accumulator.

        Operands with equal leading axes are multiplied as stacks, others are expanded at run time.
        Raises SimulatorError if sums do not fit 62 bits.
        """
        bound = specs[0].shape[-1] * max_magnitude(specs[0].dtype) * max_magnitude(specs[1].dtype)
        require(bound < 1 << 62, f"accumulators up to {bound} do not fit 62 bits")
        form = self.rescale.compile_for_bound(bound, self.clip_bounds)
        zero = np.zeros(1, np.int32 if bound < 1 << 31 else np.int64)  # gives the accumulator type
        (y,) = self.infer(*specs)
        if all(spec.shape[1:-2] == y.shape[1:-2] and len(spec.shape) > 2 for spec in specs):
            return self._build_stacked(specs, y, zero, form)
        loop = NativeLoop(_matmul, (InputRef(0), InputRef(1), zero, form, OutputRef(0)))

        def run_expanded(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Run the loop on copies of the operands whose leading axes are broadcast."""
            operands = [_broadcast_batches(array, outs[0].shape[:-2]) for array in ins]
            loop(operands, [outs[0].reshape(-1, *outs[0].shape[-2:])])

        return run_expanded

    def _build_stacked(
        self, specs: Sequence[TensorSpec], y: TensorSpec, zero: np.ndarray, form: RescaleForm
    ) -> NativeLoop:
        """Return the matrix product loop for operands whose leading axes match but for the batch.

        `y` is the output, `zero` an array of the accumulator's type. With dot instructions where
        sums fit 32 bits and operands 16.
        """
        operands = [InputRef(i, (-1, *spec.shape[-2:])) for i, spec in enumerate(specs)]
        target = OutputRef(0, (-1, *y.shape[-2:]))
        is_narrow = zero.dtype == np.int32 and max(spec.dtype.itemsize for spec in specs) <= 2
        instructions = _conv_simd.active_instruction_set() if is_narrow else None
        if instructions is None or 0 in y.shape:
            return NativeLoop(_matmul, (*operands, zero, form, target))
        simd_arguments = _make_simd_arguments(instructions, specs, y, form)
        return NativeLoop(_matmul_simd, (*operands, *simd_arguments, target))


def _broadcast_batches(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Broadcast the leading axes of `x` to `batch` and merge them; return a contiguous array."""
    expanded = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return np.ascontiguousarray(expanded).reshape(-1, *x.shape[-2:])
