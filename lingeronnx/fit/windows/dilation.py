"""A dilated kernel where the platform has no dilation: the same kernel with zeros between its taps, exact.

What becomes too large is then split by `kernel`, which leaves out parts that hold only zeros.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...targets import Target
from .._base import by, conv_of

__all__ = ["expand_dilation"]

_LARGEST = 33  # taps per side beyond which the zeros would be most of the work


def expand_dilation(model: ir.Graph, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Spread the taps of the kernel and drop the dilation."""
    conv = conv_of(node, target)
    if conv is None or not target.breaks(node, "expand-dilation"):
        return None
    g, weight = conv
    kernel = [(k - 1) * d + 1 for k, d in zip(g.kernel, g.dilations, strict=True)]
    if max(kernel) > _LARGEST:
        return None
    spread = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in g.dilations))] = weight
    ir.set_constant(model, node, 1, spread, "spread")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "dilations", [1] * len(kernel))
    return f"kernel {by(g.kernel)} with dilation {by(g.dilations)} written as {by(kernel)} with zeros", "exact"
