"""Write lookups in tables in integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ...ir import ir
from ..exact_nodes import IntegerNodes, KernelWriter, Shapes

__all__ = ["EXACT_WRITERS"]


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


EXACT_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    k.Table: _write_table,
    k.Glu: _write_glu,
}
