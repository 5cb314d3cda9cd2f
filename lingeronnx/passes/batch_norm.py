"""Fold BatchNormalization into the convolution or linear layer in front of it.

``y = (conv(x) - mean) * a + beta`` with ``a = gamma / sqrt(var + eps)`` is ``W' = W * a`` per output channel and
``b' = (b - mean) * a + beta``. Computed in float64. Not folded, and kept as BatchNormalization (the NPU has it as an
operator): no such layer in front, or its output read by someone else too; parameters that are not constant.
"""

from __future__ import annotations

from .. import ir
from ..ops.norm import factors
from ._layers import scale_layer


def fold_batch_norm(model: ir.Graph) -> int:
    """Fold the batch normalisations of `model`; return how many."""
    folded = 0
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain or ir.attr(node, "training_mode", 0):
            continue
        parameters = factors(node)
        layer = ir.producer(node.inputs[0])
        if parameters is None or layer is None or ir.sole_consumer(layer.outputs[0]) is not node:
            continue
        if scale_layer(model, layer, *parameters):
            ir.absorb(model, layer, node)
            folded += 1
    return folded
