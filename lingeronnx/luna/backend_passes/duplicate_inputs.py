"""Copy a graph input for nodes that read it as several operands, which the packer rejects.

The copy is made by a 1x1 convolution whose weight has 64 on its diagonal, at scale 64. All operands
of the node read it, because an inner tensor may be read twice. The input is viewed as an image of
at most 8 channels, because the chips compute 8 channels at a time; so the weight has at most 64
elements.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ...ir import ir
from ...operators.integer_ops import QUANT
from ...targets import Target
from ...targets._target import AppliedRewrite
from .node_builders import IDENTITY_WEIGHT, insert_pointwise_conv

__all__ = ["copy_duplicate_inputs", "insert_copy"]

_MAX_CHANNELS = 8

#: Longest row of an image of 8 channels that every chip supports.
_MAX_ROW_LENGTH = 512


def copy_duplicate_inputs(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Make every node that reads a graph input as several operands read a copy of it, in place.

    A graph input is the output of a Quant. The copy, an identity convolution, replaces all these
    operands, and is shared by such nodes. Returns one description per node and input.
    """
    copies: dict[ir.Value, ir.Value] = {}
    rewrites = []
    for node in list(graph.graph):
        counts = Counter(value for value in node.inputs if value is not None)
        for value, count in counts.items():
            producer = ir.producer(value)
            if count == 1 or producer is None or producer.op_type != QUANT.name:
                continue
            if value not in copies:
                scale = float(ir.get_attr(producer, "scale_x"))
                copies[value] = insert_copy(graph, value, scale, node, target)
            _replace_input(node, value, copies[value])
            description = (
                f"graph input of {count} operands copied by an identity convolution: the packer "
                "rejects nodes that read a graph input twice"
            )
            rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _replace_input(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Replace every operand of `node` that is `old` by `new`, in place."""
    for index, operand in enumerate(node.inputs):
        if operand is old:
            node.replace_input_with(index, new)


def insert_copy(
    graph: ir.Model, value: ir.Value, scale: float, consumer: ir.Node, target: Target
) -> ir.Value:
    """Insert an exact copy of `value`, quantized with `scale`, before `consumer` and return it.

    The copy is a 1x1 identity convolution on an image, with Reshapes where the shapes differ.
    """
    shape = [int(dim or 1) for dim in ir.get_shape(value) or ()]
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
        before=consumer,
        target=target,
    )


def _choose_image_shape(shape: list[int]) -> list[int]:
    """Return an image shape [N, C, H, W] with as many elements as `shape` and few channels.

    `shape` itself if it has four axes and at most 8 channels; else C is the largest of 8, 4, 2 and
    1 that divides the elements, and W at most `_MAX_ROW_LENGTH`.
    """
    if len(shape) == 4 and shape[1] <= _MAX_CHANNELS:
        return shape
    count = math.prod(shape)
    channels = next(c for c in (8, 4, 2, 1) if count % c == 0)
    area = count // channels
    width = next(w for w in range(min(_MAX_ROW_LENGTH, area), 0, -1) if area % w == 0)
    return [1, channels, area // width, width]
