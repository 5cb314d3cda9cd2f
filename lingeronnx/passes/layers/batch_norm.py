"""Fold BatchNormalization into the convolution or linear layer in front of it.

``y = (conv(x) - mean) * a + beta`` with ``a = gamma / sqrt(var + eps)`` is ``W' = W * a`` per
output channel and ``b' = (b - mean) * a + beta``. Computed in float64. Not folded, and kept as
BatchNormalization (the NPU has it as an operator): no such layer in front, or its output read by
someone else too; parameters that are not constant.

Behind a linear layer on sequences rows may be folded into the batch for it: [N, T, C] -> [N*T, C]
-> BatchNormalization -> [N, T, C]. All three go.
"""

from __future__ import annotations

from ...graph import ir
from ...ops.layers.batch_norm import fold_batch_norm_parameters
from .._pass import PassResult, SkipReason
from .weight_layers import is_weight_layer, scale_layer_outputs


def fold_batch_norm(model: ir.Model) -> PassResult:
    """Fold the batch normalisations of `model`."""
    folded, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        if _fold_batched_rows(model, node):
            folded += 1
            continue
        parameters, layer = fold_batch_norm_parameters(node), ir.producer(node.inputs[0])
        reason = _explain_unchanged(node, layer)
        if reason:
            why.append(SkipReason(node, reason))
        elif (
            layer is not None
            and parameters is not None
            and scale_layer_outputs(model, layer, *parameters)
        ):
            ir.absorb_consumer(model, layer, node)
            folded += 1
        else:
            why.append(
                SkipReason(
                    node, f"weight or bias of {layer.name if layer else ''} is computed at run time"
                )
            )
    return PassResult(folded, why)


def _fold_batched_rows(model: ir.Model, node: ir.Node) -> bool:
    """Fold a normalisation of folded rows, with the two nodes around it.

    False where it is something else.
    """
    fold, unfold, parameters = (
        ir.producer(node.inputs[0]),
        ir.sole_consumer(node.outputs[0]),
        fold_batch_norm_parameters(node),
    )
    if (
        fold is None
        or unfold is None
        or parameters is None
        or ir.get_attr(node, "training_mode", 0)
    ):
        return False
    if (
        fold.domain
        or fold.op_type not in ("Flatten", "Reshape")
        or unfold.domain
        or unfold.op_type != "Reshape"
    ):
        return False
    layer, rows = ir.producer(fold.inputs[0]), ir.get_shape(fold.inputs[0]) or ()
    plain = layer is not None and (layer.domain, layer.op_type) == (ir.FUNCTION_DOMAIN, "Linear")
    back = (
        len(rows) > 2
        and None not in rows[1:]
        and (ir.get_shape(unfold.outputs[0]) or ())[1:] == rows[1:]
    )
    if (
        layer is None
        or not plain
        or not back
        or (ir.get_shape(fold.outputs[0]) or ())[1:] != rows[-1:]
    ):
        return False
    if (
        ir.sole_consumer(layer.outputs[0]) is not fold
        or ir.sole_consumer(fold.outputs[0]) is not node
    ):
        return False
    if not scale_layer_outputs(model, layer, *parameters):
        return False
    ir.absorb_consumer(model, fold, node)
    ir.absorb_consumer(model, fold, unfold)
    ir.absorb_consumer(model, layer, fold)
    return True


def _explain_unchanged(node: ir.Node, layer: ir.Node | None) -> str:
    """Return why `node` cannot go into `layer`, which writes its input."""
    if ir.get_attr(node, "training_mode", 0):
        return "it is in training mode"
    if fold_batch_norm_parameters(node) is None:
        return "its parameters are computed at run time"
    if layer is None or not is_weight_layer(layer):
        return "no Conv or Linear stands in front"
    if ir.sole_consumer(layer.outputs[0]) is not node:
        return f"the output of {layer.name} is read elsewhere too"
    return ""
