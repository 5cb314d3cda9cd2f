"""Softmax, its logarithm and layer normalisation in nodes on integers.

The algorithms are the kernels' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel
from simulator.kernels.softmax import (
    EXP2_C0,
    EXP2_C1,
    EXP2_C2,
    EXP2_C3,
    EXP2_C4,
    LOG2_E,
    NEWTON_SEED,
)

from ...graph import ir
from .layers import KernelWriter, Shapes
from .nodes import IntegerNodes

__all__ = ["ROW_WRITERS"]

_INT64, _FLOAT = int(ir.DataType.INT64), int(ir.DataType.FLOAT)

#: ln of 512/512 to 1023/512 in Q16.
_LOG_TABLE = np.floor(2.0**16 * np.log(np.arange(512, 1024) / 512) + 0.5).astype(np.int64)

#: 2^14 / sqrt(t / 1024), rounded down, for t = 0..1023; those below 256 are not used.
_RSQRT_TABLE = np.array(
    [min(32767, math.isqrt((1 << 38) // max(t, 1))) for t in range(1024)], np.int64
)


def _apply_to_rows(
    builder: IntegerNodes,
    x: ir.Value,
    shape: tuple[int, ...],
    first: int,
    alone: bool,
    rule: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Return `rule` of x with its rows along the last axis.

    The axis `first` alone, or all from there on as one.
    """
    rank = len(shape)
    if first == rank - 1:
        return rule(x)
    if alone:
        order = [axis for axis in range(rank) if axis != first] + [first]
        return builder(
            "Transpose",
            rule(builder("Transpose", x, perm=order)),
            perm=[order.index(axis) for axis in range(rank)],
        )
    row = rule(builder("Reshape", x, np.array([0] * first + [-1])))
    return builder("Reshape", row, np.array([0] * first + list(shape[first:])))


def _exp(builder: IntegerNodes, d: ir.Value, fused: bool) -> ir.Value:
    """Return e^d in Q23 for d <= 0 in Q25."""
    t = builder.shift_right_round(builder("Mul", d, LOG2_E), 31)
    whole, f = (
        builder("Add", builder.shift_right_floor(t, 23), 1),
        builder("Sub", builder("Mod", t, 1 << 23), 0x800000),
    )
    y = builder("Add", builder.shift_right_round(builder("Mul", f, EXP2_C4), 23), EXP2_C3)
    for further in (EXP2_C2, EXP2_C1):
        y = builder("Add", builder.shift_right_round(builder("Mul", y, f), 23), further)
    if fused:
        line, shift = (
            builder("Add", builder("Mul", builder("Mul", y, f), 1 << 7), EXP2_C0 << 30),
            builder("Sub", 30, whole),
        )
        rounded = builder.shift_right_round_by(line, builder.clamp_max(shift, 62))
        return builder("Where", builder("Less", shift, 63), rounded, 0)
    y = builder("Add", builder.shift_right_round(builder("Mul", y, f), 23), EXP2_C0)
    return builder.shift_right_floor(
        builder.multiply_by_power_of_two(y, builder.clamp_min(whole, 0)),
        builder.clamp(builder("Neg", whole), 0, 62),
    )


def _shift_left(builder: IntegerNodes, x: ir.Value, left: ir.Value) -> ir.Value:
    """Return x << left, for a negative `left` x >> -left."""
    return builder.shift_right_floor(
        builder.multiply_by_power_of_two(x, builder.clamp_min(left, 0)),
        builder.clamp_min(builder("Neg", left), 0),
    )


def _reciprocal_newton(builder: IntegerNodes, total: ir.Value) -> ir.Value:
    """Return 2^31 / total, about."""
    n = builder("Sub", 32 - 9, builder.bit_length(total))
    x = _shift_left(builder, total, n)
    y = builder("Sub", NEWTON_SEED, x)
    for _ in range(2):
        rest = builder(
            "Mul", builder("Sub", 0x400000, builder.shift_right_round(builder("Mul", x, y), 23)), 2
        )
        y = builder("Add", y, builder.shift_right_round(builder("Mul", y, rest), 23))
    return _shift_left(builder, y, builder("Add", n, 1))


def _softmax_powers(
    builder: IntegerNodes, x: ir.Value, entry: np.ndarray, fused: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the differences to the largest, their powers and the saturated sum of these."""
    reals = builder.gather(
        np.asarray(entry, np.int64), builder("Add", builder.to_int64(x), len(entry) // 2)
    )
    top, _ = builder.add_multi_output("TopK", reals, np.array([1]), outputs=2, axis=-1)
    d = builder.saturate(builder("Sub", reals, top), 32)
    e = _exp(builder, d, fused)
    return d, e, builder.saturate(builder.reduce_sum(e), 32)


def _softmax(
    builder: IntegerNodes,
    kernel: k.Softmax,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    form = kernel.rescale.compile_for_bound(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        _, e, total = _softmax_powers(
            builder, x, kernel.input_table, kernel.division_mode == "fused"
        )
        if kernel.division_mode == "newton":
            factor = _reciprocal_newton(builder, total)
            share = builder.saturate(builder.shift_right_round(builder("Mul", factor, e), 31), 32)
        else:
            factor = builder("Mul", builder("Div", 1 << 52, total), 2)
            share = builder.shift_right_round(builder("Mul", factor, e), 38)
        return builder.narrow(builder.rescale(share, form), kernel.rescale.dtype)

    return [
        _apply_to_rows(
            builder, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.single_axis, row
        )
    ]


def _log_softmax(
    builder: IntegerNodes,
    kernel: k.LogSoftmax,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    form = kernel.rescale.compile_for_bound(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        d, _, total = _softmax_powers(
            builder, x, kernel.input_table, kernel.division_mode == "fused"
        )
        bits = builder.bit_length(total)
        place = builder("Sub", _shift_left(builder, total, builder("Sub", 10, bits)), 512)
        log = builder(
            "Add",
            builder("Mul", builder("Sub", bits, 24), 45426),
            builder.gather(_LOG_TABLE, place),
        )
        y = builder.shift_right_round(builder("Sub", builder.shift_right_floor(d, 9), log), 1)
        return builder.narrow(builder.rescale(y, form), kernel.rescale.dtype)

    return [
        _apply_to_rows(
            builder, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.single_axis, row
        )
    ]


def _layer_norm(
    builder: IntegerNodes,
    kernel: k.LayerNorm,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    count, narrow = len(kernel.gamma), kernel.fraction_bits == 10
    gamma, beta = (np.asarray(v).astype(np.int64) for v in (kernel.gamma, kernel.beta))
    top = 1 << (15 if narrow else 31)
    bound = top * int(np.abs(gamma).max(initial=0)) + int(np.abs(beta).max(initial=0))
    form = kernel.rescale.compile_for_bound(bound if narrow else min(bound, 1 << 31))

    def row(given: ir.Value) -> ir.Value:
        x = builder.to_int64(given)
        total, squares = builder.reduce_sum(x), builder.reduce_sum(builder("Mul", x, x))
        spread = builder("Sub", builder("Mul", squares, count), builder("Mul", total, total))
        spread = builder.clamp_min(builder("Add", spread, kernel.epsilon), 0)
        # of a spread of 0 all numbers are equal: n is 0 whatever the root and the shift
        k = builder(
            "Sub",
            builder("Div", builder.clamp_min(builder("Sub", builder.bit_length(spread), 1), 0), 2),
            4,
        )
        place = _shift_left(builder, spread, builder("Mul", k, -2))
        centered = builder("Sub", builder("Mul", x, count), total)
        n = builder.shift_right_round_by(
            builder("Mul", centered, builder.gather(_RSQRT_TABLE, place)),
            builder("Add", k, 19 - kernel.fraction_bits),
        )
        if narrow:
            acc = builder("Add", builder("Mul", builder.saturate(n, 16), gamma), beta)
        else:
            acc = builder.saturate(
                builder("Add", builder("Mul", builder.saturate(n, 32), gamma), beta), 32
            )
            acc = builder("Cast", builder("Cast", acc, to=_FLOAT), to=_INT64)
        return builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)

    return [_apply_to_rows(builder, xs[0], shapes[0], len(shapes[0]) - kernel.row_axes, False, row)]


ROW_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Softmax: _softmax,
    k.LogSoftmax: _log_softmax,
    k.LayerNorm: _layer_norm,
}
