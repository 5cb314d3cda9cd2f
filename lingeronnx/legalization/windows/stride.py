"""A convolution with a stride that the platform does not have, one axis at a time: exact.

Where the map is a whole number M of s rows (what is not read is cut off), its rows s*m + r are made
channels of their own for each phase r, ``[N, C*M, s, W] -> [N, s, C*M, W]``. Then tap t reads row
``o + a`` of phase r, where ``t - p = s*a + r``: a convolution of s*C channels with stride 1, a
kernel of a s-th and as many products. Else, and with groups, the convolution has stride 1, and of
every s results the first one stays.

Phases serve a kernel that is too large, too, where the sum of smaller ones would fill the shared
memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph import ir
from ...graph.attributes import AttributeValue
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from .._base import RewriteBuilder, format_sizes, match_conv

__all__ = ["replace_unsupported_stride"]

_MAX_STRIDE = 32  # a larger stride than any patch


def replace_unsupported_stride(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write the convolution with stride 1 along one axis.

    One whose stride the platform does not have, else a large.
    """
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    g, weight = conv
    axes = range(len(g.kernel))
    absent = [axis for axis in axes if g.strides[axis] not in target.conv_limits.strides]
    if absent and g.strides[absent[0]] > _MAX_STRIDE:
        return None
    long = [
        axis
        for axis in axes
        if g.strides[axis] > 1 and g.kernel[axis] > target.conv_limits.max_kernel
    ]
    crowded = 2 * math.prod(int(d or 0) for d in g.input_shape[1:]) + 2 * math.prod(
        int(d or 0) for d in g.result[1:]
    )
    axis = next(iter(absent or (long if crowded > (target.shared_memory or crowded) else ())), None)
    if axis is None:
        return None
    make, stride, places = (
        RewriteBuilder(model, node),
        g.strides[axis],
        _count_whole_strides(g, axis),
    )
    if places is not None:
        what, cost = _emit_phase_conv(make, g, weight, axis, places), "exact"
    elif absent:
        what, cost = (
            _emit_subsampled_conv(make, g, weight, axis),
            f"exact; {stride} times the products",
        )
    else:
        return None
    make.replace_node()
    return f"stride {format_sizes(g.strides)}: {what}", cost


def _count_whole_strides(g: ConvGeometry, axis: int) -> int | None:
    """Return how many whole strides of the map are read; None where phases cannot be made."""
    size, stride = int(g.input_shape[2 + axis] or 0), g.strides[axis]
    behind = (
        (int(g.result[2 + axis] or 0) - 1) * stride - g.pads[axis] + g.kernel[axis]
    )  # what lies there is padding
    places = -(-min(behind, size) // stride)
    return places if g.group == 1 and g.dilations[axis] == 1 and places * stride <= size else None


def _make_conv_attributes(
    g: ConvGeometry, axis: int, begin: int, end: int, kernel: int
) -> dict[str, AttributeValue]:
    """Return the attributes of the convolution with stride 1, such padding and so many taps along `axis`."""
    rank = len(g.kernel)
    pads, sizes, strides = list(g.pads), list(g.kernel), list(g.strides)
    pads[axis], pads[rank + axis], sizes[axis], strides[axis] = begin, end, kernel, 1
    return {
        "kernel_shape": sizes,
        "strides": strides,
        "pads": pads,
        "dilations": list(g.dilations),
        "group": g.group,
    }


def _emit_phase_conv(
    make: RewriteBuilder, g: ConvGeometry, weight: np.ndarray, axis: int, places: int
) -> str:
    stride, pad = g.strides[axis], g.pads[axis]
    value = make.slice_axis(ir.require_input(make.node), 2 + axis, 0, places * stride, "read")
    sizes = [int(d or 1) for d in ir.require_shape(value)[1:]]
    behind = sizes[2 + axis :]
    split = make.reshape(value, [int(np.prod(sizes[: 1 + axis])) * places, stride, *behind], "rows")
    batch = (split.shape or ["N"])[0]
    perm = [0, 2, 1, *range(3, 3 + len(behind))]
    shape = [batch, stride, int(np.prod(sizes[: 1 + axis])) * places, *behind]
    turned = make("Transpose", [split], shape, "phases", {"perm": perm})
    value = make.reshape(
        turned, [stride * sizes[0], *sizes[1 : 1 + axis], places, *behind], "channels"
    )
    first, last = -pad // stride, (g.kernel[axis] - 1 - pad) // stride
    taps = np.zeros(
        (
            len(weight),
            stride,
            weight.shape[1],
            *weight.shape[2 : 2 + axis],
            last - first + 1,
            *weight.shape[3 + axis :],
        ),
        weight.dtype,
    )
    for tap in range(g.kernel[axis]):
        place, phase = divmod(tap - pad, stride)
        index = (slice(None), phase, slice(None), *[slice(None)] * axis, place - first)
        taps[index] = np.take(weight, tap, axis=2 + axis)
    phases = taps.reshape(len(weight), -1, *taps.shape[3:])
    end = int(g.result[2 + axis] or 0) - 1 + last - (places - 1)
    if first > 0:
        value = make.slice_axis(value, 2 + axis, first, places, "later")
    attributes = _make_conv_attributes(g, axis, max(0, -first), end, phases.shape[2 + axis])
    inputs = [value, make.constant(np.ascontiguousarray(phases), "by_phase"), *make.node.inputs[2:]]
    make("Conv", inputs, list(make.result.shape or ()), "phased", attributes)
    return f"{stride} phases as channels, with stride 1"


def _emit_subsampled_conv(
    make: RewriteBuilder, g: ConvGeometry, weight: np.ndarray, axis: int
) -> str:
    stride, count, rank = g.strides[axis], int(g.result[2 + axis] or 0), len(g.kernel)
    reach = (g.kernel[axis] - 1) * g.dilations[axis] + 1
    end = stride * count + reach - 1 - int(g.input_shape[2 + axis] or 0) - g.pads[axis]
    before = max(0, end - g.kernel[axis]) if reach == g.kernel[axis] else 0
    if before:  # taps of zero in front: padding is no larger than the kernel
        zeros = [(0, 0)] * weight.ndim
        zeros[2 + axis] = before, 0
        inputs: list[Any] = [
            make.constant(np.pad(weight, zeros), "enlarged"),
            *make.node.inputs[2:],
        ]
    else:
        inputs = list(make.node.inputs[1:])
    value = make.slice_axis(
        ir.require_input(make.node),
        2 + axis,
        0,
        int(g.input_shape[2 + axis] or 0) - max(0, -end),
        "read",
    )
    sizes = [int(d or 1) for d in g.result[1:]]
    behind, shape = sizes[2 + axis :], list(make.result.shape or ())
    shape[2 + axis] = stride * count
    attributes = _make_conv_attributes(
        g, axis, g.pads[axis] + before, max(0, end), g.kernel[axis] + before
    )
    value = make("Conv", [value, *inputs], shape, "all", attributes)
    value = make.reshape(value, [int(np.prod(sizes[: 2 + axis])), stride, *behind], "by_place")
    value = make.slice_axis(value, 2, 0, 1, "kept")
    make.reshape(value, sizes, "thinned")
    return f"one of {stride} results along axis {2 + axis} of {2 + rank} stays"
