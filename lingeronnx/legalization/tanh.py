"""Replace tanh between layers by the sigmoid's table, if the platform has no correct tanh.

    tanh(x) = 2*sigmoid(2*x) - 1

The outer affine function is a BatchNormalization. The inner factor is folded into the weights of
the layer that produces `x` if it has no other consumer, else it is a BatchNormalization as well.
The sigmoid has steps of 2^-7, so the tanh has steps of 2^-6.
"""

from __future__ import annotations

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir, operators
from ..ops.functions.sigmoid_tanh import SIGMOID, TANH
from ..targets import Target
from ._base import RewriteBuilder, is_standard_op
from .constant_arithmetic import can_apply_batch_norm, emit_batch_norm, is_between_layers

__all__ = ["decompose_tanh"]

_ONE = np.ones(())
_LINEAR_OPS = (operators.LAYER_OPS - operators.RECURRENT_OPS) | {"Linear"}


def decompose_tanh(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a Tanh between layers by 2 sigmoid(2x) - 1.

    Only if the target has no Tanh but Sigmoid and BatchNorm2dInt. The factor 2 is folded into the
    preceding layer if possible, otherwise a BatchNormalization. Returns the description and the
    cost of the change, or None without a change.
    """
    if not is_standard_op(node, "Tanh") or TANH.is_available(target):
        return None
    if not SIGMOID.is_available(target) or not target.can_run(BATCH_NORM2D.name):
        return None
    source = ir.require_input(node)
    if not can_apply_batch_norm(source) or not is_between_layers(node):
        return None
    builder = RewriteBuilder(model, node)
    doubled = _emit_doubled_layer(builder, source)
    if doubled is None:
        doubled = emit_batch_norm(builder, source, 2 * _ONE, 0 * _ONE)
    half = builder("Sigmoid", [doubled], list(source.shape or ()), "half")
    emit_batch_norm(builder, half, 2 * _ONE, -_ONE)
    builder.replace_node()
    return "2*sigmoid(2x) - 1", "one more rounding of half a step at most, of steps twice as large"


def _emit_doubled_layer(builder: RewriteBuilder, value: ir.Value) -> ir.Value | None:
    """Append a copy of the layer that produces `value` with doubled weights and bias.

    Returns its output. None if `value` is not produced by a layer with constant weights (recurrent
    ones aside), has other consumers, or is a graph output.
    """
    layer = ir.producer(value)
    if layer is None or ir.base_op_type(layer) not in _LINEAR_OPS:
        return None
    if len(value.uses()) != 1 or value.is_graph_output():
        return None
    source, *weights = layer.inputs
    arrays = [ir.const_value(weight) for weight in weights if weight is not None]
    if any(array is None for array in arrays):
        return None
    constants = [builder.constant(2 * array, "doubled") for array in arrays if array is not None]
    attributes = {name: ir.get_attr(layer, name) for name in layer.attributes}
    return builder(
        layer.op_type,
        [source, *constants],
        list(value.shape or ()),
        "twice",
        attributes,
        layer.domain,
    )
