"""Split a depthwise convolution with several filters per channel into one per filter, exactly.

ONNX numbers the outputs ``channel * multiplier + filter``. The concatenated parts have the order
(filter, channel), so Reshape, Transpose and Reshape interleave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import ir
from ...targets import Target
from .._base import RewriteBuilder, get_constant_bias, match_conv

__all__ = ["split_depthwise"]

_MAX_MULTIPLIER = 16


def split_depthwise(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a depthwise convolution with several filters per channel by one for each filter.

    The results are interleaved again; only 2-D, up to `_MAX_MULTIPLIER` filters, if a limit
    requires it. Returns the description and the cost of the change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or len(conv[0].kernel) != 2:
        return None
    if not target.needs_rewrite(node, "split-depthwise"):
        return None
    geometry, weight = conv
    multiplier, channels = geometry.outputs // geometry.inputs, geometry.inputs
    if multiplier > _MAX_MULTIPLIER:
        return None
    builder = RewriteBuilder(model, node)
    bias = get_constant_bias(node)
    batch: Any = (builder.result.shape or ["N"])[0]
    height, width = (int(dim or 0) for dim in geometry.result[2:])
    attributes = {
        "kernel_shape": list(geometry.kernel),
        "strides": list(geometry.strides),
        "pads": list(geometry.pads),
        "dilations": list(geometry.dilations),
        "group": channels,
    }
    parts = []
    for index in range(multiplier):
        filters = np.ascontiguousarray(weight[index::multiplier])
        inputs = [ir.require_input(node), builder.constant(filters, f"filter{index}")]
        if bias is not None:
            filter_bias = np.ascontiguousarray(bias[index::multiplier])
            inputs.append(builder.constant(filter_bias, f"bias{index}"))
        shape = [batch, channels, height, width]
        parts.append(builder("Conv", inputs, shape, f"part{index}", attributes))
    _emit_interleaving(builder, parts, channels, height, width)
    builder.replace_node()
    description = (
        f"{channels} channels with {multiplier} filters each split into {multiplier} depthwise "
        "convolutions, interleaved"
    )
    return description, "exact"


def _emit_interleaving(
    builder: RewriteBuilder, parts: Sequence[ir.Value], channels: int, height: int, width: int
) -> None:
    """Append the concatenation of parts [N, channels, H, W] with their channels interleaved.

    Channel c of part p becomes channel c * parts + p.
    """
    batch: Any = (builder.result.shape or ["N"])[0]
    count, area = len(parts), height * width
    shape = [batch, count * channels, height, width]
    joined = builder("Concat", parts, shape, "joined", {"axis": 1})
    by_filter = builder.reshape(joined, [count, channels, area], "by_filter")
    shape = [batch, channels, count, area]
    interleaved = builder("Transpose", [by_filter], shape, "woven", {"perm": [0, 2, 1, 3]})
    builder.reshape(interleaved, [count * channels, height, width], "restored")
