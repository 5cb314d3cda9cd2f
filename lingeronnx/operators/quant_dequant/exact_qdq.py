"""Write requantization in integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes, max_magnitude

__all__ = ["EXACT_WRITERS"]


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


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Requant: _write_requant,
}
