"""Padding beyond a convolution's limit in a Pad of its own, where the platform's Pad runs right.

Exact.
A map that is smaller than the kernel, as the packer counts, is padded altogether before.
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
    """Leave as much of the padding in the convolution as it takes, and put the rest before it."""
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    below = target.needs_rewrite(node, "pad-ahead")
    if not target.needs_rewrite(node, "explicit-pad") and not below:
        return None
    g, _ = conv
    return insert_pad_before(
        model,
        node,
        target,
        [0] * len(g.pads) if below else clip_pads_to_limits(g, target.conv_limits),
    )


def clip_pads_to_limits(g: ConvGeometry, limits: ConvLimits) -> list[int]:
    """Return as much of the padding as a convolution of the platform takes, begins and then ends."""
    most = [min(limits.max_pad, k, limits.max_kernel) for k in g.kernel]
    return [min(p, m) for p, m in zip(g.pads, [*most, *most], strict=True)]


def insert_pad_before(
    model: ir.Model, node: ir.Node, target: Target, remaining_pads: list[int]
) -> tuple[str, str] | None:
    """Leave the pads `remaining_pads` in a convolution, and put the rest into a Pad."""
    g = ConvGeometry(node)
    rank = len(g.kernel)
    rest = [p - k for p, k in zip(g.pads, remaining_pads, strict=True)]
    if not any(rest):
        return None
    make = RewriteBuilder(model, node)
    source = ir.require_input(node)
    pads = [0, 0, *rest[:rank], 0, 0, *rest[rank:]]
    shape = [
        *(source.shape or ())[:2],
        *(int(d or 0) + rest[i] + rest[rank + i] for i, d in enumerate(g.input_shape[2:])),
    ]
    padded = make("Pad", [source, make.constant(np.array(pads, np.int64), "pads")], shape, "padded")
    if not can_lower(make.nodes[0], target):
        make.discard()
        return None
    model.graph.insert_before(node, make.nodes[0])
    node.replace_input_with(0, padded)
    ir.set_attr(node, "pads", remaining_pads)
    return f"pads {list(g.pads)} made {remaining_pads}, the rest in a Pad before", "exact"
