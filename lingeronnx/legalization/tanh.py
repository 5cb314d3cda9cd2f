"""Tanh between layers by the table of the sigmoid, where the platform has no right one of its own.

    tanh(x) = 2*sigmoid(2*x) - 1

The sum behind is a BatchNormalization. The factor in front goes into the weights of the layer that
makes `x`, where nothing else reads that, else it is one, too. The sigmoid is held in steps of 2^-7,
so the tanh has steps of 2^-6.
"""

from __future__ import annotations

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir, operators
from ..ops.functions.sigmoid_tanh import SIGMOID, TANH
from ..targets import Target
from ._base import RewriteBuilder
from .constant_arithmetic import can_apply_batch_norm, emit_batch_norm, is_between_layers

__all__ = ["decompose_tanh"]

_ONE = np.ones(())
_LINEAR_OPS = (operators.LAYER_OPS - operators.RECURRENT_OPS) | {"Linear"}  # in their weights


def decompose_tanh(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a tanh as a sigmoid."""
    if (
        node.op_type != "Tanh"
        or node.domain
        or TANH.is_available(target)
        or not SIGMOID.is_available(target)
    ):
        return None
    source = ir.require_input(node)
    if not (
        target.can_run(BATCH_NORM2D.name)
        and can_apply_batch_norm(source)
        and is_between_layers(node)
    ):
        return None
    make = RewriteBuilder(model, node)
    doubled = _emit_doubled_layer(make, source) or emit_batch_norm(make, source, 2 * _ONE, 0 * _ONE)
    half = make("Sigmoid", [doubled], list(source.shape or ()), "half")
    emit_batch_norm(make, half, 2 * _ONE, -_ONE)
    make.replace_node()
    return "2*sigmoid(2x) - 1", "one more rounding of half a step at most, of steps twice as large"


def _emit_doubled_layer(make: RewriteBuilder, value: ir.Value) -> ir.Value | None:
    """Return twice `value`, of its layer with twice the weights.

    None where it has no such layer, or other readers.
    """
    layer = ir.producer(value)
    if (
        layer is None
        or len(value.uses()) != 1
        or value.is_graph_output()
        or ir.base_op_type(layer) not in _LINEAR_OPS
    ):
        return None
    read, *held = layer.inputs
    arrays = [ir.const_value(given) for given in held if given is not None]
    if any(array is None for array in arrays):
        return None
    constants = [make.constant(2 * array, "doubled") for array in arrays if array is not None]
    attributes = {name: ir.get_attr(layer, name) for name in layer.attributes}
    return make(
        layer.op_type,
        [read, *constants],
        list(value.shape or ()),
        "twice",
        attributes,
        layer.domain,
    )
