"""Split a large kernel into a sum of smaller ones, and move padding that is too large to a Pad.

``conv(x, [w0 w1]) = conv(x, w0) + conv(x shifted, w1)``.
Along one axis, the part with the taps r .. r+c-1 reads ``x[o*s + (r+j)*d - p]``: its begin padding
is ``p - r*d``. If that is negative, the part reads a Slice of x instead; the end padding follows
from the number of outputs. A part may be extended by zero taps so that it is not smaller than the
stride or its padding. The results are rounded before they are added: one more rounding per part.

Moving padding is exact, and requires a correct Pad on the platform. The padding of a map that the
packer considers smaller than the kernel is moved completely.
"""

from __future__ import annotations

import itertools
from copy import copy
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....operators.conv_geometry import ConvGeometry
from ....operators.integer_ops import CONV1D
from ....targets import Target
from ....targets.limits import ConvLimits
from .._base import (
    RewriteBuilder,
    add_partial_sums,
    can_lower,
    format_rounding_cost,
    format_sizes,
    match_conv,
)

__all__ = ["clip_pads_to_limits", "insert_pad_before", "move_padding_to_pad", "split_kernel"]

_MAX_PARTS = 16


class _KernelPart(NamedTuple):
    """A part of a convolution kernel along one axis, and the input range that it reads.

    Attributes
    ----------
    first, last
        First and last tap.
    before, after
        Numbers of zero taps before and after them.
    start, end
        Range of the input that the part reads.
    begin_pad, end_pad
        Padding of that range.
    """

    first: int
    last: int
    before: int
    after: int
    start: int
    end: int
    begin_pad: int
    end_pad: int

    @property
    def size(self) -> int:
        """Number of taps of this part along its axis, including the added zeros."""
        return self.before + self.last - self.first + 1 + self.after


def split_kernel(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Split a kernel along every axis on which it is too large; the parts' results are added.

    Only if the target says that this fixes a limit that the node breaks, and has all its strides.
    Parts of zeros are left out, and 2 to `_MAX_PARTS` must be left. If the padding keeps an axis
    from being split, it is moved to a Pad instead. Returns the description and the cost of the
    change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    if not target.needs_rewrite(node, "split-kernel"):
        return None
    geometry, weight = conv
    if not set(geometry.strides) <= set(target.conv_limits.strides):
        return None
    parts_by_axis = []
    for axis in range(len(geometry.kernel)):
        axis_parts = _plan_kernel_parts(geometry, axis, target)
        if axis_parts is None:
            return _move_padding_before(model, node, target, geometry)
        parts_by_axis.append(axis_parts)
    parts = [
        part
        for part in itertools.product(*parts_by_axis)
        if np.any(_select_taps(weight, part))  # parts with zeros only are omitted
    ]
    if not 2 <= len(parts) <= _MAX_PARTS:
        return None
    builder = RewriteBuilder(model, node)
    crops: dict[tuple[int, ...], ir.Value] = {}
    results = [
        _emit_part(builder, geometry, weight, part, index, crops)
        for index, part in enumerate(parts)
    ]
    add_partial_sums(builder, results)
    builder.replace_node()
    sizes = dict.fromkeys(map(_format_part, parts))
    description = (
        f"kernel {format_sizes(geometry.kernel)} split into {len(parts)} that are added "
        f"({', '.join(sizes)})"
    )
    return description, format_rounding_cost(len(parts))


def _format_part(part: tuple[_KernelPart, ...]) -> str:
    """Format the sizes of `part`, a part of the kernel along each axis, as "3x3"."""
    return format_sizes([axis.size for axis in part])


def _emit_part(
    builder: RewriteBuilder,
    geometry: ConvGeometry,
    weight: np.ndarray,
    part: tuple[_KernelPart, ...],
    index: int,
    crops: dict[tuple[int, ...], ir.Value],
) -> ir.Value:
    """Append the convolution with one part of the kernel, and return its output.

    `part` has one entry per axis. Part `index` 0 gets the bias. `crops` has cropped inputs, which
    the parts share; it is extended in place.
    """
    node = builder.node
    source = _emit_crop(builder, part, crops)
    taps = _select_taps(weight, part)
    inputs = [source, builder.constant(np.ascontiguousarray(taps), f"part{index}_weight")]
    if index == 0 and len(node.inputs) > 2 and node.inputs[2] is not None:
        inputs.append(node.inputs[2])
    begins, ends = [axis.begin_pad for axis in part], [axis.end_pad for axis in part]
    attributes = {
        "kernel_shape": list(taps.shape[2:]),
        "strides": list(geometry.strides),
        "dilations": list(geometry.dilations),
        "pads": [*begins, *ends],
        "group": geometry.group,
    }
    return builder("Conv", inputs, list(builder.result.shape or ()), f"part{index}", attributes)


def _move_padding_before(
    model: ir.Model, node: ir.Node, target: Target, geometry: ConvGeometry
) -> tuple[str, str] | None:
    """Move padding beyond the platform's limits to a Pad, if the kernel can be split then.

    Returns the description and the cost of the change, or None without a change.
    """
    assert target.conv_limits is not None
    remaining_pads = clip_pads_to_limits(geometry, target.conv_limits)
    rank = len(geometry.kernel)
    moved = [pad - remaining for pad, remaining in zip(geometry.pads, remaining_pads, strict=True)]
    sizes = [
        int(geometry.input_shape[2 + axis] or 0) + moved[axis] + moved[rank + axis]
        for axis in range(rank)
    ]
    padded = copy(geometry)
    padded.pads = tuple(remaining_pads)
    padded.input_shape = (*geometry.input_shape[:2], *sizes)
    if any(_plan_kernel_parts(padded, axis, target) is None for axis in range(rank)):
        return None
    return insert_pad_before(model, node, target, remaining_pads)


def _emit_crop(
    builder: RewriteBuilder,
    part: tuple[_KernelPart, ...],
    crops: dict[tuple[int, ...], ir.Value],
) -> ir.Value:
    """Append nodes that crop the input to the range that `part` reads along each axis; return it.

    Equal crops are shared: `crops` maps (start, end) of the axes so far to the cropped tensor; it
    is extended in place.
    """
    source = ir.require_input(builder.node)
    key: tuple[int, ...] = ()
    for axis, axis_part in enumerate(part):
        key = (*key, axis_part.start, axis_part.end)
        if key not in crops:
            crops[key] = builder.slice_axis(
                source, 2 + axis, axis_part.start, axis_part.end, "crop"
            )
        source = crops[key]
    return source


def _select_taps(weight: np.ndarray, part: tuple[_KernelPart, ...]) -> np.ndarray:
    """Return `weight` [O, I/group, *taps] reduced to the taps of `part`, with its zero taps.

    `part` has one entry per axis.
    """
    for axis, axis_part in enumerate(part, start=2):
        zeros = [(0, 0)] * weight.ndim
        zeros[axis] = axis_part.before, axis_part.after
        taps = np.take(weight, range(axis_part.first, axis_part.last + 1), axis=axis)
        weight = np.pad(taps, zeros)
    return weight


def _plan_kernel_parts(
    geometry: ConvGeometry, axis: int, target: Target
) -> list[_KernelPart] | None:
    """Return the parts of the kernel along `axis`, or None if no split meets the limits.

    A kernel that is small enough is a single part; others have the fewest parts, whose sizes differ
    by at most 1, larger ones first if that meets the limits.
    """
    assert target.conv_limits is not None
    kernel, max_kernel = geometry.kernel[axis], _get_max_kernel(geometry, axis, target)
    if kernel <= max_kernel:
        full_kernel = _KernelPart(
            first=0,
            last=kernel - 1,
            before=0,
            after=0,
            start=0,
            end=int(geometry.input_shape[2 + axis] or 0),
            begin_pad=geometry.pads[axis],
            end_pad=geometry.pads[len(geometry.kernel) + axis],
        )
        return [full_kernel]
    for count in range(-(-kernel // max_kernel), kernel + 1):
        sizes = [kernel // count + (i < kernel % count) for i in range(count)]
        for ordered_sizes in dict.fromkeys((tuple(sizes), tuple(reversed(sizes)))):
            parts = _make_kernel_parts(
                geometry, axis, target.conv_limits, max_kernel, ordered_sizes
            )
            if parts is not None:
                return parts
    return None


def _get_max_kernel(geometry: ConvGeometry, axis: int, target: Target) -> int:
    """Return the largest kernel that `target` supports along `axis` of the convolution.

    For a convolution without groups and of dilation (1,), that of 1-D convolutions if the platform
    has them; otherwise that of images, a smaller one with dilation.
    """
    limits = target.conv_limits
    assert limits is not None
    if target.can_run(CONV1D.name) and (geometry.group, geometry.dilations) == (1, (1,)):
        return limits.max_kernel_1d or limits.max_kernel
    return limits.max_kernel if geometry.dilations[axis] == 1 else limits.max_kernel_dilated


def _make_kernel_parts(
    geometry: ConvGeometry,
    axis: int,
    limits: ConvLimits,
    max_kernel: int,
    sizes: tuple[int, ...],
) -> list[_KernelPart] | None:
    """Return consecutive parts of the kernel along `axis` with `sizes` taps.

    None if one of them cannot meet the limits.
    """
    parts, first = [], 0
    for size in sizes:
        part = _make_kernel_part(geometry, axis, limits, max_kernel, first, first + size - 1)
        if part is None:
            return None
        parts.append(part)
        first += size
    return parts


def _make_kernel_part(
    geometry: ConvGeometry, axis: int, limits: ConvLimits, max_kernel: int, first: int, last: int
) -> _KernelPart | None:
    """Return the kernel along `axis` reduced to taps `first` to `last`, if that meets the limits.

    It is extended by as few zero taps as make it no smaller than the stride and its padding, up to
    `max_kernel` taps. None if that is not possible, or if it reads no position of the map.
    """
    in_size = int(geometry.input_shape[2 + axis] or 0)
    out_size = int(geometry.result[2 + axis] or 0)
    stride, dilation = geometry.strides[axis], geometry.dilations[axis]
    for zero_taps in range(max_kernel - (last - first + 1) + 1):
        for before in range(zero_taps, -1, -1):
            low, high = first - before, last + zero_taps - before
            size = high - low + 1
            begin_pad = geometry.pads[axis] - low * dilation
            read_size = (out_size - 1) * stride + (high - low) * dilation + 1
            end_pad = read_size - begin_pad - in_size
            # Fewer than `stride` unread positions at the end give no further output.
            unread = -end_pad if -end_pad >= stride else 0
            part = _KernelPart(
                first=first,
                last=last,
                before=before,
                after=zero_taps - before,
                start=max(0, -begin_pad),
                end=in_size - unread,
                begin_pad=max(0, begin_pad),
                end_pad=max(0, end_pad),
            )
            max_pad = min(limits.max_pad, size)
            if size < stride or part.start >= part.end:
                continue
            if max(part.begin_pad, part.end_pad) <= max_pad:
                return part
    return None


def move_padding_to_pad(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Move padding of a convolution that exceeds a limit to a Pad before it, in place.

    All of it is moved if the target says so for the limit that the node breaks, or only the excess.
    Returns the description and the cost of the change; None, without a change, if no such limit is
    broken or the platform cannot run the Pad.
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
    """Return the pads of a convolution (begins, then ends), clipped to the platform's limits.

    The limits are the largest pad, the largest kernel, and the convolution's own kernel size.
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
