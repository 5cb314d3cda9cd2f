"""Tanh between layers by the table of the sigmoid, where the platform has no right one of its own.

    tanh(x) = 2*sigmoid(2*x) - 1

The sum behind is a BatchNormalization. The factor in front goes into the weights of the layer that makes `x`, where
nothing else reads that, else it is one, too. The sigmoid is held in steps of 2^-7, so the tanh has steps of 2^-6.
"""

from __future__ import annotations

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir, operators
from ..ops.functions.lut import SIGMOID, TANH
from ..targets import Target
from ._base import Maker
from .affine import between_layers, can_be_normalized, normalized

__all__ = ["tanh_of_sigmoid"]

_ONE = np.ones(())
_LINEAR = (operators.LAYERS - operators.RECURRENT) | {"Linear"}  # in their weights


def tanh_of_sigmoid(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a tanh as a sigmoid."""
    if node.op_type != "Tanh" or node.domain or TANH.available(target) or not SIGMOID.available(target):
        return None
    source = ir.source(node)
    if not (target.runs(BATCH_NORM2D.name) and can_be_normalized(source) and between_layers(node)):
        return None
    make = Maker(model, node)
    doubled = _doubled_layer(make, source) or normalized(make, source, 2 * _ONE, 0 * _ONE)
    half = make("Sigmoid", [doubled], list(source.shape or ()), "half")
    normalized(make, half, 2 * _ONE, -_ONE)
    make.done()
    return "2*sigmoid(2x) - 1", "one more rounding of half a step at most, of steps twice as large"


def _doubled_layer(make: Maker, value: ir.Value) -> ir.Value | None:
    """Return twice `value`, of its layer with twice the weights; None where it has no such layer, or other readers."""
    layer = ir.producer(value)
    if layer is None or len(value.uses()) != 1 or value.is_graph_output() or ir.kind(layer) not in _LINEAR:
        return None
    read, *held = layer.inputs
    arrays = [ir.const(given) for given in held if given is not None]
    if any(array is None for array in arrays):
        return None
    constants = [make.constant(2 * array, "doubled") for array in arrays if array is not None]
    attributes = {name: ir.attr(layer, name) for name in layer.attributes}
    return make(layer.op_type, [read, *constants], list(value.shape or ()), "twice", attributes, layer.domain)
