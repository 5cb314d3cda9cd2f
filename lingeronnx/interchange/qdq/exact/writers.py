"""The writers of kernels in integer operators, one for each kernel class that has one.

Each writer takes the builder, the kernel, the inputs (integers of their own types), their shapes
and their types, and returns the outputs in the kernel's types. It raises NotExactError if the
kernel has no exact form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator import kernels as k
from simulator.kernel import Kernel

from ....ir import ir
from ....operators.activation_tables import exact_qdq as activation_tables
from ....operators.batch_norm import exact_qdq as batch_norm
from ....operators.concat import exact_qdq as concat
from ....operators.conv import exact_qdq as conv
from ....operators.elementwise import exact_qdq as elementwise
from ....operators.exact_nodes import IntegerNodes, KernelWriter, NotExactError, Shapes
from ....operators.linear import exact_qdq as linear
from ....operators.normalization import exact_qdq as normalization
from ....operators.pool import exact_qdq as pool
from ....operators.quant_dequant import exact_qdq as quant_dequant
from ....operators.recurrent import exact_qdq as recurrent

__all__ = ["WRITERS"]


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
    if type(kernel.kernel) not in _LAYER_WRITERS:
        raise NotExactError(f"{type(kernel.kernel).__name__} with a zero point")
    write = _LAYER_WRITERS[type(kernel.kernel)]
    return write(builder, kernel.kernel, centered, shapes, centered_types)


_LAYER_WRITERS: Mapping[type[Kernel], KernelWriter] = {
    **conv.EXACT_WRITERS,
    **linear.EXACT_WRITERS,
    **elementwise.EXACT_WRITERS,
    **batch_norm.EXACT_WRITERS,
    **quant_dequant.EXACT_WRITERS,
    **concat.EXACT_WRITERS,
    k.ZeroPointKernel: _write_with_zero_points,
    **pool.EXACT_WRITERS,
    **activation_tables.EXACT_WRITERS,
}
#: The writer of each kernel class.
WRITERS: Mapping[type[Kernel], KernelWriter] = {
    **_LAYER_WRITERS,
    **normalization.EXACT_WRITERS,
    **recurrent.EXACT_WRITERS,
}
