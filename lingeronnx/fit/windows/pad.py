"""Padding beyond a convolution's limit in a Pad of its own, where the platform's Pad runs right: exact.

A map that is smaller than the kernel, as the packer counts, is padded altogether before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph import ir
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from .._base import Maker, conv_of, runs

__all__ = ["explicit_pad", "pad_before"]


def explicit_pad(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Leave as much of the padding in the convolution as it takes, and put the rest before it."""
    conv = conv_of(node, target)
    if conv is None or target.conv is None:
        return None
    below = target.breaks(node, "pad-ahead")
    if not target.breaks(node, "explicit-pad") and not below:
        return None
    g, _ = conv
    return pad_before(
        model, node, target, [0 if below else min(target.conv.max_pad, k, target.conv.max_kernel) for k in g.kernel]
    )


def pad_before(model: ir.Graph, node: ir.Node, target: Target, most: Sequence[int]) -> tuple[str, str] | None:
    """Leave `most` of the padding of a convolution in it, a number for each axis, and put the rest into a Pad."""
    g = ConvGeometry(node)
    rank = len(g.kernel)
    rest = [max(0, p - m) for p, m in zip(g.pads, [*most, *most], strict=True)]
    kept = [p - r for p, r in zip(g.pads, rest, strict=True)]
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
