"""Write convolutions in integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import (
    IntegerNodes,
    KernelWriter,
    NotExactError,
    Shapes,
    bias_and_sum_bound,
    to_uint8,
    uint8_zero_point,
)

__all__ = ["EXACT_WRITERS"]


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
    zeros = uint8_zero_point(builder, kernel.zero), uint8_zero_point(builder)
    sums = builder(
        "ConvInteger",
        to_uint8(builder, xs[0]),
        to_uint8(builder, kernel.weight),
        *zeros,
        **settings,
    )
    bias, bound = bias_and_sum_bound(kernel.weight, kernel.bias, kernel.zero, 128)
    view = (1, -1, *[1] * spatial)
    acc = builder("Add", builder.to_int64(sums), bias.reshape(view))
    form = kernel.rescale.compile_for_bound(bound, kernel.clip_bounds)
    return [builder.narrow(builder.rescale(acc, form, view), kernel.rescale.dtype)]


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Conv: _write_conv,
}
