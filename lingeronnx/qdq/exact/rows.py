"""Softmax, its logarithm and layer normalisation in nodes on integers; the algorithms are the kernels' own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel
from simulator.kernels.softmax import EXP2_C0, EXP2_C1, EXP2_C2, EXP2_C3, EXP2_C4, LOG2_E, NEWTON_SEED

from ...graph import ir
from .layers import KernelWriter, Shapes
from .nodes import IntegerNodes

__all__ = ["ROW_WRITERS"]

_INT64, _FLOAT = int(ir.DataType.INT64), int(ir.DataType.FLOAT)

#: ln of 512/512 to 1023/512 in Q16.
_LOG_TABLE = np.floor(2.0**16 * np.log(np.arange(512, 1024) / 512) + 0.5).astype(np.int64)

#: 2^14 / sqrt(t / 1024), rounded down, for t = 0..1023; those below 256 are not used.
_RSQRT_TABLE = np.array([min(32767, math.isqrt((1 << 38) // max(t, 1))) for t in range(1024)], np.int64)


def _apply_to_rows(
    builder: IntegerNodes,
    x: ir.Value,
    shape: tuple[int, ...],
    first: int,
    alone: bool,
    rule: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Return `rule` of x with its rows along the last axis: the axis `first` alone, or all from there on as one."""
    rank = len(shape)
    if first == rank - 1:
        return rule(x)
    if alone:
        order = [axis for axis in range(rank) if axis != first] + [first]
        return builder(
            "Transpose", rule(builder("Transpose", x, perm=order)), perm=[order.index(axis) for axis in range(rank)]
        )
    row = rule(builder("Reshape", x, np.array([0] * first + [-1])))
    return builder("Reshape", row, np.array([0] * first + list(shape[first:])))


def _exp(builder: IntegerNodes, d: ir.Value, fused: bool) -> ir.Value:
    """Return e^d in Q23 for d <= 0 in Q25."""
    t = builder.rsh(builder("Mul", d, LOG2_E), 31)
    whole, f = builder("Add", builder.down(t, 23), 1), builder("Sub", builder("Mod", t, 1 << 23), 0x800000)
    y = builder("Add", builder.rsh(builder("Mul", f, EXP2_C4), 23), EXP2_C3)
    for further in (EXP2_C2, EXP2_C1):
        y = builder("Add", builder.rsh(builder("Mul", y, f), 23), further)
    if fused:
        line, shift = (
            builder("Add", builder("Mul", builder("Mul", y, f), 1 << 7), EXP2_C0 << 30),
            builder("Sub", 30, whole),
        )
        rounded = builder.rsh_by(line, builder.at_most(shift, 62))
        return builder("Where", builder("Less", shift, 63), rounded, 0)
    y = builder("Add", builder.rsh(builder("Mul", y, f), 23), EXP2_C0)
    return builder.down(builder.times_power(y, builder.at_least(whole, 0)), builder.clamp(builder("Neg", whole), 0, 62))


def _shift_left(builder: IntegerNodes, x: ir.Value, left: ir.Value) -> ir.Value:
    """Return x << left, for a negative `left` x >> -left."""
    return builder.down(builder.times_power(x, builder.at_least(left, 0)), builder.at_least(builder("Neg", left), 0))


def _reciprocal_newton(builder: IntegerNodes, total: ir.Value) -> ir.Value:
    """Return 2^31 / total, about."""
    n = builder("Sub", 32 - 9, builder.bit_length(total))
    x = _shift_left(builder, total, n)
    y = builder("Sub", NEWTON_SEED, x)
    for _ in range(2):
        rest = builder("Mul", builder("Sub", 0x400000, builder.rsh(builder("Mul", x, y), 23)), 2)
        y = builder("Add", y, builder.rsh(builder("Mul", y, rest), 23))
    return _shift_left(builder, y, builder("Add", n, 1))


def _softmax_powers(
    builder: IntegerNodes, x: ir.Value, entry: np.ndarray, fused: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the differences to the largest, their powers and the saturated sum of these."""
    reals = builder.chosen(np.asarray(entry, np.int64), builder("Add", builder.wide(x), len(entry) // 2))
    top, _ = builder.several("TopK", reals, np.array([1]), outputs=2, axis=-1)
    d = builder.sat(builder("Sub", reals, top), 32)
    e = _exp(builder, d, fused)
    return d, e, builder.sat(builder.total(e), 32)


def _softmax(
    builder: IntegerNodes, kernel: k.Softmax, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    form = kernel.rescale.within(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        _, e, total = _softmax_powers(builder, x, kernel.entry, kernel.way == "fused")
        if kernel.way == "newton":
            factor = _reciprocal_newton(builder, total)
            share = builder.sat(builder.rsh(builder("Mul", factor, e), 31), 32)
        else:
            factor = builder("Mul", builder("Div", 1 << 52, total), 2)
            share = builder.rsh(builder("Mul", factor, e), 38)
        return builder.narrow(builder.rescaled(share, form), kernel.rescale.dtype)

    return [_apply_to_rows(builder, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.alone, row)]


def _log_softmax(
    builder: IntegerNodes, kernel: k.LogSoftmax, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    form = kernel.rescale.within(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        d, _, total = _softmax_powers(builder, x, kernel.entry, kernel.way == "fused")
        bits = builder.bit_length(total)
        place = builder("Sub", _shift_left(builder, total, builder("Sub", 10, bits)), 512)
        log = builder("Add", builder("Mul", builder("Sub", bits, 24), 45426), builder.chosen(_LOG_TABLE, place))
        y = builder.rsh(builder("Sub", builder.down(d, 9), log), 1)
        return builder.narrow(builder.rescaled(y, form), kernel.rescale.dtype)

    return [_apply_to_rows(builder, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.alone, row)]


def _layer_norm(
    builder: IntegerNodes, kernel: k.LayerNorm, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    count, narrow = len(kernel.gamma), kernel.fraction == 10
    gamma, beta = (np.asarray(v).astype(np.int64) for v in (kernel.gamma, kernel.beta))
    top = 1 << (15 if narrow else 31)
    bound = top * int(np.abs(gamma).max(initial=0)) + int(np.abs(beta).max(initial=0))
    form = kernel.rescale.within(bound if narrow else min(bound, 1 << 31))

    def row(given: ir.Value) -> ir.Value:
        x = builder.wide(given)
        total, squares = builder.total(x), builder.total(builder("Mul", x, x))
        spread = builder("Sub", builder("Mul", squares, count), builder("Mul", total, total))
        spread = builder.at_least(builder("Add", spread, kernel.epsilon), 0)
        # of a spread of 0 all numbers are equal: n is 0 whatever the root and the shift
        k = builder("Sub", builder("Div", builder.at_least(builder("Sub", builder.bit_length(spread), 1), 0), 2), 4)
        place = _shift_left(builder, spread, builder("Mul", k, -2))
        centered = builder("Sub", builder("Mul", x, count), total)
        n = builder.rsh_by(
            builder("Mul", centered, builder.chosen(_RSQRT_TABLE, place)), builder("Add", k, 19 - kernel.fraction)
        )
        if narrow:
            acc = builder("Add", builder("Mul", builder.sat(n, 16), gamma), beta)
        else:
            acc = builder.sat(builder("Add", builder("Mul", builder.sat(n, 32), gamma), beta), 32)
            acc = builder("Cast", builder("Cast", acc, to=_FLOAT), to=_INT64)
        return builder.narrow(builder.rescaled(acc, form), kernel.rescale.dtype)

    return [_apply_to_rows(builder, xs[0], shapes[0], len(shapes[0]) - kernel.axes, False, row)]


ROW_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Softmax: _softmax,
    k.LogSoftmax: _log_softmax,
    k.LayerNorm: _layer_norm,
}
