"""A factor of one value moves back through reshapes, transposes and a matrix product into the layer that feeds them.

    (Q K^T) * s  with  Q = reshape(Linear(x))        ->  the weights of that layer times s

as attention has it, so that no operator is spent on it and nothing is rounded twice. Mul and Div by
a constant; every tensor on the way has one reader. The tensors whose meaning changes are called
`<name>_scaled`.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason
from .weight_layers import is_weight_layer, scale_layer_outputs

_MOVE_OPS = operators.RESHAPING_OPS | {"Transpose"}


def fold_factor_through_matmul(model: ir.Model) -> PassResult:
    """Move the factors of `model` into layers."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        match = _match_positive_factor(node)
        if match is None:
            continue
        source, factor = match
        path, product = _find_path_to_layer(source), ir.producer(source)
        if path is None or len(path) < 2:
            if product is not None and product.op_type == "MatMul" and not product.domain:
                why.append(
                    SkipReason(
                        node, "the way back from it to a layer is barred, or read elsewhere too"
                    )
                )
            continue
        if not scale_layer_outputs(model, path[-1], np.array([factor]), np.zeros(1)):
            why.append(
                SkipReason(node, f"weight or bias of {path[-1].name} is computed at run time")
            )
            continue
        for between in path[1:]:
            value = between.outputs[0]
            value.name = ir.unique_tensor_name(model, f"{value.name}_scaled")
        ir.absorb_consumer(model, path[0], node)
        changed += 1
    return PassResult(changed, why)


def _match_positive_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return the tensor that `node` multiplies by one positive number, and that number."""
    if node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    arrays = [ir.const_value(value) for value in node.inputs]
    index = 0 if arrays[0] is None else 1
    array = arrays[1 - index]
    if (
        arrays[index] is not None
        or array is None
        or array.size != 1
        or (node.op_type == "Div" and index == 1)
    ):
        return None
    number = float(array.reshape(()))
    if not 0 < number < np.inf or ir.get_shape(node.inputs[index]) != ir.get_shape(node.outputs[0]):
        return None
    return ir.require_input(node, index), 1.0 / number if node.op_type == "Div" else number


def _find_path_to_layer(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes from the writer of `value` back to a layer; None where the way is barred."""
    node = value.producer()
    if node is None or ir.sole_consumer(value) is None:
        return None
    if is_weight_layer(node):
        return [node]
    sources: list[int] = []
    if not node.domain and node.op_type in _MOVE_OPS:
        sources = [0]
    elif not node.domain and node.op_type == "MatMul":
        sources = [i for i in (0, 1) if ir.const_value(node.inputs[i]) is None]
    for index in sources:
        rest = _find_path_to_layer(ir.require_input(node, index))
        if rest is not None:
            return [node, *rest]
    return None
