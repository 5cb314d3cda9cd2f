"""Write layers, sums, products, pools and tables in integer operators.

Each writer takes the builder, the kernel, the inputs (integers of their own types), their shapes
and their types, and returns the outputs in the kernel's types. It raises NotExactError if the
kernel has no exact form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import (
    ChainedRescale,
    LunaDivide,
    Rescale,
    luna_multiply_reciprocal,
    luna_reciprocal,
)
from simulator.kernel import Kernel

from ....ir import ir
from .nodes import IntegerNodes, NotExactError

__all__ = ["KernelWriter", "LAYER_WRITERS", "Shapes", "max_magnitude"]

Shapes = Sequence[tuple[int, ...]]
KernelWriter = Callable[
    [IntegerNodes, Any, Sequence[ir.Value], Shapes, Sequence[np.dtype]], list[ir.Value]
]

_FLOAT = int(ir.DataType.FLOAT)
_UINT8 = int(ir.DataType.UINT8)

#: Sums of a pool are computed by a float convolution with ones, exact up to this magnitude.
_FLOAT32_EXACT_LIMIT = 1 << 24


def max_magnitude(dtype: np.dtype) -> int:
    """Return the largest |value| of a signed integer type, 2^(bits-1)."""
    return 1 << (8 * dtype.itemsize - 1)


def _bias_and_sum_bound(
    weight: np.ndarray, bias: np.ndarray | None, zero: int, reach: int
) -> tuple[np.ndarray, int]:
    """Return the bias, int64 [O], and a bound of |sum (x - zero) * w + bias| for |x| <= reach.

    `weight` is [O, ...]; an absent bias is zeros.
    """
    wide = np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1)
    biases = np.zeros(len(weight), np.int64) if bias is None else np.asarray(bias).astype(np.int64)
    return biases, int((wide * (reach + abs(zero)) + np.abs(biases)).max(initial=0))


def _to_uint8(builder: IntegerNodes, x: ir.Value | np.ndarray) -> ir.Value:
    """Return int8 `x`, a tensor or an array, plus 128 as uint8.

    onnxruntime's products of uint8 by int8 saturate at 16 bits on processors without dot
    instructions; those of uint8 by uint8 are exact everywhere.
    """
    if isinstance(x, np.ndarray):
        return builder.constant((x.astype(np.int16) + 128).astype(np.uint8))
    return builder("Cast", builder("Add", builder.to_int64(x), 128), to=_UINT8)


def _uint8_zero_point(builder: IntegerNodes, zero: int = 0) -> ir.Value:
    """Return the constant 128 + `zero`, the zero point of int8 values to which 128 was added."""
    return builder.constant(np.array(128 + zero, np.uint8))


def _write_conv(
    builder: IntegerNodes,
    kernel: k.Conv,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append a convolution as ConvInteger, bias and requantization; return [the output].

    `kernel` is the simulator's, `xs` and `types` its inputs and their types. ConvInteger pads with
    the zero point, as the kernel does. NotExactError unless input and weight are int8.
    """
    if kernel.weight.dtype != np.int8 or types[0] != np.int8:
        raise NotExactError("ONNX has no 16-bit integer convolution")
    spatial = kernel.weight.ndim - 2
    settings = {
        "strides": list(kernel.strides or [1] * spatial),
        "pads": list(kernel.pads or [0] * 2 * spatial),
        "dilations": list(kernel.dilations or [1] * spatial),
        "group": kernel.group,
    }
    zeros = _uint8_zero_point(builder, kernel.zero), _uint8_zero_point(builder)
    sums = builder(
        "ConvInteger",
        _to_uint8(builder, xs[0]),
        _to_uint8(builder, kernel.weight),
        *zeros,
        **settings,
    )
    bias, bound = _bias_and_sum_bound(kernel.weight, kernel.bias, kernel.zero, 128)
    view = (1, -1, *[1] * spatial)
    acc = builder("Add", builder.to_int64(sums), bias.reshape(view))
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form, view), kernel.rescale.dtype)]


def integer_matmul(
    builder: IntegerNodes, x: ir.Value, weight: np.ndarray, dtype: np.dtype, zero: int = 0
) -> ir.Value:
    """Return (x - zero) @ weight as int64 [..., O], for x [..., I] of type `dtype`, weight [I, O].

    Appends a MatMulInteger if both are int8, else a MatMul of int64.
    """
    if dtype == weight.dtype == np.int8:
        return builder.to_int64(
            builder(
                "MatMulInteger",
                _to_uint8(builder, x),
                _to_uint8(builder, weight),
                _uint8_zero_point(builder, zero),
                _uint8_zero_point(builder),
            )
        )
    return builder("MatMul", builder.to_int64(x, zero), builder.constant(weight.astype(np.int64)))


def _write_linear(
    builder: IntegerNodes,
    kernel: k.Linear,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a fully connected layer on `xs[0]` [..., I] in integers.

    Return [the output]. It is x W^T + b, requantized. `types[0]` bounds the sums, which decides the
    form of the rescaling; `shapes` is not used.
    """
    weight = kernel.scaled_weight
    bias, bound = _bias_and_sum_bound(weight, kernel.bias, kernel.zero, max_magnitude(types[0]))
    acc = builder("Add", integer_matmul(builder, xs[0], weight.T, types[0], kernel.zero), bias)
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form, (-1,)), kernel.rescale.dtype)]


def _write_matmul(
    builder: IntegerNodes,
    kernel: k.MatMul,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for the requantized matrix product of `xs[0]` and `xs[1]`; return [the output].

    MatMulInteger if both are int8, else MatMul on int64. Sums are bounded by the length of the last
    axis of `xs[0]` times the largest magnitudes of both types.
    """
    if all(dtype == np.int8 for dtype in types):
        acc = builder.to_int64(
            builder(
                "MatMulInteger",
                *(_to_uint8(builder, x) for x in xs),
                _uint8_zero_point(builder),
                _uint8_zero_point(builder),
            )
        )
    else:
        acc = builder("MatMul", *map(builder.to_int64, xs))
    form = kernel.rescale.compile_for_bound(
        shapes[0][-1] * math.prod(map(max_magnitude, types)), kernel.clip_bounds
    )
    return [builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)]


def _write_sum(
    builder: IntegerNodes,
    kernel: k.AddShift | k.AddScaled,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a sum or difference of `xs[0]` and `xs[1]`; return [the output].

    Both operands are requantized, then the result, and saturated. A kernel whose `sign` is negative
    is a difference x - y.
    """
    if isinstance(kernel, k.AddShift):
        *operand_rescales, out = (
            Rescale.from_shift(shift, kernel.bits) for shift in (kernel.shift_x, kernel.shift_y, 0)
        )
    else:
        *operand_rescales, out = kernel.rescale_x, kernel.rescale_y, kernel.out
    operands, sum_bound = [], 0
    for x, rescale, dtype in zip(xs, operand_rescales, types, strict=True):
        bound = max_magnitude(dtype)
        operands.append(builder.rescale(builder.to_int64(x), rescale.compile_for_bound(bound)))
        sum_bound += rescale.output_bound(bound)
    total = builder("Add" if kernel.sign > 0 else "Sub", *operands)
    form = out.compile_for_bound(sum_bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(total, form), out.dtype)]


def _write_mul(
    builder: IntegerNodes,
    kernel: k.Mul,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for the requantized elementwise product of `xs[0]` and `xs[1]`.

    Returns [the output]. `types` bounds the product; `shapes` is not used.
    """
    bound = math.prod(map(max_magnitude, types))
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    product = builder("Mul", *map(builder.to_int64, xs))
    return [builder.narrow(builder.rescale(product, form), kernel.rescale.dtype)]


def _write_affine(
    builder: IntegerNodes,
    kernel: k.ChannelAffine,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for (x - zero) * weight + bias of `xs[0]`, requantized; return [the output].

    Weight and bias have one value per channel (axis 1).
    """
    view = (1, -1, *[1] * (len(shapes[0]) - 2))
    weight = np.asarray(kernel.weight).astype(np.int64)
    bias, bound = _bias_and_sum_bound(
        weight[:, None], kernel.bias, kernel.zero, max_magnitude(types[0])
    )
    product = builder("Mul", builder.to_int64(xs[0], kernel.zero), weight.reshape(view))
    acc = builder("Add", product, bias.reshape(view))
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)]


def _write_requant(
    builder: IntegerNodes,
    kernel: k.Requant,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes that requantize `xs[0]` to another scale or width; return [the output].

    A left shift wraps around instead of saturating unless ``kernel.saturate`` is set.
    """
    right, x = kernel.rescale.pow2_shift, builder.to_int64(xs[0])
    if right is not None and right < 0 and not kernel.saturate:
        return [builder.narrow(builder("Mul", x, 1 << -right), kernel.rescale.dtype)]
    form = kernel.rescale.compile_for_bound(max_magnitude(types[0]))
    return [builder.narrow(builder.rescale(x, form), kernel.rescale.dtype)]


def _write_concat(
    builder: IntegerNodes,
    kernel: k.Concat,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes that concatenate `xs` along ``kernel.axis``, each requantized first.

    Returns [the output].
    """
    operands = [
        builder.rescale(builder.to_int64(x), rescale.compile_for_bound(max_magnitude(dtype)))
        for x, rescale, dtype in zip(xs, kernel.rescales, types, strict=True)
    ]
    joined = builder("Concat", *operands, axis=kernel.axis)
    return [builder.narrow(joined, kernel.rescales[0].dtype)]


def _write_with_zero_points(
    builder: IntegerNodes,
    kernel: k.ZeroPointKernel,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for the kernel that a ZeroPointKernel contains, on `xs` minus their zero points.

    An input with a zero point other than 0 becomes int16. Returns the outputs. NotExactError if the
    inner kernel has no exact form.
    """
    centered, centered_types = [], []
    for x, dtype, zero in zip(xs, types, kernel.zero_points, strict=True):
        if zero:
            dtype = np.dtype(np.int16)
            x = builder.narrow(builder.to_int64(x, zero), dtype)
        centered.append(x)
        centered_types.append(dtype)
    if type(kernel.kernel) not in LAYER_WRITERS:
        raise NotExactError(f"{type(kernel.kernel).__name__} with a zero point")
    write = LAYER_WRITERS[type(kernel.kernel)]
    return write(builder, kernel.kernel, centered, shapes, centered_types)


def _write_average(
    builder: IntegerNodes,
    kernel: k.AvgPool,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for average pooling of `xs[0]`; return [the output].

    Sums come from a float convolution with ones, exact in float32; a division becomes a table of
    the quotients of all sums. Raises NotExactError with ceil_mode, and for sums that float32 cannot
    represent.
    """
    spatial, bound = len(kernel.kernel), math.prod(kernel.kernel) * max_magnitude(types[0])
    if kernel.ceil_mode:
        raise NotExactError("windows may extend beyond the padding (ceil_mode)")
    if bound >= _FLOAT32_EXACT_LIMIT:
        raise NotExactError(
            f"sums of a pool up to {bound}; float32 is exact up to {_FLOAT32_EXACT_LIMIT}"
        )
    channels = shapes[0][1]
    ones = builder.constant(np.ones((channels, 1, *kernel.kernel), np.float32))
    sums = builder(
        "Conv",
        builder("Cast", xs[0], to=_FLOAT),
        ones,
        group=channels,
        kernel_shape=list(kernel.kernel),
        strides=list(kernel.strides or [1] * spatial),
        pads=list(kernel.pads or [0] * 2 * spatial),
    )
    acc, rule = builder.to_int64(sums), kernel.rule
    if isinstance(rule, Rescale | ChainedRescale):
        form = rule.compile_for_bound(bound, kernel.clip_bounds)
        return [builder.narrow(builder.rescale(acc, form), rule.dtype)]
    table = build_quotient_table(rule, bound, kernel.clip_bounds)
    return [builder.gather(table, builder("Add", acc, bound))]


def build_quotient_table(rule: LunaDivide, bound: int, clip: tuple[int, int] | None) -> np.ndarray:
    """Return the results of a division by `rule` for the sums -bound..bound, in the type of `rule`.

    Entry i is the result for the sum i - bound, saturated, or clipped to `clip` (low, high), a
    range that was fused into the division, unless None. With a negative shift all entries are the
    lowest value.
    """
    form = rule.compile_for_bound(bound, clip)
    if rule.shift < 0:
        values = np.full(2 * bound + 1, form.low)
    else:
        r, e = luna_reciprocal(rule.divisor)
        divided = [luna_multiply_reciprocal(n, r, e, rule.shift) for n in range(-bound, bound + 1)]
        values = np.clip(divided, form.low, form.high)
    return values.astype(rule.dtype)


def _write_table(
    builder: IntegerNodes,
    kernel: k.Table,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append a lookup in a table as a Gather of ``values[x + size / 2]`` with x = `xs[0]`.

    Returns [the output]; `shapes` and `types` are not used.
    """
    values = np.asarray(kernel.values).reshape(-1)
    return [builder.gather(values, builder("Add", builder.to_int64(xs[0]), len(values) // 2))]


def _write_glu(
    builder: IntegerNodes,
    kernel: k.Glu,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Append nodes for a gated linear unit: half of `xs[0]` times the sigmoid of the other half.

    The halves are along ``kernel.axis``, and the second is the gate. The sigmoid is a lookup in the
    kernel's table; the product is requantized. Returns [the output].
    """
    axis = kernel.axis % len(shapes[0])
    half = shapes[0][axis] // 2
    value, gate = builder.add_multi_output(
        "Split", builder.to_int64(xs[0]), np.array([half, half]), outputs=2, axis=axis
    )
    gates = builder.gather(np.asarray(kernel.sigmoid_table, np.int64), builder("Add", gate, 128))
    product, form = builder("Mul", value, gates), kernel.rescale.compile_for_bound(128 << 15)
    return [builder.narrow(builder.rescale(product, form), kernel.rescale.dtype)]


LAYER_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Conv: _write_conv,
    k.Linear: _write_linear,
    k.MatMul: _write_matmul,
    k.AddShift: _write_sum,
    k.AddScaled: _write_sum,
    k.Mul: _write_mul,
    k.ChannelAffine: _write_affine,
    k.Requant: _write_requant,
    k.Concat: _write_concat,
    k.ZeroPointKernel: _write_with_zero_points,
    k.AvgPool: _write_average,
    k.Table: _write_table,
    k.Glu: _write_glu,
}
