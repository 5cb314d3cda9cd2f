"""Write the sum or mean of an elementwise product as a product of matrices.

    ReduceSum(Mul(state [N, H, D, E], key [N, H, D, 1]), axis 2)  =  key [N, H, 1, D] @ state

A linear attention reads its state in this way, and attention pooling its frames. A product of
matrices rounds the sum; an elementwise product rounds each of its elements before they are added.

Every axis of the product is, by the sizes of the factors (others than 1) and by the axes that are
reduced,

    shared      in both factors and the result    a matrix per position; the batch is the first
    summed      in both factors only              the inner axis of the product of matrices
    exclusive   in one factor and the result      rows of the left, columns of the right factor

A factor becomes [N, shared, rows, summed] or [N, shared, summed, columns] by a Reshape. Exact
except for the order of sums. A mean is the sum divided by the number of elements.

Many matrices with few results each, such as a product of two vectors at every position, are a pass
of their own, which chips leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

__all__ = ["SUM_OPS", "convert_dot_products", "convert_summed_products"]

#: Reductions of a product that a product of matrices computes.
SUM_OPS = ("ReduceSum", "ReduceMean")


def convert_summed_products(model: ir.Model) -> PassResult:
    """Replace sums and means over axes of a product that only they read by a MatMul, in place.

    Left to `convert_dot_products` are those of more matrices than a matrix has results. Sums over
    axes that one factor does not have, and those whose factors would have to be transposed, are
    skipped with a reason.
    """
    return _convert_products(model, has_many_heads=False)


def convert_dot_products(model: ir.Model) -> PassResult:
    """Replace sums and means of a product that are many small products of matrices, in place.

    Such as the product of two vectors at every position. A chip computes one after the other, which
    takes it much longer than an elementwise product.
    """
    return PassResult(_convert_products(model, has_many_heads=True).changes)


def _convert_products(model: ir.Model, *, has_many_heads: bool) -> PassResult:
    """Replace sums and means of a product, of either kind, and say why others stay."""
    changes, skipped = 0, list[SkipReason]()
    for node, mul in _find_summed_products(model):
        product = _match_product(node, mul)
        if isinstance(product, str):
            skipped.append(SkipReason(node, product))
        elif product.has_many_heads == has_many_heads:
            _emit_matmul(model, node, mul, product)
            changes += 1
    return PassResult(changes, skipped)


def _find_summed_products(model: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    """Return the sums and means of `model` that alone read an elementwise product, and its Mul."""
    summed_products = []
    for node in model.graph:
        if not ir.is_standard_op(node, *SUM_OPS) or not ir.is_float32(node.outputs[0]):
            continue
        mul = ir.producer(node.inputs[0])
        if ir.is_standard_op(mul, "Mul") and ir.sole_consumer(mul.outputs[0]) is node:
            summed_products.append((node, mul))
    return summed_products


class _MatrixProduct(NamedTuple):
    """A product of matrices: its factors, and the numbers that their axes are merged to.

    A sample of the left factor is `heads` matrices [rows, summed], one of the right factor `heads`
    matrices [summed, columns]. A constant, `matrix`, is the right factor of every sample, with one
    head.
    """

    left: ir.Value
    right: ir.Value
    matrix: np.ndarray | None
    heads: int
    rows: int
    summed: int
    columns: int

    @property
    def has_many_heads(self) -> bool:
        """Whether there are more matrices than one of them has results."""
        return self.heads > self.rows * self.columns


def _match_product(node: ir.Node, mul: ir.Node) -> _MatrixProduct | str:
    """Return the product of matrices that is the sum `node` of `mul`, or why there is none."""
    shape, axes = ir.get_shape(mul.outputs[0]), ir.get_axes(node)
    if shape is None or len(shape) < 2 or None in shape[1:] or not axes:
        return "its axes, or a size other than the batch, are not known"
    summed_axes = {axis % len(shape) for axis in axes}
    if 0 in summed_axes:
        return "it adds the samples of a batch"
    first, second = ir.require_input(mul, 0), ir.require_input(mul, 1)
    product = _arrange_factors(first, second, shape, summed_axes)
    if isinstance(product, str):
        swapped_product = _arrange_factors(second, first, shape, summed_axes)
        if not isinstance(swapped_product, str):
            return swapped_product
    return product


def _arrange_factors(
    left: ir.Value, right: ir.Value, shape: Sequence[int | None], summed_axes: set[int]
) -> _MatrixProduct | str:
    """Return the product of matrices of `left` and `right`, or why they are not its factors.

    `shape` is that of their elementwise product, and `summed_axes` are the axes that are added.
    """
    constant = ir.const_value(right)
    left_axes, right_axes = _find_axes(left, shape), _find_axes(right, shape)
    if left_axes is None or right_axes is None or ir.const_value(left) is not None:
        return "the first axis of a factor is not the batch"
    shared = sorted(left_axes & right_axes - summed_axes)
    inner = sorted(left_axes & right_axes & summed_axes)
    rows, columns = sorted(left_axes - right_axes), sorted(right_axes - left_axes)
    if not inner or not summed_axes.isdisjoint(rows + columns):
        return "a factor does not have the axes that are added"
    if constant is not None and shared:
        return "a constant factor differs along an axis that is not added"
    orders = [[*shared, *rows, *inner], [*shared, *rows, *columns]]
    if constant is None:
        orders.append([*shared, *inner, *columns])
    if any(order != sorted(order) for order in orders):
        return "a factor would have to be transposed"
    sizes = [1, *(int(dim or 1) for dim in shape[1:])]
    heads, row_count, inner_size, column_count = (
        math.prod(map(sizes.__getitem__, group)) for group in (shared, rows, inner, columns)
    )
    matrix = None
    if constant is not None:
        array = constant.reshape([1] * (len(shape) - constant.ndim) + list(constant.shape))
        others = [axis for axis in range(len(shape)) if axis not in inner]
        matrix = array.transpose([*inner, *others]).reshape(inner_size, column_count)
    return _MatrixProduct(left, right, matrix, heads, row_count, inner_size, column_count)


def _find_axes(value: ir.Value, shape: Sequence[int | None]) -> set[int] | None:
    """Return the axes of a product of shape `shape` along which its factor `value` has elements.

    That are the axes where it has a size above 1, except the batch. None if axis 0 is not the batch
    of the factor, or the same for all samples of a constant.
    """
    dims: list[int | None] = list(ir.get_shape(value) or ())
    if ir.const_value(value) is not None:
        dims = [*[1] * (len(shape) - len(dims)), *dims]
        if dims[0] != 1:
            return None
    elif len(dims) != len(shape) or dims[0] != shape[0] or None in dims[1:]:
        return None
    return {axis for axis, dim in enumerate(dims) if axis and dim != 1}


def _emit_matmul(model: ir.Model, node: ir.Node, mul: ir.Node, product: _MatrixProduct) -> None:
    """Replace the sum or mean `node` of the elementwise product `mul` by `product`."""
    build = SubgraphBuilder(model, node)
    heads = [product.heads] if product.heads > 1 else []
    rows = [product.rows] if product.matrix is None or product.rows > 1 else []
    left = _reshape(build, product.left, [*heads, *rows, product.summed], "left")
    if product.matrix is None:
        right = _reshape(build, product.right, [*heads, product.summed, product.columns], "right")
    else:
        right = build.constant(np.ascontiguousarray(product.matrix), "weight")
    batch = (node.outputs[0].shape or ["N"])[0]
    shape = [batch, *heads, *rows, product.columns]
    value = build("MatMul", [left, right], shape, "matrix")
    if node.op_type == "ReduceMean":
        count = build.constant(np.array(1 / product.summed, np.float32), "count")
        value = build("Mul", [value, count], shape, "mean")
    if list(value.shape or ()) != list(node.outputs[0].shape or ()):
        build.reshape(value, ir.get_sample_dims(node.outputs[0]), "sum")
    build.replace_node()
    model.graph.remove(mul, safe=True)


def _reshape(
    build: SubgraphBuilder, value: ir.Value, sizes: Sequence[int], suffix: str
) -> ir.Value:
    """Return `value` with the `sizes` after the batch, by a Reshape if it has others."""
    if ir.get_sample_dims(value) == list(sizes):
        return value
    return build.reshape(value, sizes, suffix)
