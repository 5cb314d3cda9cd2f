"""A large kernel as a sum of smaller ones.

``conv(x, [w0 w1]) = conv(x, w0) + conv(x shifted, w1)``.
Along one axis, the part with the taps r .. r+c-1 reads ``x[o*s + (r+j)*d - p]``: its begin padding
is ``p - r*d``. Where that is negative the part reads a Slice of x instead; the end padding follows
from the number of outputs. A part may be widened by taps of zero, so that it is no smaller than the
stride or than its padding. The results are rounded before they are added up: one more rounding per
part.
"""

from __future__ import annotations

import itertools
from copy import copy
from dataclasses import dataclass

import numpy as np

from ...formats import CONV1D
from ...graph import ir
from ...ops.layers.conv import ConvGeometry
from ...targets import Target
from ...targets.limits import ConvLimits
from .._base import RewriteBuilder, add_partial_sums, format_rounding_cost, format_sizes, match_conv
from .explicit_padding import clip_pads_to_limits, insert_pad_before

__all__ = ["split_kernel"]

_MOST_PARTS = 16


@dataclass(frozen=True)
class _KernelPart:
    """Taps first .. last of an axis with `before` and `after` zeros around, what to crop from x, and the padding."""

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
        """Taps of the part."""
        return self.before + self.last - self.first + 1 + self.after


def split_kernel(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Split the kernel along every axis where it is too large."""
    conv = match_conv(node, target)
    if conv is None or target.conv_limits is None:
        return None
    if not target.needs_rewrite(node, "split-kernel"):
        return None
    g, weight = conv
    if any(stride not in target.conv_limits.strides for stride in g.strides):
        return None
    axes = [_plan_kernel_parts(g, axis, target) for axis in range(len(g.kernel))]
    if any(parts is None for parts in axes):
        return _move_padding_before(model, node, target, g)
    combined = [
        parts
        for parts in itertools.product(*(a or [] for a in axes))
        if np.any(_select_taps(weight, parts))
    ]
    if not 2 <= len(combined) <= _MOST_PARTS:
        return None
    make = RewriteBuilder(model, node)
    crops: dict[tuple[int, ...], ir.Value] = {}
    done = []
    for number, parts in enumerate(combined):
        source = _emit_crop(make, parts, crops)
        taps = _select_taps(weight, parts)
        inputs = [source, make.constant(np.ascontiguousarray(taps), f"part{number}_weight")]
        if number == 0 and len(node.inputs) > 2 and node.inputs[2] is not None:
            inputs.append(node.inputs[2])
        attributes = {
            "kernel_shape": list(taps.shape[2:]),
            "strides": list(g.strides),
            "dilations": list(g.dilations),
            "pads": [p.begin_pad for p in parts] + [p.end_pad for p in parts],
            "group": g.group,
        }
        done.append(
            make("Conv", inputs, list(make.result.shape or ()), f"part{number}", attributes)
        )
    add_partial_sums(make, done)
    make.replace_node()
    sizes = ", ".join(
        dict.fromkeys(
            format_sizes([p.before + p.last - p.first + 1 + p.after for p in parts])
            for parts in combined
        )
    )
    return (
        f"kernel {format_sizes(g.kernel)} split into {len(combined)} that are added ({sizes})",
        format_rounding_cost(len(combined)),
    )


def _move_padding_before(
    model: ir.Model, node: ir.Node, target: Target, g: ConvGeometry
) -> tuple[str, str] | None:
    """Pad before the convolution as much as no part of its kernel takes, where it can be split then."""
    assert target.conv_limits is not None
    kept = clip_pads_to_limits(g, target.conv_limits)
    less, rank = copy(g), len(g.kernel)
    less.pads = tuple(kept)
    ahead = [p - q for p, q in zip(g.pads, less.pads, strict=True)]
    sizes = [int(d or 0) + ahead[i] + ahead[rank + i] for i, d in enumerate(g.input_shape[2:])]
    less.input_shape = (*g.input_shape[:2], *sizes)
    if any(_plan_kernel_parts(less, axis, target) is None for axis in range(rank)):
        return None
    return insert_pad_before(model, node, target, kept)


def _emit_crop(
    make: RewriteBuilder, parts: tuple[_KernelPart, ...], crops: dict[tuple[int, ...], ir.Value]
) -> ir.Value:
    """Return the input cropped along each axis as `parts` say; the same crop is made once."""
    source = ir.require_input(make.node)
    key: tuple[int, ...] = ()
    for axis, part in enumerate(parts):
        key = (*key, part.start, part.end)
        if key not in crops:
            crops[key] = make.slice_axis(source, 2 + axis, part.start, part.end, "crop")
        source = crops[key]
    return source


def _select_taps(weight: np.ndarray, parts: tuple[_KernelPart, ...]) -> np.ndarray:
    """Return the weight [O, I/group, *taps] of one part."""
    for axis, part in enumerate(parts, start=2):
        width = [(0, 0)] * weight.ndim
        width[axis] = part.before, part.after
        weight = np.pad(np.take(weight, range(part.first, part.last + 1), axis=axis), width)
    return weight


def _plan_kernel_parts(g: ConvGeometry, axis: int, target: Target) -> list[_KernelPart] | None:
    """Return the parts of one axis.

    A single one where it fits, None where no split would be within the limits.
    Where the platform has no convolution of lines, or not of such ones, a line is an image of
    height 1.
    """
    assert target.conv_limits is not None
    limits, size, kernel = target.conv_limits, int(g.input_shape[2 + axis] or 0), g.kernel[axis]
    if target.can_run(CONV1D.name) and (g.group, g.dilations) == (1, (1,)):
        most = limits.max_kernel_1d or limits.max_kernel
    else:
        most = limits.max_kernel if g.dilations[axis] == 1 else limits.max_kernel_dilated
    if kernel <= most:
        return [
            _KernelPart(
                first=0,
                last=kernel - 1,
                before=0,
                after=0,
                start=0,
                end=size,
                begin_pad=g.pads[axis],
                end_pad=g.pads[len(g.kernel) + axis],
            )
        ]
    for count in range(-(-kernel // most), kernel + 1):
        each = [kernel // count + (i < kernel % count) for i in range(count)]
        for widths in dict.fromkeys((tuple(each), tuple(reversed(each)))):
            starts = [sum(widths[:i]) for i in range(count)]
            parts = [
                _make_kernel_part(g, axis, limits, most, s, s + w - 1)
                for s, w in zip(starts, widths, strict=True)
            ]
            if all(part is not None for part in parts):
                return [part for part in parts if part is not None]
    return None


def _make_kernel_part(
    g: ConvGeometry, axis: int, limits: ConvLimits, most: int, first: int, last: int
) -> _KernelPart | None:
    """Return the part for the taps first ..

    Last, widened by as few zeros as its stride and padding need.
    """
    size, out = int(g.input_shape[2 + axis] or 0), int(g.result[2 + axis] or 0)
    stride, dilation = g.strides[axis], g.dilations[axis]
    room = most - (last - first + 1)
    for extra in range(room + 1):
        for before in range(extra, -1, -1):
            low, high = first - before, last + extra - before
            begin = g.pads[axis] - low * dilation
            end = (out - 1) * stride + (high - low) * dilation + 1 - begin - size
            start = max(0, -begin)
            stop = size - (
                -end if -end >= stride else 0
            )  # fewer than a stride too many give no further output
            part = _KernelPart(
                first=first,
                last=last,
                before=before,
                after=extra - before,
                start=start,
                end=stop,
                begin_pad=max(0, begin),
                end_pad=max(0, end),
            )
            allowed = min(limits.max_pad, high - low + 1)
            if (
                high - low + 1 >= stride
                and max(part.begin_pad, part.end_pad) <= allowed
                and start < stop
            ):
                return part
    return None
