"""Write average pooling in integer operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, NotExactError, Shapes, max_magnitude

__all__ = ["EXACT_WRITERS", "build_quotient_table"]

_FLOAT = int(ir.DataType.FLOAT)

#: Sums of a pool are computed by a float convolution with ones, exact up to this magnitude.
_FLOAT32_EXACT_LIMIT = 1 << 24


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


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.AvgPool: _write_average,
}
