"""A kernel smaller than its stride gets zeros at its end, as a strided 1x1 shortcut has: exact."""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...targets import Target
from .._base import format_sizes, match_conv

__all__ = ["enlarge_kernel"]


def enlarge_kernel(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Make the kernel as large as the stride.

    The end padding grows where the last position would be lost.
    """
    conv = match_conv(node, target)
    if (
        conv is None
        or target.conv_limits is None
        or not target.needs_rewrite(node, "enlarge-kernel")
    ):
        return None
    g, weight = conv
    rank = len(g.kernel)
    kernel = [max(k, s) for k, s in zip(g.kernel, g.strides, strict=True)]
    if max(kernel) > target.conv_limits.max_kernel or any(d != 1 for d in g.dilations):
        return None
    pads = list(g.pads)
    for axis in range(rank):
        size, out = int(g.input_shape[2 + axis] or 0), int(g.result[2 + axis] or 0)
        need = (out - 1) * g.strides[axis] + kernel[axis] - (size + pads[axis] + pads[rank + axis])
        pads[rank + axis] += max(0, need)
    grown = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    grown[(slice(None), slice(None), *(slice(k) for k in weight.shape[2:]))] = weight
    ir.set_constant_input(model, node, 1, grown, "grown")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "pads", pads)
    return (
        (
            f"kernel {format_sizes(g.kernel)} with stride {max(g.strides)} enlarged to "
            f"{format_sizes(kernel)} with zeros"
        ),
        "exact",
    )
