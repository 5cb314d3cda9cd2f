"""Fold BatchNormalization into the convolution or linear layer in front of it.

``y = (conv(x) - mean) * a + beta`` with ``a = gamma / sqrt(var + eps)`` is ``W' = W * a`` per output channel and
``b' = (b - mean) * a + beta``. Computed in float64. Not folded, and kept as BatchNormalization (the NPU has it as an
operator): no such layer in front, or its output read by someone else too; parameters that are not constant.

Behind a linear layer on sequences rows may be folded into the batch for it: [N, T, C] -> [N*T, C] ->
BatchNormalization -> [N, T, C]. All three go.
"""

from __future__ import annotations

from ...graph import ir
from ...ops.layers.norm import factors
from .._pass import Answer, Reason
from .weights import is_layer, scale_layer


def fold_batch_norm(model: ir.Graph) -> Answer:
    """Fold the batch normalisations of `model`."""
    folded, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        if _fold_rows(model, node):
            folded += 1
            continue
        parameters, layer = factors(node), ir.producer(node.inputs[0])
        reason = _reason(node, layer)
        if reason:
            why.append(Reason(node, reason))
        elif layer is not None and parameters is not None and scale_layer(model, layer, *parameters):
            ir.absorb(model, layer, node)
            folded += 1
        else:
            why.append(Reason(node, f"weight or bias of {layer.name if layer else ''} is computed at run time"))
    return Answer(folded, why)


def _fold_rows(model: ir.Graph, node: ir.Node) -> bool:
    """Fold a normalisation of folded rows, with the two nodes around it; False where it is something else."""
    fold, unfold, parameters = ir.producer(node.inputs[0]), ir.sole_consumer(node.outputs[0]), factors(node)
    if fold is None or unfold is None or parameters is None or ir.attr(node, "training_mode", 0):
        return False
    if fold.domain or fold.op_type not in ("Flatten", "Reshape") or unfold.domain or unfold.op_type != "Reshape":
        return False
    layer, rows = ir.producer(fold.inputs[0]), ir.shape(fold.inputs[0]) or ()
    plain = layer is not None and (layer.domain, layer.op_type) == (ir.DOMAIN, "Linear")
    back = len(rows) > 2 and None not in rows[1:] and (ir.shape(unfold.outputs[0]) or ())[1:] == rows[1:]
    if layer is None or not plain or not back or (ir.shape(fold.outputs[0]) or ())[1:] != rows[-1:]:
        return False
    if ir.sole_consumer(layer.outputs[0]) is not fold or ir.sole_consumer(fold.outputs[0]) is not node:
        return False
    if not scale_layer(model, layer, *parameters):
        return False
    ir.absorb(model, fold, node)
    ir.absorb(model, fold, unfold)
    ir.absorb(model, layer, fold)
    return True


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
