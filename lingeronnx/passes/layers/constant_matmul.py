"""A product by a constant has the constant behind, of two axes.

``MatMul(A, x)`` is ``(x^T A^T)^T``.
Graph networks multiply by an adjacency matrix from the left. Leading axes of one position, ``[1, 1,
K, O]``, are dropped where `x` has as many. Then it is a fully connected layer. Exact.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["canonicalize_constant_matmul"]


def canonicalize_constant_matmul(model: ir.Model) -> PassResult:
    """Turn the products of `model` by a constant from the left, and those by a matrix with more axes."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        places = [
            index for index, value in enumerate(node.inputs) if ir.const_value(value) is not None
        ]
        if node.domain or node.op_type != "MatMul" or len(places) != 1:
            continue
        place = places[0]
        matrix, shape = (
            _as_matrix(ir.const_value(node.inputs[place])),
            ir.get_shape(node.inputs[1 - place]) or (),
        )
        if (place == 1 and matrix is ir.const_value(node.inputs[1])) or ir.get_shape(
            node.outputs[0]
        ) is None:
            continue
        if (
            matrix is None
            or len(shape) < max(3, len(ir.get_shape(node.inputs[place]) or ()))
            or None in shape[1:]
        ):
            why.append(
                SkipReason(
                    node, "its constant is no matrix, or a size of the other factor is not known"
                )
            )
            continue
        _emit_matmul(model, node, matrix, left=place == 0)
        changed += 1
    return PassResult(changed, why)


def _as_matrix(array: np.ndarray | None) -> np.ndarray | None:
    """Return the one matrix that a constant is, itself where it has two axes.

    None where it is another thing.
    """
    if array is None or array.ndim < 2 or array.shape[:-2] != (1,) * (array.ndim - 2):
        return None
    return array if array.ndim == 2 else array.reshape(array.shape[-2:])


def _emit_matmul(model: ir.Model, node: ir.Node, matrix: np.ndarray, left: bool) -> None:
    make = SubgraphBuilder(model, node)
    result = list(node.outputs[0].shape or ())
    if not left:
        make("MatMul", [ir.require_input(node), make.constant(matrix, "factor")], result, "product")
        make.replace_node()
        return
    source = ir.require_input(node, 1)
    shape = list(source.shape or ())
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = make("Transpose", [source], [shape[axis] for axis in perm], "turned", {"perm": perm})
    factor = make.constant(np.ascontiguousarray(matrix.T), "factor")
    product = make("MatMul", [turned, factor], [result[axis] for axis in perm], "product")
    make("Transpose", [product], result, "back", {"perm": perm})
    make.replace_node()
