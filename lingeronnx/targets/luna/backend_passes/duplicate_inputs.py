"""A copy of a graph input for the nodes that read it in several operands, which the packer refuses.

The copy is made by a plain convolution of size 1x1, 64 on the diagonal of its weight at scale 64.
All operands of the node read it, because an inner tensor may be read twice. The input is seen as an
image of at most 8 channels, so the weight has at most 64 numbers; the chips compute 8 channels side
by side.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ....formats import QUANT
from ....graph import ir
from ... import Target
from ..._target import AppliedRewrite
from .node_builders import IDENTITY_WEIGHT, insert_pointwise_conv

__all__ = ["copy_duplicate_inputs"]

_MAX_CHANNELS = 8

#: A row of an image of 8 channels that every chip takes.
_MAX_ROW_LENGTH = 512


def copy_duplicate_inputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Let every node that would read a graph input in several operands read a copy in all of them."""
    copies: dict[ir.Value, ir.Value] = {}
    done = []
    for node in list(graph.graph):
        counts = Counter(value for value in node.inputs if value is not None)
        for value, count in counts.items():
            maker = ir.producer(value)
            if count == 1 or maker is None or maker.op_type != QUANT.name:
                continue
            if value not in copies:
                copies[value] = _insert_copy(
                    graph, value, float(ir.get_attr(maker, "scale_x")), node, target
                )
            for index, operand in enumerate(node.inputs):
                if operand is value:
                    node.replace_input_with(index, copies[value])
            what = (
                f"{count} operands read a copy of the graph input, made by an identity "
                "convolution: "
                "the packer takes no node that reads an input twice"
            )
            done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def _insert_copy(
    graph: ir.Model, value: ir.Value, scale: float, reader: ir.Node, target: Target
) -> ir.Value:
    """Insert a copy of `value`, held at `scale`, before `reader`; return it."""
    shape = [int(d or 1) for d in ir.get_shape(value) or ()]
    image = _choose_image_shape(shape)
    weight = np.eye(image[1], dtype=np.int8).reshape(image[1], -1, 1, 1) * IDENTITY_WEIGHT
    constants: dict[str, np.ndarray] = {"weight": weight, "bias": np.zeros(image[1], np.int32)}
    scales = {"scale_x": scale, "scale_w": float(IDENTITY_WEIGHT), "scale_o": scale}
    return insert_pointwise_conv(
        graph,
        value,
        image,
        constants=constants,
        scales=scales,
        output_shape=shape,
        name=f"{value.name}_copy",
        before=reader,
        target=target,
    )


def _choose_image_shape(shape: list[int]) -> list[int]:
    """Return `shape` where it is an image of few channels, else that of an image of as many numbers."""
    if len(shape) == 4 and shape[1] <= _MAX_CHANNELS:
        return shape
    count = math.prod(shape)
    channels = next(c for c in (8, 4, 2, 1) if count % c == 0)
    width = next(
        w
        for w in range(min(_MAX_ROW_LENGTH, count // channels), 0, -1)
        if count // channels % w == 0
    )
    return [1, channels, count // channels // width, width]
