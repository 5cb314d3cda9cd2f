"""A blocked DequantizeLinear of a constant matrix.

Groups, with whole factors where its scales have such a ratio.
"""

from __future__ import annotations

import numpy as np

from ..errors import ModelError
from ..graph import ir
from ..plan import Affine, PerGroup, Rounding, make_grouped_qparams

__all__ = ["read_block_qparams"]


def read_block_qparams(
    node: ir.Node,
    integer_type: ir.DataType,
    step: np.ndarray,
    zero: np.ndarray | None,
    exact_scales: np.ndarray,
) -> Affine:
    """Return how the constant is held whose integers are of `integer_type`, with a y_scale `step` for each block.

    zero : its zero points. told : the scales of the rows' products, where the file has them; they
    count where they are those of `step` but for its rounding. Raises ModelError for anything but a
    constant matrix with integers around 0.
    """
    array, size = ir.const_value(node.inputs[0]), int(ir.get_attr(node, "block_size", 0) or 0)
    axis, signed = int(ir.get_attr(node, "axis", 1)) % 2, integer_type.name.startswith("I")
    middle = 0 if signed else 1 << (integer_type.bitwidth - 1)
    expected_shape = None
    if size > 0 and array is not None and array.ndim == 2:
        expected_shape = [-(-n // size) if i == axis else n for i, n in enumerate(array.shape)]
    centred = zero is None and not middle or (zero is not None and bool((zero == middle).all()))
    if node.op_type != "DequantizeLinear" or list(step.shape) != expected_shape or not centred:
        raise ModelError(
            f"{node.op_type} {node.name}: it has a scale for each block; read are those of a "
            "constant matrix, with "
            "integers around 0; quantize with one for each channel"
        )
    scales, zeros = 1.0 / np.asarray(step, np.float64), np.full(step.shape, middle)
    q = Affine(
        scales, integer_type.bitwidth, PerGroup(axis, size), zeros, signed, Rounding.HALF_EVEN
    )
    try:
        row, factors = q.along(1).factors
    except ValueError:  # another tool's, in no ratio of whole numbers
        return q
    if exact_scales.shape == row.shape and np.allclose(exact_scales, row, rtol=1e-6, atol=0):
        row = exact_scales
    return q.changed(make_grouped_qparams(row, factors, size, q.bits).along(axis).scales)
