"""Taps of a kernel that only ever meet padding are cut off: exact.

Along one axis the tap t of the output o reads ``x[o*s + t*d - p]``. The first and the last tap that
read the map for some output bound what stays; ``p`` shrinks by the taps before. So a kernel of 3
with one row of padding on each side of a single position is a kernel of 1, and a dilated kernel on
a line that is shorter than its reach is a shorter one. What gives one output needs no stride, one
tap no dilation. It is for layers within the limits, too: they have fewer products, and weights that
read nothing no longer have a say in a scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...graph import ir
from ...graph.attributes import AttributeValue
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from .._base import can_lower, format_sizes, match_conv

__all__ = ["trim_padding_taps"]


@dataclass(frozen=True)
class _ReadTaps:
    """Taps first .. first+size-1 of an axis, and how they slide.

    Two paddings, stride and dilation.
    """

    first: int
    size: int
    begin_pad: int
    end_pad: int
    stride: int
    dilation: int


def trim_padding_taps(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Cut the taps at the ends of each axis that read the map for no output.

    A layer that is within the limits stays if it would not be without them, for instance where
    padding may not be larger than the kernel.
    """
    conv = match_conv(node, target)
    if conv is None or not any(conv[0].pads):
        return None
    g, weight = conv
    axes = [_find_read_taps(g, axis) for axis in range(len(g.kernel))]
    kernel = [axis.size for axis in axes]
    if tuple(kernel) == g.kernel:
        return None
    attributes: dict[str, AttributeValue] = {
        "kernel_shape": kernel,
        "strides": [axis.stride for axis in axes],
        "dilations": [axis.dilation for axis in axes],
        "pads": [*(axis.begin_pad for axis in axes), *(axis.end_pad for axis in axes)],
    }
    taps = weight[
        (slice(None), slice(None), *(slice(axis.first, axis.first + axis.size) for axis in axes))
    ]
    if can_lower(node, target) and not can_lower(
        _make_trimmed_node(node, taps, {**attributes, "group": g.group}), target
    ):
        return None
    ir.set_constant_input(model, node, 1, np.ascontiguousarray(taps), "read")
    for name, value in attributes.items():
        ir.set_attr(node, name, value)
    return (
        (
            f"kernel {format_sizes(g.kernel)} cut to {format_sizes(kernel)}: its other taps only meet "
            "padding"
        ),
        "exact",
    )


def _find_read_taps(g: ConvGeometry, axis: int) -> _ReadTaps:
    """Return what an axis keeps.

    All of it where nothing is read, or where a part of the map would have to be cut.
    """
    size, count = int(g.input_shape[2 + axis] or 0), int(g.result[2 + axis] or 0)
    stride, dilation, pad = g.strides[axis], g.dilations[axis], g.pads[axis]
    places = np.arange(count)[:, None] * stride + np.arange(g.kernel[axis]) * dilation - pad
    taps = np.flatnonzero(((places >= 0) & (places < size)).any(0))
    whole = _ReadTaps(
        first=0,
        size=g.kernel[axis],
        begin_pad=pad,
        end_pad=g.pads[len(g.kernel) + axis],
        stride=stride,
        dilation=dilation,
    )
    if not taps.size:
        return whole
    first, kept = int(taps[0]), int(taps[-1] - taps[0]) + 1
    begin = pad - first * dilation
    end = (count - 1) * stride + (kept - 1) * dilation + 1 - begin - size
    alone = count == 1 and end >= 0
    if kept == g.kernel[axis] or begin < 0 or -end >= stride or (kept < stride and not alone):
        return whole
    return _ReadTaps(
        first=first,
        size=kept,
        begin_pad=begin,
        end_pad=max(0, end),
        stride=1 if alone else stride,
        dilation=1 if kept == 1 else dilation,
    )


def _make_trimmed_node(
    node: ir.Node, taps: np.ndarray, attributes: dict[str, AttributeValue]
) -> ir.Node:
    """Return a node like `node` with fewer taps."""
    source, weight = ir.require_input(node), ir.require_input(node, 1)
    inputs = [
        make_detached_value(
            ir.require_shape(source), like=source, computed=ir.producer(source) is not None
        ),
        make_detached_value(list(taps.shape), like=weight, constant=taps),
    ]
    return make_detached_node("Conv", inputs, list(ir.require_shape(node.outputs[0])), attributes)
