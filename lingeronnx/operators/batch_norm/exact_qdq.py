"""Write a factor and offset per channel in integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes, bias_and_sum_bound, max_magnitude

__all__ = ["EXACT_WRITERS"]


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
    bias, bound = bias_and_sum_bound(
        weight[:, None], kernel.bias, kernel.zero, max_magnitude(types[0])
    )
    product = builder("Mul", builder.to_int64(xs[0], kernel.zero), weight.reshape(view))
    acc = builder("Add", product, bias.reshape(view))
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form), kernel.rescale.dtype)]


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.ChannelAffine: _write_affine,
}
