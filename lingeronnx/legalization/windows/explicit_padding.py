"""Move padding that exceeds a convolution's limit to a Pad, exactly.

This requires a correct Pad on the platform. The padding of a map that the packer considers smaller
than the kernel is moved completely.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from ...targets.limits import ConvLimits
from .._base import RewriteBuilder, can_lower, match_conv

__all__ = ["clip_pads_to_limits", "insert_pad_before", "move_padding_to_pad"]


def move_padding_to_pad(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Keep as much padding in a convolution as is supported, and insert a Pad for the rest.

    All of it is moved if the limit "pad-ahead" requires it. Returns the description and the cost of
    the change; None, without a change, if no limit requires a Pad or the platform does not support
    it.
    """
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    geometry, _ = conv
    if target.needs_rewrite(node, "pad-ahead"):
        return insert_pad_before(model, node, target, [0] * len(geometry.pads))
    if not target.needs_rewrite(node, "explicit-pad"):
        return None
    return insert_pad_before(model, node, target, clip_pads_to_limits(geometry, target.conv_limits))


def clip_pads_to_limits(geometry: ConvGeometry, limits: ConvLimits) -> list[int]:
    """Return the pads of a convolution, begins then ends, clipped to the platform's limits.

    These are the largest pad, the largest kernel, and the convolution's own kernel size.
    """
    max_pads = [min(limits.max_pad, size, limits.max_kernel) for size in geometry.kernel]
    return [min(pair) for pair in zip(geometry.pads, [*max_pads, *max_pads], strict=True)]


def insert_pad_before(
    model: ir.Model, node: ir.Node, target: Target, remaining_pads: list[int]
) -> tuple[str, str] | None:
    """Keep `remaining_pads` in a convolution, and insert a Pad with the other padding before it.

    `remaining_pads` are begins, then ends, of the spatial axes. Returns the description and the
    cost; None, without a change, if there is no other padding or the platform does not support the
    Pad.
    """
    geometry = ConvGeometry(node)
    rank = len(geometry.kernel)
    moved_pads = [
        pad - remaining for pad, remaining in zip(geometry.pads, remaining_pads, strict=True)
    ]
    if not any(moved_pads):
        return None
    builder = RewriteBuilder(model, node)
    source = ir.require_input(node)
    begins, ends = moved_pads[:rank], moved_pads[rank:]
    sizes = [
        int(geometry.input_shape[2 + axis] or 0) + begins[axis] + ends[axis] for axis in range(rank)
    ]
    pads = builder.constant(np.array([0, 0, *begins, 0, 0, *ends], np.int64), "pads")
    padded = builder("Pad", [source, pads], [*(source.shape or ())[:2], *sizes], "padded")
    if not can_lower(builder.nodes[0], target):
        builder.discard()
        return None
    model.graph.insert_before(node, builder.nodes[0])
    node.replace_input_with(0, padded)
    ir.set_attr(node, "pads", remaining_pads)
    return (
        f"pads {list(geometry.pads)} reduced to {remaining_pads}, the rest moved to a Pad",
        "exact",
    )
