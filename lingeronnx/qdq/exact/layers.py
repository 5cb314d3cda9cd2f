"""Kernels whose results depend on few numbers, in nodes on integers.

Layers, sums, products, pools, tables.
Each function takes the nodes so far, the kernel, the inputs (integers of their own types) and their
shapes, and returns the outputs in the kernel's types. Raises NotExact where there is no form.
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

from ...graph import ir
from .nodes import IntegerNodes, NotExactError

__all__ = ["KernelWriter", "LAYER_WRITERS", "Shapes", "max_magnitude"]

Shapes = Sequence[tuple[int, ...]]
KernelWriter = Callable[
    [IntegerNodes, Any, Sequence[ir.Value], Shapes, Sequence[np.dtype]], list[ir.Value]
]

_FLOAT = int(ir.DataType.FLOAT)
_UINT8 = int(ir.DataType.UINT8)

#: Sums of a pool are made by a float convolution with ones: float32 counts so far.
_FLOAT32_EXACT_LIMIT = 1 << 24


def max_magnitude(dtype: np.dtype) -> int:
    """Return the largest absolute value of an integer type."""
    return 1 << (8 * dtype.itemsize - 1)


def _bias_and_sum_bound(
    weight: np.ndarray, bias: np.ndarray | None, zero: int, reach: int
) -> tuple[np.ndarray, int]:
    """Return the bias int64 [O], and the largest |sum| of weights [O, ...] on inputs up to `reach` less `zero`."""
    wide = np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1)
    biases = np.zeros(len(weight), np.int64) if bias is None else np.asarray(bias).astype(np.int64)
    return biases, int((wide * (reach + abs(zero)) + np.abs(biases)).max(initial=0))


def _to_uint8(builder: IntegerNodes, x: ir.Value | np.ndarray) -> ir.Value:
    """Return int8 x as uint8, 128 higher.

    onnxruntime's products of uint8 by int8 saturate in 16 bits on processors without instructions
    for them; those of uint8 by uint8 are exact everywhere.
    """
    if isinstance(x, np.ndarray):
        return builder.constant((x.astype(np.int16) + 128).astype(np.uint8))
    return builder("Cast", builder("Add", builder.to_int64(x), 128), to=_UINT8)


def _uint8_zero_point(builder: IntegerNodes, zero: int = 0) -> ir.Value:
    """Return the zero point of what `_to_uint8` gives."""
    return builder.constant(np.array(128 + zero, np.uint8))


def _conv(
    builder: IntegerNodes,
    kernel: k.Conv,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """ConvInteger pads with the zero point."""
    if kernel.weight.dtype != np.int8 or types[0] != np.int8:
        raise NotExactError("ONNX has no integer convolution of 16 bits")
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
    return [
        builder.narrow(
            builder.rescale(acc, kernel.rescale.compile_for_bound(bound, kernel.clip_bounds), view),
            kernel.rescale.dtype,
        )
    ]


def integer_matmul(
    builder: IntegerNodes, x: ir.Value, weight: np.ndarray, dtype: np.dtype, zero: int = 0
) -> ir.Value:
    """Return the sums of x [..., I] less `zero` with weight [I, O]."""
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


def _linear(
    builder: IntegerNodes,
    kernel: k.Linear,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    weight = kernel.scaled_weight
    bias, bound = _bias_and_sum_bound(weight, kernel.bias, kernel.zero, max_magnitude(types[0]))
    acc = builder("Add", integer_matmul(builder, xs[0], weight.T, types[0], kernel.zero), bias)
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form, (-1,)), kernel.rescale.dtype)]


def _matmul(
    builder: IntegerNodes,
    kernel: k.MatMul,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
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


def _sum(
    builder: IntegerNodes,
    kernel: k.AddShift | k.AddScaled,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """Both operands are requantized, then their sum."""
    if isinstance(kernel, k.AddShift):
        *each, out = (
            Rescale.from_shift(shift, kernel.bits) for shift in (kernel.shift_x, kernel.shift_y, 0)
        )
    else:
        *each, out = kernel.rescale_x, kernel.rescale_y, kernel.out
    bounds = [max_magnitude(dtype) for dtype in types]
    parts = [
        builder.rescale(builder.to_int64(x), r.compile_for_bound(bound))
        for x, r, bound in zip(xs, each, bounds, strict=True)
    ]
    total = builder("Add" if kernel.sign > 0 else "Sub", *parts)
    whole = sum(r.output_bound(bound) for r, bound in zip(each, bounds, strict=True))
    return [
        builder.narrow(
            builder.rescale(total, out.compile_for_bound(whole, kernel.clip_bounds)), out.dtype
        )
    ]


def _mul(
    builder: IntegerNodes,
    kernel: k.Mul,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    form = kernel.rescale.compile_for_bound(
        math.prod(map(max_magnitude, types)), kernel.clip_bounds
    )
    return [
        builder.narrow(
            builder.rescale(builder("Mul", *map(builder.to_int64, xs)), form), kernel.rescale.dtype
        )
    ]


def _affine(
    builder: IntegerNodes,
    kernel: k.ChannelAffine,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    view = (1, -1, *[1] * (len(shapes[0]) - 2))
    weight = np.asarray(kernel.weight).astype(np.int64)
    bias, bound = _bias_and_sum_bound(
        weight[:, None], kernel.bias, kernel.zero, max_magnitude(types[0])
    )
    acc = builder(
        "Add",
        builder("Mul", builder.to_int64(xs[0], kernel.zero), weight.reshape(view)),
        bias.reshape(view),
    )
    return [
        builder.narrow(
            builder.rescale(acc, kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)),
            kernel.rescale.dtype,
        )
    ]


def _requant(
    builder: IntegerNodes,
    kernel: k.Requant,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    right, x = kernel.rescale.pow2_shift, builder.to_int64(xs[0])
    if right is not None and right < 0 and not kernel.saturate:
        return [builder.narrow(builder("Mul", x, 1 << -right), kernel.rescale.dtype)]
    return [
        builder.narrow(
            builder.rescale(x, kernel.rescale.compile_for_bound(max_magnitude(types[0]))),
            kernel.rescale.dtype,
        )
    ]


def _concat(
    builder: IntegerNodes,
    kernel: k.Concat,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    parts = [
        builder.rescale(builder.to_int64(x), rescale.compile_for_bound(max_magnitude(dtype)))
        for x, rescale, dtype in zip(xs, kernel.rescales, types, strict=True)
    ]
    return [builder.narrow(builder("Concat", *parts, axis=kernel.axis), kernel.rescales[0].dtype)]


def _centered(
    builder: IntegerNodes,
    kernel: k.ZeroPointKernel,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    moved = [
        builder.narrow(builder.to_int64(x, zero), np.dtype(np.int16)) if zero else x
        for x, zero in zip(xs, kernel.zero_points, strict=True)
    ]
    kinds = [
        np.dtype(np.int16) if zero else dtype
        for dtype, zero in zip(types, kernel.zero_points, strict=True)
    ]
    if type(kernel.kernel) not in LAYER_WRITERS:
        raise NotExactError(f"{type(kernel.kernel).__name__} with a zero point")
    return LAYER_WRITERS[type(kernel.kernel)](builder, kernel.kernel, moved, shapes, kinds)


def _average(
    builder: IntegerNodes,
    kernel: k.AvgPool,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    """The window's sum by a convolution with ones, exact in float32.

    A division is a table of all sums.
    """
    spatial, bound = len(kernel.kernel), math.prod(kernel.kernel) * max_magnitude(types[0])
    if kernel.ceil_mode:
        raise NotExactError("windows may reach beyond the padding (ceil_mode)")
    if bound >= _FLOAT32_EXACT_LIMIT:
        raise NotExactError(
            f"sums up to {bound} of a pool; float32 counts to {_FLOAT32_EXACT_LIMIT}"
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
        return [
            builder.narrow(
                builder.rescale(acc, rule.compile_for_bound(bound, kernel.clip_bounds)), rule.dtype
            )
        ]
    return [
        builder.gather(
            build_quotient_table(rule, bound, kernel.clip_bounds), builder("Add", acc, bound)
        )
    ]


def build_quotient_table(rule: LunaDivide, bound: int, clip: tuple[int, int] | None) -> np.ndarray:
    """Return what `rule` makes of every sum from -bound to bound, in its type."""
    form = rule.compile_for_bound(bound, clip)
    if rule.shift < 0:
        values = np.full(2 * bound + 1, form.low)
    else:
        r, e = luna_reciprocal(rule.divisor)
        divided = [luna_multiply_reciprocal(n, r, e, rule.shift) for n in range(-bound, bound + 1)]
        values = np.clip(divided, form.low, form.high)
    return values.astype(rule.dtype)


def _table(
    builder: IntegerNodes,
    kernel: k.Table,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    values = np.asarray(kernel.values).reshape(-1)
    return [builder.gather(values, builder("Add", builder.to_int64(xs[0]), len(values) // 2))]


def _glu(
    builder: IntegerNodes,
    kernel: k.Glu,
    xs: Sequence[ir.Value],
    shapes: Shapes,
    types: Sequence[np.dtype],
) -> list[ir.Value]:
    axis = kernel.axis % len(shapes[0])
    half = shapes[0][axis] // 2
    value, gate = builder.add_multi_output(
        "Split", builder.to_int64(xs[0]), np.array([half, half]), outputs=2, axis=axis
    )
    gates = builder.gather(np.asarray(kernel.sigmoid_table, np.int64), builder("Add", gate, 128))
    return [
        builder.narrow(
            builder.rescale(
                builder("Mul", value, gates), kernel.rescale.compile_for_bound(128 << 15)
            ),
            kernel.rescale.dtype,
        )
    ]


LAYER_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Conv: _conv,
    k.Linear: _linear,
    k.MatMul: _matmul,
    k.AddShift: _sum,
    k.AddScaled: _sum,
    k.Mul: _mul,
    k.ChannelAffine: _affine,
    k.Requant: _requant,
    k.Concat: _concat,
    k.ZeroPointKernel: _centered,
    k.AvgPool: _average,
    k.Table: _table,
    k.Glu: _glu,
}
