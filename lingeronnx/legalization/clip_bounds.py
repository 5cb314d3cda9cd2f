"""Clips that are no ReLU6, where there is no Clip: a ReLU, or a ReLU6, of the distance to a bound.

    max(x, a)              =  relu(x - a) + a
    min(x, b)              =  b - relu(b - x)
    min(max(x, a), b)      =  relu6(x - a) + a        where ReLU6 is Clip(0, b - a)

Not in front of the first layer, behind the last one, or behind what stays in float: there the host
computes it.
"""

from __future__ import annotations

import math

import numpy as np

from ..formats import BATCH_NORM2D, CLIP, RELU
from ..graph import ir
from ..ops import find_lowering_rule
from ..ops.functions.activation import get_clip_bounds
from ..targets import Target
from ._base import RewriteBuilder
from .constant_arithmetic import is_between_layers

__all__ = ["LOWER_BOUND_KEY", "decompose_clip"]

#: What the metadata of a ReLU say that is a Clip's lower bound: it cuts off no more than that Clip did.
LOWER_BOUND_KEY = "lingeronnx.floor"


def decompose_clip(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a Clip with other bounds than from 0 to a number as one of a distance."""
    limits = get_clip_bounds(node) if node.op_type == "Clip" and not node.domain else None
    able = (
        not target.can_run(CLIP.name)
        and target.can_run(RELU.name)
        and target.can_run(BATCH_NORM2D.name)
    )
    if limits is None or not able or limits[0] >= limits[1] or not is_between_layers(node):
        return None
    maker = ir.producer(ir.require_input(node))
    op = None if maker is None else find_lowering_rule(maker, target)[0]
    if op is None or not op.is_available(
        target
    ):  # the host computes what is read: so it may compute the Clip
        return None
    low, high = limits
    shape = ir.get_shape(node.outputs[0]) or ()
    if len(shape) < 2 or None in shape[1:] or ir.has_folded_batch(ir.require_input(node)):
        return None
    make, source, sizes = RewriteBuilder(model, node), ir.require_input(node), list(shape)
    if low == -math.inf:
        bound = make.constant(np.array(high, np.float32), "high")
        above = make("Relu", [make("Sub", [bound, source], sizes, "distance")], sizes, "below")
        make("Sub", [bound, above], sizes, "back")
    else:
        bound = make.constant(np.array(low, np.float32), "low")
        distance = make("Sub", [source, bound], sizes, "distance")
        if high == math.inf:
            above = make("Relu", [distance], sizes, "above")
            ir.require_producer(above).metadata_props[LOWER_BOUND_KEY] = "lower bound"
        else:
            ends = [
                make.constant(np.array(v, np.float32), what)
                for v, what in ((0, "none"), (high - low, "room"))
            ]
            above = make("Clip", [distance, *ends], sizes, "above")
        make("Add", [above, bound], sizes, "back")
    make.replace_node()
    return (
        f"Clip{limits} written with the distance to a bound",
        "2 more roundings of half a step at most",
    )
