"""Linear layers behind a channel-last Flatten take up its Transpose.

The columns of the weight are permuted instead.
``Linear(Flatten(Transpose(a)))`` with weight [O, H*W*C] is ``Linear(Flatten(a))`` with weight [O,
C*H*W]. Clip and Relu may stand between. The flattened tensors get new names: they hold the same
numbers in another order.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason


def fold_transpose_into_linear(model: ir.Model) -> PassResult:
    """Permute weights of `model`."""
    done, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Linear" or node.domain != ir.FUNCTION_DOMAIN:
            continue
        chain = _collect_chain_to_flatten(node)
        flat = chain[-1] if chain else None
        turn = ir.producer(flat.inputs[0]) if flat is not None else None
        weight = ir.const_value(node.inputs[1])
        if flat is None or turn is None or turn.op_type != "Transpose" or turn.domain:
            continue
        perm, dims = ir.get_attr(turn, "perm"), ir.get_shape(turn.outputs[0])
        reason = _explain_unchanged(weight, perm, dims, ir.get_shape(flat.outputs[0]))
        if reason or weight is None or dims is None or perm is None:
            why.append(SkipReason(turn, reason))
            continue
        columns = weight.reshape(-1, *(int(d or 1) for d in dims[1:]))  # [O, H, W, C]
        order = [perm.index(i) for i in range(len(perm))]
        ir.set_constant_input(
            model, node, 1, columns.transpose(order).reshape(weight.shape), "order"
        )
        flat.replace_input_with(0, ir.require_input(turn))
        for between in chain:
            value = between.outputs[0]
            value.name = ir.unique_tensor_name(model, f"{value.name}_order")
        done += 1
    if done:
        ir.remove_unused(model)
    return PassResult(done, why)


def _explain_unchanged(
    weight: np.ndarray | None,
    perm: list[int] | None,
    dims: tuple[int | None, ...] | None,
    result: tuple[int | None, ...] | None,
) -> str:
    """Return why the Transpose `perm` with output `dims`, flattened to `result`, stays in front of a layer."""
    if weight is None:
        return "the weight of the layer behind it is computed at run time"
    if perm is None or perm[0] != 0:
        return "it moves the batch"
    if dims is None or None in dims[1:] or result is None:
        return "sizes are not known"
    if (
        len(result) != 2
        or result[1] != weight.shape[1]
        or weight.shape[1] != math.prod(int(d or 1) for d in dims[1:])
    ):
        return "the layer behind it does not read one whole sample per row"
    return ""


def _collect_chain_to_flatten(node: ir.Node) -> list[ir.Node]:
    """Return the nodes from in front of `node` up to its Flatten or Reshape, each read by the next one only."""
    chain: list[ir.Node] = []
    reader = node
    while True:
        maker = ir.producer(reader.inputs[0])
        if maker is None or maker.domain or ir.sole_consumer(maker.outputs[0]) is not reader:
            return []
        chain.append(maker)
        if maker.op_type in ("Flatten", "Reshape"):
            return chain
        if maker.op_type not in operators.UNARY_ELEMENTWISE_OPS | operators.IDENTITY_OPS:
            return []
        reader = maker
