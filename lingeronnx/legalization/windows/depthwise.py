"""A depthwise convolution with several filters per channel as one with a single filter each, and their results woven.

ONNX numbers the outputs ``channel * multiplier + filter``. Side by side the parts have the order
(filter, channel), so Reshape, Transpose and Reshape bring channel and filter together: exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import ir
from ...targets import Target
from .._base import RewriteBuilder, match_conv

__all__ = ["split_depthwise"]

_MAX_MULTIPLIER = 16


def split_depthwise(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Make one depthwise convolution per filter of a channel."""
    conv = match_conv(node, target)
    if (
        conv is None
        or len(conv[0].kernel) != 2
        or not target.needs_rewrite(node, "split-depthwise")
    ):
        return None
    g, weight = conv
    many, channels = g.outputs // g.inputs, g.inputs
    if many > _MAX_MULTIPLIER:
        return None
    make = RewriteBuilder(model, node)
    bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    batch: Any = (make.result.shape or ["N"])[0]
    height, width = (int(d or 0) for d in g.result[2:])
    attributes = {
        "kernel_shape": list(g.kernel),
        "strides": list(g.strides),
        "pads": list(g.pads),
        "dilations": list(g.dilations),
        "group": channels,
    }
    parts = []
    for number in range(many):
        inputs = [
            ir.require_input(node),
            make.constant(np.ascontiguousarray(weight[number::many]), f"filter{number}"),
        ]
        if bias is not None:
            inputs.append(make.constant(np.ascontiguousarray(bias[number::many]), f"bias{number}"))
        parts.append(
            make("Conv", inputs, [batch, channels, height, width], f"part{number}", attributes)
        )
    joined = make("Concat", parts, [batch, many * channels, height, width], "joined", {"axis": 1})
    area = height * width
    woven = make.reshape(joined, [many, channels, area], "by_filter")
    woven = make(
        "Transpose", [woven], [batch, channels, many, area], "woven", {"perm": [0, 2, 1, 3]}
    )
    make.reshape(woven, [many * channels, height, width], "restored")
    make.replace_node()
    return (
        f"{channels} channels of {many} filters as {many} depthwise convolutions, woven together",
        "exact",
    )
