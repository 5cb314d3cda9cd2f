"""Write matrix products in integer operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import (
    IntegerNodes,
    KernelWriter,
    Shapes,
    bias_and_sum_bound,
    integer_matmul,
    max_magnitude,
    to_uint8,
    uint8_zero_point,
)

__all__ = ["EXACT_WRITERS"]


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
    bias, bound = bias_and_sum_bound(weight, kernel.bias, kernel.zero, max_magnitude(types[0]))
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
                *(to_uint8(builder, x) for x in xs),
                uint8_zero_point(builder),
                uint8_zero_point(builder),
            )
        )
    else:
        acc = builder("MatMul", *map(builder.to_int64, xs))
    form = kernel.rescale.compile_for_bound(
        shapes[0][-1] * math.prod(map(max_magnitude, types)), kernel.clip_bounds
    )
    return [builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)]


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Linear: _write_linear,
    k.MatMul: _write_matmul,
}
