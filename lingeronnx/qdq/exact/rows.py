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
    do: IntegerNodes, x: ir.Value, shape: tuple[int, ...], first: int, alone: bool, rule: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """Return `rule` of x with its rows along the last axis: the axis `first` alone, or all from there on as one."""
    rank = len(shape)
    if first == rank - 1:
        return rule(x)
    if alone:
        order = [axis for axis in range(rank) if axis != first] + [first]
        return do("Transpose", rule(do("Transpose", x, perm=order)), perm=[order.index(axis) for axis in range(rank)])
    row = rule(do("Reshape", x, np.array([0] * first + [-1])))
    return do("Reshape", row, np.array([0] * first + list(shape[first:])))


def _exp(do: IntegerNodes, d: ir.Value, fused: bool) -> ir.Value:
    """Return e^d in Q23 for d <= 0 in Q25."""
    t = do.rsh(do("Mul", d, LOG2_E), 31)
    whole, f = do("Add", do.down(t, 23), 1), do("Sub", do("Mod", t, 1 << 23), 0x800000)
    y = do("Add", do.rsh(do("Mul", f, EXP2_C4), 23), EXP2_C3)
    for further in (EXP2_C2, EXP2_C1):
        y = do("Add", do.rsh(do("Mul", y, f), 23), further)
    if fused:
        line, shift = do("Add", do("Mul", do("Mul", y, f), 1 << 7), EXP2_C0 << 30), do("Sub", 30, whole)
        rounded = do.rsh_by(line, do.at_most(shift, 62))
        return do("Where", do("Less", shift, 63), rounded, 0)
    y = do("Add", do.rsh(do("Mul", y, f), 23), EXP2_C0)
    return do.down(do.times_power(y, do.at_least(whole, 0)), do.clamp(do("Neg", whole), 0, 62))


def _shift_left(do: IntegerNodes, x: ir.Value, left: ir.Value) -> ir.Value:
    """Return x << left, for a negative `left` x >> -left."""
    return do.down(do.times_power(x, do.at_least(left, 0)), do.at_least(do("Neg", left), 0))


def _reciprocal_newton(do: IntegerNodes, total: ir.Value) -> ir.Value:
    """Return 2^31 / total, about."""
    n = do("Sub", 32 - 9, do.bit_length(total))
    x = _shift_left(do, total, n)
    y = do("Sub", NEWTON_SEED, x)
    for _ in range(2):
        rest = do("Mul", do("Sub", 0x400000, do.rsh(do("Mul", x, y), 23)), 2)
        y = do("Add", y, do.rsh(do("Mul", y, rest), 23))
    return _shift_left(do, y, do("Add", n, 1))


def _softmax_powers(
    do: IntegerNodes, x: ir.Value, entry: np.ndarray, fused: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the differences to the largest, their powers and the saturated sum of these."""
    reals = do.chosen(np.asarray(entry, np.int64), do("Add", do.wide(x), len(entry) // 2))
    top, _ = do.several("TopK", reals, np.array([1]), outputs=2, axis=-1)
    d = do.sat(do("Sub", reals, top), 32)
    e = _exp(do, d, fused)
    return d, e, do.sat(do.total(e), 32)


def _softmax(
    do: IntegerNodes, kernel: k.Softmax, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    form = kernel.rescale.within(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        _, e, total = _softmax_powers(do, x, kernel.entry, kernel.way == "fused")
        if kernel.way == "newton":
            factor = _reciprocal_newton(do, total)
            share = do.sat(do.rsh(do("Mul", factor, e), 31), 32)
        else:
            factor = do("Mul", do("Div", 1 << 52, total), 2)
            share = do.rsh(do("Mul", factor, e), 38)
        return do.narrow(do.rescaled(share, form), kernel.rescale.dtype)

    return [_apply_to_rows(do, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.alone, row)]


def _log_softmax(
    do: IntegerNodes, kernel: k.LogSoftmax, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    form = kernel.rescale.within(1 << 31)

    def row(x: ir.Value) -> ir.Value:
        d, _, total = _softmax_powers(do, x, kernel.entry, kernel.way == "fused")
        bits = do.bit_length(total)
        place = do("Sub", _shift_left(do, total, do("Sub", 10, bits)), 512)
        log = do("Add", do("Mul", do("Sub", bits, 24), 45426), do.chosen(_LOG_TABLE, place))
        y = do.rsh(do("Sub", do.down(d, 9), log), 1)
        return do.narrow(do.rescaled(y, form), kernel.rescale.dtype)

    return [_apply_to_rows(do, xs[0], shapes[0], kernel.axis % len(shapes[0]), kernel.alone, row)]


def _layer_norm(
    do: IntegerNodes, kernel: k.LayerNorm, xs: Sequence[ir.Value], shapes: Shapes, types: Sequence[np.dtype]
) -> list[ir.Value]:
    count, narrow = len(kernel.gamma), kernel.fraction == 10
    gamma, beta = (np.asarray(v).astype(np.int64) for v in (kernel.gamma, kernel.beta))
    top = 1 << (15 if narrow else 31)
    bound = top * int(np.abs(gamma).max(initial=0)) + int(np.abs(beta).max(initial=0))
    form = kernel.rescale.within(bound if narrow else min(bound, 1 << 31))

    def row(given: ir.Value) -> ir.Value:
        x = do.wide(given)
        total, squares = do.total(x), do.total(do("Mul", x, x))
        spread = do("Sub", do("Mul", squares, count), do("Mul", total, total))
        spread = do.at_least(do("Add", spread, kernel.epsilon), 0)
        # of a spread of 0 all numbers are equal: n is 0 whatever the root and the shift
        k = do("Sub", do("Div", do.at_least(do("Sub", do.bit_length(spread), 1), 0), 2), 4)
        place = _shift_left(do, spread, do("Mul", k, -2))
        centered = do("Sub", do("Mul", x, count), total)
        n = do.rsh_by(do("Mul", centered, do.chosen(_RSQRT_TABLE, place)), do("Add", k, 19 - kernel.fraction))
        if narrow:
            acc = do("Add", do("Mul", do.sat(n, 16), gamma), beta)
        else:
            acc = do.sat(do("Add", do("Mul", do.sat(n, 32), gamma), beta), 32)
            acc = do("Cast", do("Cast", acc, to=_FLOAT), to=_INT64)
        return do.narrow(do.rescaled(acc, form), kernel.rescale.dtype)

    return [_apply_to_rows(do, xs[0], shapes[0], len(shapes[0]) - kernel.axes, False, row)]


ROW_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Softmax: _softmax,
    k.LogSoftmax: _log_softmax,
    k.LayerNorm: _layer_norm,
}
