"""Remove the taps of a kernel that only read padding: exact.

Along one axis the tap t of the output o reads ``x[o*s + t*d - p]``. The first and the last tap that
read the map for some output bound the remaining kernel; ``p`` shrinks by the taps before. A kernel
of 3 with one row of padding on each side of a single position becomes a kernel of 1, and a dilated
kernel on a row that is shorter than its reach becomes shorter. A single output needs no stride, a
single tap no dilation. This also applies to layers within the limits: they need fewer products, and
weights that are never used no longer influence a scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.detached_nodes import make_detached_node, make_detached_value
from ....operators.conv_geometry import ConvGeometry
from ....targets import Target
from .._base import can_lower, format_sizes, match_conv

__all__ = ["trim_padding_taps"]


class _ReadTaps(NamedTuple):
    """Taps `first` to `first` + `size` - 1 of a kernel axis that read the map.

    With padding, stride and dilation of the axis; the other taps only meet padding.
    """

    first: int
    size: int
    begin_pad: int
    end_pad: int
    stride: int
    dilation: int


def trim_padding_taps(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Remove the taps at the ends of each axis that read the map for no output, in place.

    A layer within the limits is unchanged if it would exceed them afterwards, for instance if
    padding must not exceed the kernel. Returns the description and the cost of the change; None,
    without a change, if there is no such tap.
    """
    if not any(ir.get_attr(node, "pads") or ()):
        return None
    conv = match_conv(node, target)
    if conv is None:
        return None
    geometry, weight = conv
    axes = [_find_read_taps(geometry, axis) for axis in range(len(geometry.kernel))]
    kernel = [axis.size for axis in axes]
    if tuple(kernel) == geometry.kernel:
        return None
    attributes = _make_attributes(axes)
    tap_slices = [slice(axis.first, axis.first + axis.size) for axis in axes]
    taps = weight[(slice(None), slice(None), *tap_slices)]
    if can_lower(node, target):
        trimmed_node = _make_trimmed_node(node, taps, {**attributes, "group": geometry.group})
        if not can_lower(trimmed_node, target):
            return None
    ir.set_constant_input(model, node, 1, np.ascontiguousarray(taps), "read")
    for name, value in attributes.items():
        ir.set_attr(node, name, value)
    description = (
        f"kernel {format_sizes(geometry.kernel)} trimmed to {format_sizes(kernel)}: its other taps "
        "only read padding"
    )
    return description, "exact"


def _make_attributes(axes: Sequence[_ReadTaps]) -> dict[str, AttributeValue]:
    """Return kernel_shape, strides, dilations and pads for the taps that are kept on each axis."""
    begins, ends = [axis.begin_pad for axis in axes], [axis.end_pad for axis in axes]
    return {
        "kernel_shape": [axis.size for axis in axes],
        "strides": [axis.stride for axis in axes],
        "dilations": [axis.dilation for axis in axes],
        "pads": [*begins, *ends],
    }


def _find_read_taps(geometry: ConvGeometry, axis: int) -> _ReadTaps:
    """Return the taps of `axis` to keep: from the first to the last that read the map.

    All of them if no tap reads the map, if the map extends beyond what the remaining taps read (by
    the begin, or by a stride at the end), or if fewer taps than the stride would remain (unless the
    axis has a single output).
    """
    in_size, out_size = (
        int(shape[2 + axis] or 0) for shape in (geometry.input_shape, geometry.result)
    )
    stride, dilation = geometry.strides[axis], geometry.dilations[axis]
    kernel, pad = geometry.kernel[axis], geometry.pads[axis]
    all_taps = _ReadTaps(
        first=0,
        size=kernel,
        begin_pad=pad,
        end_pad=geometry.pads[len(geometry.kernel) + axis],
        stride=stride,
        dilation=dilation,
    )
    positions = np.arange(out_size)[:, None] * stride + np.arange(kernel) * dilation - pad
    taps = np.flatnonzero(((positions >= 0) & (positions < in_size)).any(0))
    if not taps.size:
        return all_taps
    first, size = int(taps[0]), int(taps[-1] - taps[0]) + 1
    begin_pad = pad - first * dilation
    end_pad = (out_size - 1) * stride + (size - 1) * dilation + 1 - begin_pad - in_size
    is_single_output = out_size == 1 and end_pad >= 0
    if size == kernel or begin_pad < 0 or -end_pad >= stride:
        return all_taps
    if size < stride and not is_single_output:
        return all_taps
    return _ReadTaps(
        first=first,
        size=size,
        begin_pad=begin_pad,
        end_pad=max(0, end_pad),
        stride=1 if is_single_output else stride,
        dilation=1 if size == 1 else dilation,
    )


def _make_trimmed_node(
    node: ir.Node, taps: np.ndarray, attributes: dict[str, AttributeValue]
) -> ir.Node:
    """Create a detached copy of a Conv (without bias) with the weights `taps` and `attributes`."""
    source, weight = ir.require_input(node), ir.require_input(node, 1)
    inputs = [
        make_detached_value(
            ir.require_shape(source), like=source, computed=ir.producer(source) is not None
        ),
        make_detached_value(list(taps.shape), like=weight, constant=taps),
    ]
    return make_detached_node("Conv", inputs, list(ir.require_shape(node.outputs[0])), attributes)
