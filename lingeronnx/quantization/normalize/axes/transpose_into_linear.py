"""Fold the Transpose before a channel-last Flatten into the weight of the linear layer after it.

``Linear(Flatten(Transpose(a)))`` with weight [O, H*W*C] is ``Linear(Flatten(a))`` with weight
[O, C*H*W]. Clip, Relu and other elementwise operators may be in between. The flattened tensors get
new names, because their elements are in another order.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason


def fold_transpose_into_linear(model: ir.Model) -> PassResult:
    """Fold Transposes of `model` into weights of linear layers, in place.

    The Transpose is before a flattening Reshape, with only elementwise nodes between that and the
    layer; the columns of the weight are permuted instead. Those that cannot be folded are skipped
    with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Linear" or node.domain != ir.FUNCTION_DOMAIN:
            continue
        chain = _collect_chain_to_flatten(node)
        transpose = ir.producer(chain[-1].inputs[0]) if chain else None
        if not ir.is_standard_op(transpose, "Transpose"):
            continue
        reason = _fold_into_weight(model, node, chain[-1], transpose)
        if reason:
            skipped.append(SkipReason(transpose, reason))
            continue
        for member in chain:
            value = member.outputs[0]
            value.name = ir.unique_tensor_name(model, f"{value.name}_order")
        changes += 1
    if changes:
        ir.remove_unused(model)
    return PassResult(changes, skipped)


def _fold_into_weight(
    model: ir.Model, linear: ir.Node, flatten: ir.Node, transpose: ir.Node
) -> str:
    """Permute the weight of `linear` so that `transpose` is not needed, and bypass it, in place.

    `flatten` is the node between that reads the Transpose. Returns "" on success, else, without a
    change, the reason why it cannot be done.
    """
    weight = ir.const_value(linear.inputs[1])
    perm, dims = ir.get_attr(transpose, "perm"), ir.get_shape(transpose.outputs[0])
    reason = _explain_unchanged(weight, perm, dims, ir.get_shape(flatten.outputs[0]))
    if reason or weight is None or dims is None or perm is None:
        return reason
    columns = weight.reshape(-1, *(int(dim or 1) for dim in dims[1:]))  # [O, H, W, C]
    inverse = [perm.index(axis) for axis in range(len(perm))]
    permuted = columns.transpose(inverse).reshape(weight.shape)
    ir.set_constant_input(model, linear, 1, permuted, "order")
    flatten.replace_input_with(0, ir.require_input(transpose))
    return ""


def _explain_unchanged(
    weight: np.ndarray | None,
    perm: list[int] | None,
    dims: tuple[int | None, ...] | None,
    flat_shape: tuple[int | None, ...] | None,
) -> str:
    """Return the reason why a Transpose cannot be folded, or "" if it can.

    Parameters
    ----------
    weight
        Weight of the layer, [O, K].
    perm, dims
        Permutation and output shape of the Transpose.
    flat_shape
        Output shape of the Flatten.
    """
    if weight is None:
        return "the weight of the layer after it is computed at run time"
    if perm is None or perm[0] != 0:
        return "it moves the batch"
    if dims is None or None in dims[1:] or flat_shape is None:
        return "its shape is not known"
    sample_size = math.prod(dim or 1 for dim in dims[1:])
    if flat_shape[1:] != (sample_size,) or weight.shape[1] != sample_size:
        return "the layer after it does not read one complete sample per row"
    return ""


def _collect_chain_to_flatten(node: ir.Node) -> list[ir.Node]:
    """Return the elementwise nodes before `node` up to its Flatten or Reshape, last first.

    Empty if there is no such chain, or a tensor of it is used elsewhere.
    """
    chain: list[ir.Node] = []
    consumer = node
    while True:
        producer = ir.producer(consumer.inputs[0])
        if producer is None or producer.domain:
            return []
        if ir.sole_consumer(producer.outputs[0]) is not consumer:
            return []
        chain.append(producer)
        if producer.op_type in ("Flatten", "Reshape"):
            return chain
        if producer.op_type not in float_ops.UNARY_ELEMENTWISE_OPS | float_ops.IDENTITY_OPS:
            return []
        consumer = producer
