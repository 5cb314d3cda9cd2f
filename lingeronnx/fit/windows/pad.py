"""Padding beyond a convolution's limit in a Pad of its own, where the platform's Pad runs right: exact.

A map that is smaller than the kernel, as the packer counts, is padded altogether before.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from ...targets.limits import ConvLimits
from .._base import Maker, conv_of, runs

__all__ = ["explicit_pad", "kept_pads", "pad_before"]


def explicit_pad(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Leave as much of the padding in the convolution as it takes, and put the rest before it."""
    conv = conv_of(node, target)
    if conv is None or target.conv is None:
        return None
    below = target.breaks(node, "pad-ahead")
    if not target.breaks(node, "explicit-pad") and not below:
        return None
    g, _ = conv
    return pad_before(model, node, target, [0] * len(g.pads) if below else kept_pads(g, target.conv))


def kept_pads(g: ConvGeometry, limits: ConvLimits) -> list[int]:
    """Return as much of the padding as a convolution of the platform takes, begins and then ends."""
    most = [min(limits.max_pad, k, limits.max_kernel) for k in g.kernel]
    return [min(p, m) for p, m in zip(g.pads, [*most, *most], strict=True)]


def pad_before(model: ir.Graph, node: ir.Node, target: Target, kept: list[int]) -> tuple[str, str] | None:
    """Leave the pads `kept` in a convolution, and put the rest into a Pad."""
    g = ConvGeometry(node)
    rank = len(g.kernel)
    rest = [p - k for p, k in zip(g.pads, kept, strict=True)]
    if not any(rest):
        return None
    make = Maker(model, node)
    source = ir.source(node)
    pads = [0, 0, *rest[:rank], 0, 0, *rest[rank:]]
    shape = [*(source.shape or ())[:2], *(int(d or 0) + rest[i] + rest[rank + i] for i, d in enumerate(g.source[2:]))]
    padded = make("Pad", [source, make.constant(np.array(pads, np.int64), "pads")], shape, "padded")
    if not runs(make.nodes[0], target):
        make.undo()
        return None
    model.graph.insert_before(node, make.nodes[0])
    node.replace_input_with(0, padded)
    ir.set_attr(node, "pads", kept)
    return f"pads {list(g.pads)} made {kept}, the rest in a Pad before", "exact"
