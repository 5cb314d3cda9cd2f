"""Clips that are no ReLU6, where there is no Clip: a ReLU, or a ReLU6, of the distance to a bound.

    max(x, a)              =  relu(x - a) + a
    min(x, b)              =  b - relu(b - x)
    min(max(x, a), b)      =  relu6(x - a) + a        where ReLU6 is Clip(0, b - a)

Not in front of the first layer, behind the last one, or behind what stays in float: there the host computes it.
"""

from __future__ import annotations

import math

import numpy as np

from ..formats import BATCH_NORM2D, CLIP, RELU
from ..graph import ir
from ..ops import float_op
from ..ops.functions.activation import bounds
from ..targets import Target
from ._base import Maker
from .affine import between_layers

__all__ = ["FLOOR", "distance_to_bound"]

#: What the metadata of a ReLU say that is a Clip's lower bound: it cuts off no more than that Clip did.
FLOOR = "lingeronnx.floor"


def distance_to_bound(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a Clip with other bounds than from 0 to a number as one of a distance."""
    limits = bounds(node) if node.op_type == "Clip" and not node.domain else None
    able = not target.runs(CLIP.name) and target.runs(RELU.name) and target.runs(BATCH_NORM2D.name)
    if limits is None or not able or limits[0] >= limits[1] or not between_layers(node):
        return None
    maker = ir.producer(ir.source(node))
    op = None if maker is None else float_op(maker, target)[0]
    if op is None or not op.available(target):  # the host computes what is read: so it may compute the Clip
        return None
    low, high = limits
    shape = ir.shape(node.outputs[0]) or ()
    if len(shape) < 2 or None in shape[1:] or ir.has_folded_batch(ir.source(node)):
        return None
    make, source, sizes = Maker(model, node), ir.source(node), list(shape)
    if low == -math.inf:
        bound = make.constant(np.array(high, np.float32), "high")
        above = make("Relu", [make("Sub", [bound, source], sizes, "distance")], sizes, "below")
        make("Sub", [bound, above], sizes, "back")
    else:
        bound = make.constant(np.array(low, np.float32), "low")
        distance = make("Sub", [source, bound], sizes, "distance")
        if high == math.inf:
            above = make("Relu", [distance], sizes, "above")
            ir.maker(above).metadata_props[FLOOR] = "lower bound"
        else:
            ends = [make.constant(np.array(v, np.float32), what) for v, what in ((0, "none"), (high - low, "room"))]
            above = make("Clip", [distance, *ends], sizes, "above")
        make("Add", [above, bound], sizes, "back")
    make.done()
    return f"Clip{limits} written with the distance to a bound", "2 more roundings of half a step at most"
