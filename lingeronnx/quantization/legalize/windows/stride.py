"""Replace a convolution with an unsupported stride, one axis at a time, exactly.

If the map consists of M groups of s rows (rows that are not read are sliced off), the rows s*m + r
of each phase r become separate channels, ``[N, C*M, s, W] -> [N, s, C*M, W]``. Then tap t reads row
``o + a`` of phase r, where ``t - p = s*a + r``: a convolution of s*C channels with stride 1, a
kernel of 1/s of the length, and as many products. Otherwise, and with groups, the convolution gets
stride 1, and the first of every s results is kept.

Phases also replace a kernel that is too large, if the sum of smaller ones would not fit in shared
memory.

A kernel that is smaller than its stride, as of a strided 1x1 shortcut, is padded with zeros.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....operators.conv_geometry import ConvGeometry
from ....targets import Target
from .._base import RewriteBuilder, format_sizes, get_sizes, match_conv

__all__ = ["enlarge_kernel", "replace_unsupported_stride"]

_MAX_STRIDE = 32  # larger than the patches of any known model


def replace_unsupported_stride(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace the stride of a convolution along one axis by stride 1.

    The axis is the first whose stride the platform lacks, else the first whose kernel is too large
    on a map that does not fit in memory. Its phases become channels if the convolution has one
    group and no dilation; otherwise an unsupported stride is computed with stride 1 and every s-th
    result kept. Returns the description and the cost of the change; None, without a change, if
    there is no such axis, or an unsupported stride exceeds `_MAX_STRIDE`.
    """
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    geometry, weight = conv
    axes = range(len(geometry.kernel))
    supported = target.conv_limits.strides
    unsupported = [axis for axis in axes if geometry.strides[axis] not in supported]
    axis = next(iter(unsupported or _find_large_strided_axes(geometry, target)), None)
    if axis is None or (unsupported and geometry.strides[axis] > _MAX_STRIDE):
        return None
    builder, stride = RewriteBuilder(model, node), geometry.strides[axis]
    phase_length = _get_phase_length(geometry, axis)
    if phase_length is not None:
        description = _emit_phase_conv(builder, geometry, weight, axis, phase_length)
        cost = "exact"
    elif unsupported:
        description = _emit_subsampled_conv(builder, geometry, weight, axis)
        cost = f"exact; {stride} times the products"
    else:
        return None
    builder.replace_node()
    return f"stride {format_sizes(geometry.strides)}: {description}", cost


def _find_large_strided_axes(geometry: ConvGeometry, target: Target) -> list[int]:
    """Return the axes with a stride above 1 whose kernel exceeds `max_kernel`.

    Empty if a sum of smaller kernels fits in shared memory (twice the input and output elements of
    a sample are at most its bytes), or the target states no shared memory.
    """
    assert target.conv_limits is not None
    in_size, out_size = (
        math.prod(get_sizes(shape[1:])) for shape in (geometry.input_shape, geometry.result)
    )
    if target.shared_memory is None or 2 * (in_size + out_size) <= target.shared_memory:
        return []
    max_kernel = target.conv_limits.max_kernel
    return [
        axis
        for axis, (stride, size) in enumerate(zip(geometry.strides, geometry.kernel, strict=True))
        if stride > 1 and size > max_kernel
    ]


def _get_phase_length(geometry: ConvGeometry, axis: int) -> int | None:
    """Return the number of full strides of `axis` of the map that are read, if it can be split so.

    None if not: phases need one group, no dilation on `axis`, and a map as long as these strides.
    """
    if geometry.group != 1 or geometry.dilations[axis] != 1:
        return None
    size, stride = int(geometry.input_shape[2 + axis] or 0), geometry.strides[axis]
    out_size = int(geometry.result[2 + axis] or 0)
    # Positions from `read_end` on are not read, except as padding.
    read_end = (out_size - 1) * stride - geometry.pads[axis] + geometry.kernel[axis]
    phase_length = -(-min(read_end, size) // stride)
    return phase_length if phase_length * stride <= size else None


def _make_conv_attributes(
    geometry: ConvGeometry, axis: int, pad_begin: int, pad_end: int, taps: int
) -> dict[str, AttributeValue]:
    """Return the attributes of a convolution with stride 1 and these pads and taps on `axis`.

    Everything else is as in `geometry`.
    """
    rank = len(geometry.kernel)
    pads, kernel, strides = list(geometry.pads), list(geometry.kernel), list(geometry.strides)
    pads[axis], pads[rank + axis], kernel[axis], strides[axis] = pad_begin, pad_end, taps, 1
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": list(geometry.dilations),
        "group": geometry.group,
    }


def _emit_phase_conv(
    builder: RewriteBuilder,
    geometry: ConvGeometry,
    weight: np.ndarray,
    axis: int,
    phase_length: int,
) -> str:
    """Append a convolution over the phases of `axis` as channels; return a description.

    Positions p, p + stride, ... are phase p; `phase_length` is the number of positions of each
    phase.
    """
    node, stride = builder.node, geometry.strides[axis]
    value = _emit_phases(builder, axis, stride, phase_length)
    taps, first = _split_taps_by_phase(weight, 2 + axis, stride, geometry.pads[axis])
    last = first + taps.shape[2 + axis] - 1
    pad_end = int(geometry.result[2 + axis] or 0) - 1 + last - (phase_length - 1)
    if first > 0:
        value = builder.slice_axis(value, 2 + axis, first, phase_length, "later")
    attributes = _make_conv_attributes(
        geometry, axis, max(0, -first), pad_end, taps.shape[2 + axis]
    )
    taps_constant = builder.constant(np.ascontiguousarray(taps), "by_phase")
    inputs = [value, taps_constant, *node.inputs[2:]]
    builder("Conv", inputs, list(builder.result.shape or ()), "phased", attributes)
    return f"{stride} phases as channels, with stride 1"


def _emit_phases(builder: RewriteBuilder, axis: int, stride: int, phase_length: int) -> ir.Value:
    """Append nodes that turn the phases of `axis` of the input into channels, [N, stride * C, ...].

    Returns the result. Phase p holds the positions p, p + stride, ...; the axis has `phase_length`
    positions left.
    """
    source = ir.require_input(builder.node)
    value = builder.slice_axis(source, 2 + axis, 0, phase_length * stride, "read")
    sizes = [int(dim or 1) for dim in ir.require_shape(value)[1:]]
    leading, trailing = sizes[: 1 + axis], sizes[2 + axis :]
    rows = int(np.prod(leading)) * phase_length
    value = builder.reshape(value, [rows, stride, *trailing], "rows")
    batch = (value.shape or ["N"])[0]
    perm = [0, 2, 1, *range(3, 3 + len(trailing))]
    shape = [batch, stride, rows, *trailing]
    value = builder("Transpose", [value], shape, "phases", {"perm": perm})
    phase_sizes = [stride * sizes[0], *leading[1:], phase_length, *trailing]
    return builder.reshape(value, phase_sizes, "channels")


def _split_taps_by_phase(
    weight: np.ndarray, axis: int, stride: int, pad: int
) -> tuple[np.ndarray, int]:
    """Return `weight` for an input whose phases are channels, and the position of its first tap.

    The result is [O, stride * I, ...]. Tap t of the original weight reads position a of phase r,
    where ``t - pad = stride*a + r``. `axis` is that of the weight; the position is the smallest a,
    which may be negative.
    """
    kernel = weight.shape[axis]
    first, last = -pad // stride, (kernel - 1 - pad) // stride
    outputs, inputs, *kernel_shape = weight.shape
    kernel_shape[axis - 2] = last - first + 1
    taps = np.zeros((outputs, stride, inputs, *kernel_shape), weight.dtype)
    for tap in range(kernel):
        position, phase = divmod(tap - pad, stride)
        index: tuple[int | slice, ...] = (
            slice(None),
            phase,
            slice(None),
            *[slice(None)] * (axis - 2),
            position - first,
        )
        taps[index] = np.take(weight, tap, axis=axis)
    return taps.reshape(outputs, -1, *kernel_shape), first


def _emit_subsampled_conv(
    builder: RewriteBuilder, geometry: ConvGeometry, weight: np.ndarray, axis: int
) -> str:
    """Append a convolution with stride 1 and the selection of every s-th result.

    Returns a description of the change. Zero taps are added in front of the kernel where the
    padding would exceed it.
    """
    node = builder.node
    stride, out_size = geometry.strides[axis], int(geometry.result[2 + axis] or 0)
    in_size, taps, pad = (
        int(geometry.input_shape[2 + axis] or 0),
        geometry.kernel[axis],
        geometry.pads[axis],
    )
    reach = (taps - 1) * geometry.dilations[axis] + 1
    pad_end = stride * out_size + reach - 1 - in_size - pad
    # Padding must not exceed the kernel, so zero taps are added in front.
    zero_taps = max(0, pad_end - taps) if reach == taps else 0
    inputs: list[Any] = list(node.inputs[1:])
    if zero_taps:
        zeros = [(0, 0)] * weight.ndim
        zeros[2 + axis] = zero_taps, 0
        inputs[0] = builder.constant(np.pad(weight, zeros), "enlarged")
    read_size = in_size - max(0, -pad_end)
    value = builder.slice_axis(ir.require_input(node), 2 + axis, 0, read_size, "read")
    sizes = [int(dim or 1) for dim in geometry.result[1:]]
    shape = list(builder.result.shape or ())
    shape[2 + axis] = stride * out_size
    attributes = _make_conv_attributes(
        geometry, axis, pad + zero_taps, max(0, pad_end), taps + zero_taps
    )
    value = builder("Conv", [value, *inputs], shape, "all", attributes)
    rows = int(np.prod(sizes[: 2 + axis]))
    value = builder.reshape(value, [rows, stride, *sizes[2 + axis :]], "by_place")
    value = builder.slice_axis(value, 2, 0, 1, "kept")
    builder.reshape(value, sizes, "thinned")
    return f"one of {stride} results along axis {2 + axis} of {2 + len(geometry.kernel)} is kept"


def enlarge_kernel(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Pad the kernel of a convolution at its end with zeros to the size of the stride, in place.

    The end padding grows where the last output would be lost otherwise. Only if the target says
    that this fixes a limit that the node breaks, without dilation, and up to `max_kernel` taps per
    axis. Returns the description and the cost of the change, or None without a change.
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
