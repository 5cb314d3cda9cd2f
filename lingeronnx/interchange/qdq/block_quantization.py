"""Read a blocked DequantizeLinear of a constant matrix as group-wise quantization.

Groups have integer factors if the scales have such ratios.
"""

from __future__ import annotations

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from ...ir.plan import Affine, PerGroup, Rounding, make_grouped_qparams

__all__ = ["read_block_qparams"]


def read_block_qparams(
    node: ir.Node,
    integer_type: ir.DataType,
    step: np.ndarray,
    zero: np.ndarray | None,
    exact_scales: np.ndarray,
) -> Affine:
    """Return scales, zero points and bits of a DequantizeLinear with a scale per block of a matrix.

    Parameters
    ----------
    node
        The DequantizeLinear.
    integer_type
        Type of its constant.
    step
        y_scale of each block.
    zero
        Zero points, or None.
    exact_scales
        Exact scales of the rows' products from the file, or an empty array; used if they equal
        those of `step` up to rounding.

    Raises
    ------
    ModelError
        If the input is not a constant matrix with integers around 0, or `step` does not have one
        element per block.
    """
    array, size = ir.const_value(node.inputs[0]), int(ir.get_attr(node, "block_size", 0) or 0)
    axis, signed = int(ir.get_attr(node, "axis", 1)) % 2, integer_type.name.startswith("I")
    middle = 0 if signed else 1 << (integer_type.bitwidth - 1)
    is_centered = middle == 0 if zero is None else bool((zero == middle).all())
    is_matrix = node.op_type == "DequantizeLinear" and array is not None and array.ndim == 2
    if not is_centered or not is_matrix or not _has_block_shape(step, array, axis, size):
        raise ModelError(
            f"{node.op_type} {node.name}: it has one scale per block; this is supported only for a "
            "constant matrix with integers around 0; quantize with one scale per channel"
        )
    scales, zeros = 1.0 / np.asarray(step, np.float64), np.full(step.shape, middle)
    q = Affine(
        scales, integer_type.bitwidth, PerGroup(axis, size), zeros, signed, Rounding.HALF_EVEN
    )
    try:
        row_scales, factors = q.along(1).factors
    except ValueError:  # scales of another tool, whose ratios are not integers
        return q
    has_exact_scales = exact_scales.shape == row_scales.shape
    if has_exact_scales and np.allclose(exact_scales, row_scales, rtol=1e-6, atol=0):
        row_scales = exact_scales
    return q.changed(make_grouped_qparams(row_scales, factors, size, q.bits).along(axis).scales)


def _has_block_shape(
    step: np.ndarray, matrix: np.ndarray | None, axis: int, block_size: int
) -> bool:
    """Whether `step` has one element per block of `block_size` along `axis` of a matrix.

    The last block may be smaller. False without a matrix, or with a size below 1.
    """
    if matrix is None or block_size <= 0:
        return False
    shape = list(matrix.shape)
    shape[axis] = -(-shape[axis] // block_size)
    return list(step.shape) == shape
