"""Convert a product with a constant so that the constant is the second operand, with two axes.

``MatMul(A, x)`` is ``(x^T A^T)^T``: graph networks multiply by an adjacency matrix from the left.
Leading axes of size one, ``[1, 1, K, O]``, are removed if `x` has at least as many axes. The result
is a fully connected layer. This is exact.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["canonicalize_constant_matmul"]


def canonicalize_constant_matmul(model: ir.Model) -> PassResult:
    """Make the constant operand of each MatMul of `model` a matrix on the right, in place.

    Concerned are constants on the left (both operands are then transposed), and those with more
    than two axes. Skipped with a reason if a leading axis of the constant has not size 1, or if a
    size of the other operand is unknown.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if not ir.is_standard_op(node, "MatMul") or ir.get_shape(node.outputs[0]) is None:
            continue
        operand = ir.match_constant_operand(node)
        if operand is None or (operand.array.ndim == 2 and not operand.is_first):
            continue
        matrix = _as_matrix(operand.array)
        shape = ir.get_shape(operand.source) or ()
        if matrix is None or len(shape) < max(3, operand.array.ndim) or None in shape[1:]:
            reason = "its constant is not a matrix, or a size of the other operand is not known"
            skipped.append(SkipReason(node, reason))
            continue
        _emit_matmul(model, node, matrix, is_left=operand.is_first)
        changes += 1
    return PassResult(changes, skipped)


def _as_matrix(array: np.ndarray) -> np.ndarray | None:
    """Return `array` without leading axes of size 1 as a matrix.

    None if it has fewer than two axes, or more of another size.
    """
    if array.ndim < 2 or array.shape[:-2] != (1,) * (array.ndim - 2):
        return None
    return array.reshape(array.shape[-2:])


def _emit_matmul(model: ir.Model, node: ir.Node, matrix: np.ndarray, is_left: bool) -> None:
    """Replace `node`, a product with the constant `matrix` on the left or on the right.

    The constant becomes the right operand of two axes; for one on the left the other operand and
    the product are transposed.
    """
    build = SubgraphBuilder(model, node)
    result_shape = list(node.outputs[0].shape or ())
    if not is_left:
        factor = build.constant(matrix, "factor")
        build("MatMul", [ir.require_input(node), factor], result_shape, "product")
        build.replace_node()
        return
    source = ir.require_input(node, 1)
    shape = list(source.shape or ())
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    transposed = build(
        "Transpose", [source], [shape[axis] for axis in perm], "turned", {"perm": perm}
    )
    factor = build.constant(np.ascontiguousarray(matrix.T), "factor")
    product_shape = [result_shape[axis] for axis in perm]
    product = build("MatMul", [transposed, factor], product_shape, "product")
    build("Transpose", [product], result_shape, "back", {"perm": perm})
    build.replace_node()
