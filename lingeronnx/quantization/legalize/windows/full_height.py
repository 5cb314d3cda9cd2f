"""Read a map at full height as channels, for kernels that are as high as the map.

A kernel of the map's height sums over all rows, as over channels: [N, C, H, W] is [N, C H, 1, W] in
memory, and the weight [O, C, H, K] becomes [O, C H, 1, K]. This is exact.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....targets import Target
from .._base import RewriteBuilder, format_sizes, match_conv

__all__ = ["fold_height_into_channels"]


def fold_height_into_channels(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a Conv whose kernel is as high as its input by one with a kernel of height 1.

    Only for one group, without padding and dilation of the height, and if the target supports the
    result. Returns the description and the cost of the change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None:
        return None
    geometry, weight = conv
    source = ir.require_input(node)
    shape = ir.require_shape(source)
    if weight.ndim != 4 or geometry.group != 1 or shape[2] != weight.shape[2] or shape[2] == 1:
        return None
    if any(geometry.pads[axis] for axis in (0, 2)) or geometry.dilations[0] != 1:
        return None
    channels = weight.shape[1] * weight.shape[2]
    builder = RewriteBuilder(model, node)
    rows = builder.reshape(source, [channels, 1, int(shape[3] or 0)], "rows")
    folded = np.ascontiguousarray(weight.reshape(weight.shape[0], channels, 1, weight.shape[3]))
    inputs = [rows, builder.constant(folded, "weight"), *node.inputs[2:]]
    attributes = {
        "kernel_shape": [1, weight.shape[3]],
        "strides": [1, geometry.strides[1]],
        "dilations": [1, geometry.dilations[1]],
        "pads": list(geometry.pads),
    }
    builder("Conv", inputs, list(node.outputs[0].shape or ()), "folded", attributes)
    if not builder.replace_node_if_supported(target):
        return None
    return f"kernel {format_sizes(geometry.kernel)}: rows read as channels", "exact"
