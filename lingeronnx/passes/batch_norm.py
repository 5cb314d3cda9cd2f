"""Fold BatchNormalization into the convolution or linear layer in front of it.

``y = (conv(x) - mean) * a + beta`` with ``a = gamma / sqrt(var + eps)`` is ``W' = W * a`` per output channel and
``b' = (b - mean) * a + beta``. Computed in float64. Not folded, and kept as BatchNormalization (the NPU has it as an
operator): no such layer in front, or its output read by someone else too; parameters that are not constant.
"""

from __future__ import annotations

from ..graph import ir
from ..ops.norm import factors
from ._layers import is_layer, scale_layer
from ._pass import Answer, Reason, refused


def fold_batch_norm(model: ir.Graph) -> Answer:
    """Fold the batch normalisations of `model`."""
    folded, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        parameters, layer = factors(node), ir.producer(node.inputs[0])
        reason = _reason(node, layer)
        if reason:
            why.append(refused(node, reason))
        elif layer is not None and parameters is not None and scale_layer(model, layer, *parameters):
            ir.absorb(model, layer, node)
            folded += 1
        else:
            why.append(refused(node, f"weight or bias of {layer.name if layer else ''} is computed at run time"))
    return Answer(folded, why)


def _reason(node: ir.Node, layer: ir.Node | None) -> str:
    """Return why `node` cannot go into `layer`, which writes its input."""
    if ir.attr(node, "training_mode", 0):
        return "it is in training mode"
    if factors(node) is None:
        return "its parameters are computed at run time"
    if layer is None or not is_layer(layer):
        return "no Conv or Linear stands in front"
    if ir.sole_consumer(layer.outputs[0]) is not node:
        return f"the output of {layer.name} is read elsewhere too"
    return ""
