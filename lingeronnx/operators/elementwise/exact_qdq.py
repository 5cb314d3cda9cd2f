"""Write sums and products in integer operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import Rescale
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes, max_magnitude

__all__ = ["EXACT_WRITERS"]


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


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.AddShift: _write_sum,
    k.AddScaled: _write_sum,
    k.Mul: _write_mul,
}
