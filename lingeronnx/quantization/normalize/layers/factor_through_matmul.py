"""Move a factor upstream through reshapes, transposes and a matrix product into a layer.

    (Q K^T) * s  with  Q = reshape(Linear(x))        ->  the weights of that layer times s

as in attention, so that no operator is needed for it and nothing is rounded twice. Applies to Mul
and Div by a constant, if every tensor in between has one consumer. The scaled tensors are renamed
to `<name>_scaled`; the metadata record their factors.
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from ....ir.folded_factors import add_folded_factor
from .._pass import PassResult, SkipReason
from .weight_layers import is_weight_layer, scale_layer_outputs

_MOVE_OPS = float_ops.RESHAPING_OPS | {"Transpose"}


def fold_factor_through_matmul(model: ir.Model) -> PassResult:
    """Fold positive scalar factors of `model` into a layer upstream, also through matrix products.

    In place. A factor (a Mul or Div node) is folded if the tensors on the way have one consumer,
    and weight and bias of the layer are constant. Otherwise it is skipped with a reason if it
    follows a MatMul.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        match = _match_positive_factor(node)
        if match is None:
            continue
        source, factor = match
        path, producer = _find_path_to_layer(source), ir.producer(source)
        if path is None or len(path) < 2:
            if producer is not None and producer.op_type == "MatMul" and not producer.domain:
                reason = "no layer upstream can be reached through single-consumer tensors"
                skipped.append(SkipReason(node, reason))
            continue
        if not scale_layer_outputs(model, path[-1], np.array([factor]), np.zeros(1)):
            reason = f"weight or bias of {path[-1].name} is computed at run time"
            skipped.append(SkipReason(node, reason))
            continue
        for member in path[1:]:
            value = member.outputs[0]
            old_name = str(value.name)
            new_name = ir.unique_tensor_name(model, f"{old_name}_scaled")
            value.name = new_name
            add_folded_factor(model, old_name, new_name, factor)
        ir.absorb_consumer(model, path[0], node)
        changes += 1
    return PassResult(changes, skipped)


def _match_positive_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return (tensor, number) if `node` multiplies a tensor by a positive finite number, or None.

    For a Div by a number, it is the reciprocal. None also if the constant changes the shape.
    """
    if not ir.is_standard_op(node, "Mul", "Div"):
        return None
    operand = ir.match_constant_operand(node)
    if operand is None or operand.array.size != 1:
        return None
    number = float(operand.array.reshape(()))
    is_divided_by_source = node.op_type == "Div" and operand.is_first
    if is_divided_by_source or not 0 < number < np.inf:
        return None
    if ir.get_shape(operand.source) != ir.get_shape(node.outputs[0]):
        return None
    return operand.source, 1.0 / number if node.op_type == "Div" else number


def _find_path_to_layer(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes from the producer of `value` upstream to a Conv or Linear (last), or None.

    Between them are only data movement and matrix products, and all tensors have one consumer.
    """
    node = value.producer()
    if node is None or ir.sole_consumer(value) is None:
        return None
    if is_weight_layer(node):
        return [node]
    source_indices: list[int] = []
    if ir.is_standard_op(node, *_MOVE_OPS):
        source_indices = [0]
    elif ir.is_standard_op(node, "MatMul"):
        source_indices = [i for i in (0, 1) if ir.const_value(node.inputs[i]) is None]
    for index in source_indices:
        path = _find_path_to_layer(ir.require_input(node, index))
        if path is not None:
            return [node, *path]
    return None
