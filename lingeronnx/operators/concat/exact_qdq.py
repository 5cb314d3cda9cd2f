"""Write concatenation in integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes, max_magnitude

__all__ = ["EXACT_WRITERS"]


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


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Concat: _write_concat,
}
