"""Fold BatchNormalization into the convolution or linear layer before it.

``y = (conv(x) - mean) * a + beta`` with ``a = gamma / sqrt(var + eps)`` is ``W' = W * a`` per
output channel and ``b' = (b - mean) * a + beta``, computed in float64. A BatchNormalization remains
(the NPU has it as an operator) if there is no such layer before it, the layer's output is used
elsewhere, or a parameter is not constant.

After a linear layer on sequences, rows may be folded into the batch for the normalization:
[N, T, C] -> [N*T, C] -> BatchNormalization -> [N, T, C]. All three nodes are removed.
"""

from __future__ import annotations

from ....ir import ir
from ....operators.batch_norm.lowering import fold_batch_norm_parameters
from .._pass import PassResult, SkipReason
from .weight_layers import is_weight_layer, scale_layer_outputs


def fold_batch_norm(model: ir.Model) -> PassResult:
    """Fold the batch normalizations of `model` into the layers before them, in place.

    Skipped with a reason if there is no such layer that only it consumes, if weight, bias or its
    parameters are computed at run time, and in training mode.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        if _fold_batched_rows(model, node):
            changes += 1
            continue
        parameters, layer = fold_batch_norm_parameters(node), ir.producer(node.inputs[0])
        reason = _explain_unchanged(node, layer)
        if reason or layer is None or parameters is None:
            skipped.append(SkipReason(node, reason))
        elif scale_layer_outputs(model, layer, *parameters):
            ir.absorb_consumer(model, layer, node)
            changes += 1
        else:
            reason = f"weight or bias of {layer.name} is computed at run time"
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _fold_batched_rows(model: ir.Model, node: ir.Node) -> bool:
    """Fold a BatchNormalization between two Reshapes into the Linear before them; return whether.

    The first Reshape folds rows into the batch, the second restores them; all three nodes are
    removed. False, without a change, if the nodes around it are others or have further consumers,
    in training mode, or if a parameter is not constant.
    """
    parameters = fold_batch_norm_parameters(node)
    if parameters is None or ir.get_attr(node, "training_mode", 0):
        return False
    fold, unfold = ir.producer(node.inputs[0]), ir.sole_consumer(node.outputs[0])
    if not ir.is_standard_op(fold, "Flatten", "Reshape"):
        return False
    if not ir.is_standard_op(unfold, "Reshape") or not _restores_rows(fold, unfold):
        return False
    layer = ir.producer(fold.inputs[0])
    if layer is None or (layer.domain, layer.op_type) != (ir.FUNCTION_DOMAIN, "Linear"):
        return False
    if ir.sole_consumer(layer.outputs[0]) is not fold:
        return False
    if ir.sole_consumer(fold.outputs[0]) is not node:
        return False
    if not scale_layer_outputs(model, layer, *parameters):
        return False
    ir.absorb_consumer(model, fold, node)
    ir.absorb_consumer(model, fold, unfold)
    ir.absorb_consumer(model, layer, fold)
    return True


def _restores_rows(fold: ir.Node, unfold: ir.Node) -> bool:
    """Whether `fold` reshapes [N, ..., C] to [rows, C], and `unfold` reshapes that back.

    The input of `fold` must have three axes or more, all known except the batch.
    """
    shape = ir.get_shape(fold.inputs[0]) or ()
    if len(shape) <= 2 or None in shape[1:]:
        return False
    if (ir.get_shape(fold.outputs[0]) or ())[1:] != shape[-1:]:
        return False
    return (ir.get_shape(unfold.outputs[0]) or ())[1:] == shape[1:]


def _explain_unchanged(node: ir.Node, layer: ir.Node | None) -> str:
    """Explain why the BatchNormalization `node` cannot be folded into `layer`; "" if it can.

    `layer` computes its input, or is None. Reasons, in order: training mode, parameters that are
    not constant, `layer` is no Conv or Linear, and an output of `layer` that has other consumers.
    """
    if ir.get_attr(node, "training_mode", 0):
        return "it is in training mode"
    if fold_batch_norm_parameters(node) is None:
        return "its parameters are computed at run time"
    if layer is None or not is_weight_layer(layer):
        return "there is no Conv or Linear before it"
    if ir.sole_consumer(layer.outputs[0]) is not node:
        return f"the output of {layer.name} is used elsewhere too"
    return ""
