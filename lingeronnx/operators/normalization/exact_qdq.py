"""Write softmax, its logarithm, layer and instance normalization in integer operators.

The algorithms are those of the simulator's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel
from simulator.kernels.layer_norm import InstanceNorm
from simulator.kernels.softmax import (
    EXP2_C0,
    EXP2_C1,
    EXP2_C2,
    EXP2_C3,
    EXP2_C4,
    LOG2_E,
    NEWTON_SEED,
)

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes

__all__ = ["EXACT_WRITERS"]

_INT64, _FLOAT = int(ir.DataType.INT64), int(ir.DataType.FLOAT)

#: ln of 512/512 to 1023/512 in Q16.
_LOG_TABLE = np.floor(2.0**16 * np.log(np.arange(512, 1024) / 512) + 0.5).astype(np.int64)

#: 2^14 / sqrt(t / 1024), rounded down, for t = 0..1023; t >= 256 is used.
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
    """Apply `rule` to `x` with its rows along the last axis, and restore the shape of `x`.

    Reshapes or transposes are appended where needed.

    Parameters
    ----------
    x, shape
        Input and its shape.
    first, alone
        First axis of a row; whether a row extends along this axis only.
    rule
        Function of a value whose rows are along the last axis.
    """
    rank = len(shape)
    if first == rank - 1:
        return rule(x)
    if alone:
        perm = [axis for axis in range(rank) if axis != first] + [first]
        inverse_perm = [perm.index(axis) for axis in range(rank)]
        rows = rule(builder("Transpose", x, perm=perm))
        return builder("Transpose", rows, perm=inverse_perm)
    rows = rule(builder("Reshape", x, np.array([0] * first + [-1])))
    return builder("Reshape", rows, np.array([0] * first + list(shape[first:])))


def _exp(builder: IntegerNodes, d: ir.Value, fused: bool) -> ir.Value:
    """Append nodes that return e^`d` in Q23 for d <= 0 in Q25, by a polynomial of 2^f.

    It is shifted by the whole part of d * log2(e). With `fused` the last two steps are rounded
    once.
    """
    t = builder.shift_right_round(builder("Mul", d, LOG2_E), 31)
    exponent = builder("Add", builder.shift_right_floor(t, 23), 1)
    f = builder("Sub", builder("Mod", t, 1 << 23), 0x800000)
    y = builder("Add", builder.shift_right_round(builder("Mul", f, EXP2_C4), 23), EXP2_C3)
    for coefficient in (EXP2_C2, EXP2_C1):
        y = builder("Add", builder.shift_right_round(builder("Mul", y, f), 23), coefficient)
    if fused:
        product = builder("Mul", builder("Mul", y, f), 1 << 7)
        y = builder("Add", product, EXP2_C0 << 30)
        shift = builder("Sub", 30, exponent)
        rounded = builder.shift_right_round_by(y, builder.clamp_max(shift, 62))
        return builder("Where", builder("Less", shift, 63), rounded, 0)
    y = builder("Add", builder.shift_right_round(builder("Mul", y, f), 23), EXP2_C0)
    return builder.shift_right_floor(
        builder.multiply_by_power_of_two(y, builder.clamp_min(exponent, 0)),
        builder.clamp(builder("Neg", exponent), 0, 62),
    )


def _shift_left(builder: IntegerNodes, x: ir.Value, shift: ir.Value) -> ir.Value:
    """Append nodes that return `x` << `shift`, or x >> -shift (rounded down) if it is negative."""
    return builder.shift_right_floor(
        builder.multiply_by_power_of_two(x, builder.clamp_min(shift, 0)),
        builder.clamp_min(builder("Neg", shift), 0),
    )


def _reciprocal_newton(builder: IntegerNodes, total: ir.Value) -> ir.Value:
    """Append nodes that return approximately 2^31 / `total`, int64, by two Newton steps.

    `total` (positive) is first shifted to 23 bits; same shape.
    """
    n = builder("Sub", 32 - 9, builder.bit_length(total))
    x = _shift_left(builder, total, n)
    y = builder("Sub", NEWTON_SEED, x)
    for _ in range(2):
        product = builder.shift_right_round(builder("Mul", x, y), 23)
        error = builder("Mul", builder("Sub", 0x400000, product), 2)
        y = builder("Add", y, builder.shift_right_round(builder("Mul", y, error), 23))
    return _shift_left(builder, y, builder("Add", n, 1))


def _softmax_powers(
    builder: IntegerNodes, x: ir.Value, entry: np.ndarray, fused: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Append nodes that return (d, e, sum of e) for rows `x` along the last axis.

    d are the differences to the row's maximum, e = exp(d) in Q23. `entry` is the table that
    converts inputs to Q25; with `fused` the exponential rounds its last two steps once. The sum is
    saturated to 32 bits.
    """
    index = builder("Add", builder.to_int64(x), len(entry) // 2)
    values = builder.gather(np.asarray(entry, np.int64), index)
    top, _ = builder.add_multi_output("TopK", values, np.array([1]), outputs=2, axis=-1)
    d = builder.saturate(builder("Sub", values, top), 32)
    e = _exp(builder, d, fused)
    return d, e, builder.saturate(builder.reduce_sum(e), 32)


def _write_softmax(
    builder: IntegerNodes,
    kernel: k.Softmax,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a softmax of `xs[0]`, requantized; return [the output].

    Along ``kernel.axis`` if `single_axis`, else along it and all later axes. The kernel's division
    mode "newton" divides with an approximate reciprocal, others with an integer division; "fused"
    also rounds the exponential once less.
    """
    form, fused = kernel.rescale.compile_for_bound(1 << 31), kernel.division_mode == "fused"

    def write_rows(x: ir.Value) -> ir.Value:
        """Append the requantized softmax along the last axis of `x`; return the output."""
        _, e, total = _softmax_powers(builder, x, kernel.input_table, fused)
        if kernel.division_mode == "newton":
            factor = _reciprocal_newton(builder, total)
            y = builder.saturate(builder.shift_right_round(builder("Mul", factor, e), 31), 32)
        else:
            factor = builder("Mul", builder("Div", 1 << 52, total), 2)
            y = builder.shift_right_round(builder("Mul", factor, e), 38)
        return builder.narrow(builder.rescale(y, form), kernel.rescale.dtype)

    axis = kernel.axis % len(shapes[0])
    return [_apply_to_rows(builder, xs[0], shapes[0], axis, kernel.single_axis, write_rows)]


def _write_log_softmax(
    builder: IntegerNodes,
    kernel: k.LogSoftmax,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for the requantized logarithm of a softmax of `xs[0]`; return [the output].

    The logarithm of the sum comes from a table, by the top 10 bits of the sum. Rows lie along
    ``kernel.axis`` if `single_axis`, else along it and all later axes.
    """
    form, fused = kernel.rescale.compile_for_bound(1 << 31), kernel.division_mode == "fused"

    def write_rows(x: ir.Value) -> ir.Value:
        """Append the requantized logarithm of the softmax along the last axis of `x`.

        The logarithm of the sum comes from a table of 512 entries.
        """
        d, _, total = _softmax_powers(builder, x, kernel.input_table, fused)
        bits = builder.bit_length(total)
        index = builder("Sub", _shift_left(builder, total, builder("Sub", 10, bits)), 512)
        log_exponent = builder("Mul", builder("Sub", bits, 24), 45426)
        log = builder("Add", log_exponent, builder.gather(_LOG_TABLE, index))
        y = builder.shift_right_round(builder("Sub", builder.shift_right_floor(d, 9), log), 1)
        return builder.narrow(builder.rescale(y, form), kernel.rescale.dtype)

    axis = kernel.axis % len(shapes[0])
    return [_apply_to_rows(builder, xs[0], shapes[0], axis, kernel.single_axis, write_rows)]


def _normalize_rows(
    builder: IntegerNodes, x: ir.Value, count: int, epsilon: int, fraction_bits: int
) -> ir.Value:
    """Append nodes that return (x - mean) / deviation of rows `x` of `count` elements, int64.

    Rows lie along the last axis. The result has `fraction_bits` and is not saturated. The inverse
    root of the spread (count^2 * variance + epsilon) comes from a table.
    """
    x = builder.to_int64(x)
    total, squares = builder.reduce_sum(x), builder.reduce_sum(builder("Mul", x, x))
    spread = builder("Sub", builder("Mul", squares, count), builder("Mul", total, total))
    spread = builder.clamp_min(builder("Add", spread, epsilon), 0)
    # if the spread is 0 all elements are equal: n is 0 whatever the root and the shift
    bits = builder.clamp_min(builder("Sub", builder.bit_length(spread), 1), 0)
    k = builder("Sub", builder("Div", bits, 2), 4)
    index = _shift_left(builder, spread, builder("Mul", k, -2))
    centered = builder("Sub", builder("Mul", x, count), total)
    product = builder("Mul", centered, builder.gather(_RSQRT_TABLE, index))
    return builder.shift_right_round_by(product, builder("Add", k, 19 - fraction_bits))


def _write_layer_norm(
    builder: IntegerNodes,
    kernel: k.LayerNorm,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a layer normalization of `xs[0]` with gamma and beta; return [the output].

    It is over the last `row_axes` axes of the kernel. The inverse root comes from a table. With 10
    fractional bits normalized values have 16 bits; otherwise 32, and the sum passes through
    float32.
    """
    count, narrow = len(kernel.gamma), kernel.fraction_bits == 10
    gamma, beta = (np.asarray(v).astype(np.int64) for v in (kernel.gamma, kernel.beta))
    top = 1 << (15 if narrow else 31)
    bound = top * int(np.abs(gamma).max(initial=0)) + int(np.abs(beta).max(initial=0))
    form = kernel.rescale.compile_for_bound(bound if narrow else min(bound, 1 << 31))

    def write_rows(x: ir.Value) -> ir.Value:
        """Append the requantized normalization along the last axis of `x`, times gamma plus beta.

        With 10 fractional bits the normalized values saturate to 16 bits, else they and the sums
        saturate to 32.
        """
        n = _normalize_rows(builder, x, count, kernel.epsilon, kernel.fraction_bits)
        if narrow:
            acc = builder("Add", builder("Mul", builder.saturate(n, 16), gamma), beta)
        else:
            acc = builder.saturate(
                builder("Add", builder("Mul", builder.saturate(n, 32), gamma), beta), 32
            )
            acc = builder("Cast", builder("Cast", acc, to=_FLOAT), to=_INT64)
        return builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)

    first = len(shapes[0]) - kernel.row_axes
    return [_apply_to_rows(builder, xs[0], shapes[0], first, False, write_rows)]


def _write_instance_norm(
    builder: IntegerNodes,
    kernel: InstanceNorm,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a normalization of each channel of `xs[0]`; return [the output].

    Gamma and beta have one value per channel, axis 1. Normalized values have 15 fractional bits.
    """
    gamma, beta = (np.asarray(v).astype(np.int64) for v in (kernel.gamma, kernel.beta))
    bound = (1 << 31) * int(np.abs(gamma).max()) + int(np.abs(beta).max())
    form = kernel.rescale.compile_for_bound(bound)
    count = math.prod(shapes[0][2:])

    def write_rows(x: ir.Value) -> ir.Value:
        """Append the requantized normalization of x [N, C, count], times gamma plus beta."""
        n = builder.saturate(_normalize_rows(builder, x, count, kernel.epsilon, 15), 32)
        acc = builder("Add", builder("Mul", n, gamma.reshape(-1, 1)), beta.reshape(-1, 1))
        return builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)

    return [_apply_to_rows(builder, xs[0], shapes[0], 2, False, write_rows)]


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Softmax: _write_softmax,
    k.LogSoftmax: _write_log_softmax,
    k.LayerNorm: _write_layer_norm,
    InstanceNorm: _write_instance_norm,
}
