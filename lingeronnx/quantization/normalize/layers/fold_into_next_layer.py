"""Fold scaling and shifting of channels before a Conv or Linear into its weight and bias.

`fold_factor_into_next_layer` folds a single factor: Mul and Div by one constant, and Neg.
`fold_batch_norm_into_next_layer` folds a BatchNormalization that no layer before it absorbed, for
instance because of an activation in between; if the layer pads, only one without an offset. Two
consecutive ones are merged. Each saves a rounding.

Runs after activations have been fused, as these may end in such a factor. The product must not be
used elsewhere, and its input must not be a graph input: pixels divided by 255 would need a scale
that platforms can hardly represent.
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from ....operators.batch_norm.lowering import fold_batch_norm_parameters
from .._pass import PassResult, SkipReason
from .weight_layers import fold_affine_into_layer_inputs, is_weight_layer


def fold_factor_into_next_layer(model: ir.Model) -> PassResult:
    """Fold scalar factors of `model` into the weight of the Conv or Linear that reads the product.

    In place. A factor (Neg, Mul or Div by a number) is folded if a layer with constant weight is
    the only consumer. If layers read the product otherwise, it is skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        match = _match_scalar_factor(node)
        if match is None:
            continue
        layer = ir.sole_consumer(node.outputs[0])
        weight = _get_constant_weight(layer)
        if layer is None or weight is None or layer.inputs[0] is not node.outputs[0]:
            uses = node.outputs[0].uses()
            if any(is_weight_layer(use.node) and use.idx == 0 for use in uses):
                reason = "it is used elsewhere too"
                if layer is not None:
                    reason = f"the weight of {layer.name} is computed at run time"
                skipped.append(SkipReason(node, reason))
            continue
        source, factor = match
        scaled = (weight * np.float64(factor)).astype(weight.dtype)
        ir.set_constant_input(model, layer, 1, scaled, "scaled")
        layer.replace_input_with(0, source)
        model.graph.remove(node, safe=True)
        changes += 1
    return PassResult(changes, skipped)


def _get_constant_weight(layer: ir.Node | None) -> np.ndarray | None:
    """Return the weight of a Conv or Linear if it is constant, or None."""
    if layer is None or not is_weight_layer(layer):
        return None
    return ir.const_value(layer.inputs[1])


def fold_batch_norm_into_next_layer(model: ir.Model) -> PassResult:
    """Fold each BatchNormalization of `model` into its only consumer, in place.

    The consumer is a Conv, a Linear or another BatchNormalization. Those that cannot be folded are
    skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        reason = _fold_into_consumer(model, node)
        if reason is None:
            changes += 1
        else:
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _fold_into_consumer(model: ir.Model, node: ir.Node) -> str | None:
    """Fold the BatchNormalization `node` into its only consumer; return why that fails, else None.

    The consumer must be a Conv, Linear or another BatchNormalization that reads it as data. Not
    folded if the input of `node` is a graph input, so that this keeps its own scale.
    """
    parameters = fold_batch_norm_parameters(node)
    if parameters is None or ir.get_attr(node, "training_mode", 0):
        return "its parameters are computed at run time"
    if ir.require_input(node).is_graph_input():
        return "its input is an input of the graph"
    consumer = ir.sole_consumer(node.outputs[0])
    if consumer is None or consumer.inputs[0] is not node.outputs[0]:
        return "its output is not the data of a single node"
    if consumer.op_type == node.op_type:
        is_folded = _compose_batch_norms(model, consumer, *parameters)
    else:
        is_folded = _fold_into_layer(model, consumer, *parameters)
    if not is_folded:
        return f"{consumer.op_type} {consumer.name} cannot absorb it"
    consumer.replace_input_with(0, node.inputs[0])
    model.graph.remove(node, safe=True)
    return None


def _compose_batch_norms(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Change the BatchNormalization `node` to apply ``factor * x + offset`` [C] to its input first.

    In place; returns True. False, without a change, if its parameters are not constant or it is in
    training mode.
    """
    parameters = fold_batch_norm_parameters(node)
    if parameters is None or node.domain or ir.get_attr(node, "training_mode", 0):
        return False
    node_factor, node_offset = parameters
    scale, bias = node_factor * factor, node_factor * offset + node_offset
    mean, variance = np.zeros_like(factor), np.ones_like(factor)
    for index, values in enumerate((scale, bias, mean, variance), 1):
        ir.set_constant_input(model, node, index, values.astype(np.float32), "joined")
    ir.set_attr(node, "epsilon", 0.0)
    return True


def _fold_into_layer(
    model: ir.Model, layer: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Change weight and bias of `layer` to apply ``factor * x + offset`` [C] to its input first.

    In place; returns True. False, without a change, if the weight or bias is not constant, if a
    Linear has an input of more than two axes, or if a Conv has `auto_pad` or pads (unless the
    offset is 0).
    """
    if _get_constant_weight(layer) is None:
        return False
    if layer.op_type == "Linear":
        if len(ir.get_shape(layer.inputs[0]) or ()) != 2:
            return False
    else:
        is_padded = any(ir.get_attr(layer, "pads", ()) or ())
        if is_padded and offset.any():
            return False
        if ir.get_attr(layer, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return False
    return fold_affine_into_layer_inputs(model, layer, factor, offset)


def _match_scalar_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return (x, factor) if `node` multiplies a computed float32 x by a nonzero number, or None.

    None also if x is a graph input, or has another shape than the result.
    """
    match = _scalar_factor(node)
    if match is None:
        return None
    source = match[0]
    if source.is_graph_input() or not ir.is_float32(source):
        return None
    return match if ir.get_shape(source) == ir.get_shape(node.outputs[0]) else None


def _scalar_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return (x, factor) of a Neg (-1), or of a Mul or Div of x by a constant, or None.

    The constant is a single number other than 0; of a Div the factor is the reciprocal.
    """
    if ir.is_standard_op(node, "Neg"):
        source = ir.require_input(node)
        return None if ir.const_value(source) is not None else (source, -1.0)
    if not ir.is_standard_op(node, *float_ops.SCALING_OPS):
        return None
    operand = ir.match_constant_operand(node)
    if operand is None or operand.array.size != 1:
        return None
    number = float(operand.array.reshape(()))
    if not number or (node.op_type == "Div" and operand.is_first):
        return None
    return operand.source, 1.0 / number if node.op_type == "Div" else number
