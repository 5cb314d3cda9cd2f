"""Pad a kernel that is smaller than its stride with zeros, as for a strided 1x1 shortcut: exact."""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...targets import Target
from .._base import format_sizes, match_conv

__all__ = ["enlarge_kernel"]


def enlarge_kernel(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Pad the kernel of a convolution at its end with zeros to the size of the stride, in place.

    The end padding grows where the last output would be lost otherwise. Only if a limit requires
    it, without dilation, and within the largest kernel. Returns the description and the cost of the
    change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    if not target.needs_rewrite(node, "enlarge-kernel"):
        return None
    geometry, weight = conv
    rank = len(geometry.kernel)
    kernel = [max(pair) for pair in zip(geometry.kernel, geometry.strides, strict=True)]
    if max(kernel) > target.conv_limits.max_kernel or any(d != 1 for d in geometry.dilations):
        return None
    pads = list(geometry.pads)
    for axis in range(rank):
        in_size = int(geometry.input_shape[2 + axis] or 0)
        out_size = int(geometry.result[2 + axis] or 0)
        read_size = (out_size - 1) * geometry.strides[axis] + kernel[axis]
        pads[rank + axis] += max(0, read_size - (in_size + pads[axis] + pads[rank + axis]))
    padded = np.zeros((*weight.shape[:2], *kernel), weight.dtype)
    padded[(slice(None), slice(None), *(slice(size) for size in weight.shape[2:]))] = weight
    ir.set_constant_input(model, node, 1, padded, "grown")
    ir.set_attr(node, "kernel_shape", kernel)
    ir.set_attr(node, "pads", pads)
    description = (
        f"kernel {format_sizes(geometry.kernel)} with stride {max(geometry.strides)} padded with "
        f"zeros to {format_sizes(kernel)}"
    )
    return description, "exact"
