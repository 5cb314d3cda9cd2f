"""Limits of convolutions: see `limits`."""

from __future__ import annotations

import math

from .....formats import QUANT
from .....graph import ir
from .....ops.layers.conv import ConvGeometry, has_known_shapes
from .... import Target
from ...packer_profile import get_packer_profile
from ..assumptions import unmeasured
from ..window import PackerWindow, format_sides, round_up, static_shape

__all__ = [
    "kernel_side",
    "kernel_dilated",
    "kernel_length_1d",
    "dilation_1d",
    "conv1d_dilation",
    "grouped_hoisted_padding",
    "stride_values",
    "stride_within_kernel",
    "pad_side",
    "dilation_values",
    "depthwise_multiplier",
    "group_outputs",
    "transposed_group_count",
    "transposed_dilation",
    "conv_line_buffer",
    "conv_line_buffer_swapped",
    "conv_line_buffer_inner",
    "conv_input_bytes",
    "weight_slice_bytes",
    "weight_slice_count",
    "depthwise_weights",
    "input_smaller_than_kernel",
    "input_output_bytes",
    "group_count_1d",
]


def kernel_side(node: ir.Node, target: Target) -> object:
    """kernel sides are at most {own.packing.conv.max_kernel} | split the kernel into smaller ones
    whose results are
    added.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    sides = [k for k, d in zip(w.kernel, w.dilations, strict=True) if d == 1]
    return (
        format_sides(w.kernel)
        if max(sides, default=0) > get_packer_profile(target).conv.max_kernel
        else None
    )


def kernel_dilated(node: ir.Node, target: Target) -> object:
    """kernel sides along a dilated axis are at most {own.packing.conv.max_kernel_dilated} | split
    the kernel into
    smaller ones whose results are added.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    sides = [k for k, d in zip(w.kernel, w.dilations, strict=True) if d != 1]
    return (
        format_sides(w.kernel)
        if max(sides, default=0) > get_packer_profile(target).conv.max_kernel_dilated
        else None
    )


def kernel_length_1d(node: ir.Node, target: Target) -> object:
    """1-D kernels are at most {own.packing.conv.max_kernel_1d} long | split the kernel into shorter
    ones that are
    added.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    return w.kernel[1] if w.kernel[1] > get_packer_profile(target).conv.max_kernel_1d else None


def dilation_1d(node: ir.Node, target: Target) -> object:
    """1-D kernels are not dilated | use a kernel with zeros between."""
    w = PackerWindow.from_node(node)
    return w.dilations[1] if w is not None and w.dilations[1] != 1 else None


def conv1d_dilation(node: ir.Node, target: Target) -> object:
    """a convolution of lines is not dilated | use a kernel with zeros between."""
    return dilation_1d(node, target) if len(ir.get_shape(node.inputs[1]) or ()) == 3 else None


def grouped_hoisted_padding(node: ir.Node, target: Target) -> object:
    """a grouped convolution has as many channels in a group as rows in its kernel, and no map lower
    than the kernel is
    wide: the packer would pad it in a node before | convolve each group by itself.
    """
    g = ConvGeometry.from_node_as_2d(node)
    if (
        not get_packer_profile(target).conv.hoists_padding
        or g.group == 1
        or g.weight[1] == 1
        or not has_known_shapes(g)
    ):
        return None
    small = g.weight[1] < g.kernel[0] or int(g.input_shape[2] or 0) < g.kernel[1]
    return (
        f"{g.group} groups of {g.weight[1]} channels under {'x'.join(map(str, g.kernel))}"
        if small
        else None
    )


def group_count_1d(node: ir.Node, target: Target) -> object:
    """a 1-D convolution has one group | write it as a two-dimensional one over a map of height
    1.
    """
    w = PackerWindow.from_node(node)
    if w is None or get_packer_profile(target).conv.supports_groups_1d or w.group == 1:
        return None
    return f"{w.group} groups"


def stride_values(node: ir.Node, target: Target) -> object:
    """strides are one of {own.packing.conv.strides} | use a stride of
    {own.packing.conv.stride_text}.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    return next((s for s in w.strides if s not in get_packer_profile(target).conv.strides), None)


def stride_within_kernel(node: ir.Node, target: Target) -> object:
    """a stride is not larger than the kernel | enlarge the kernel with zeros (--fit does)."""
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    return next(
        (f"stride {s} > kernel {k}" for s, k in zip(w.strides, w.kernel, strict=True) if s > k),
        None,
    )


def pad_side(node: ir.Node, target: Target) -> object:
    """pads are at most {own.packing.conv.max_pad} and not larger than the kernel | pad in a node
    before.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    limits = [min(get_packer_profile(target).conv.max_pad, k) for k in w.kernel] * 2
    return (
        f"pads {list(w.pads)}"
        if any(not 0 <= p <= m for p, m in zip(w.pads, limits, strict=True))
        else None
    )


def dilation_values(node: ir.Node, target: Target) -> object:
    """dilations are one of {own.packing.conv.dilations} | use an undilated kernel."""
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    return next(
        (d for d in w.dilations if d not in get_packer_profile(target).conv.dilations), None
    )


def depthwise_multiplier(node: ir.Node, target: Target) -> object:
    """a depthwise convolution has as many outputs as inputs | use a multiplier of 1 and
    concatenate.
    """
    w = PackerWindow.from_node(node)
    if (
        w is None
        or get_packer_profile(target).conv.supports_depthwise_multiplier
        or w.group == 1
        or w.depthwise
    ):
        return None
    return f"{w.group} inputs, {w.group * w.outputs} outputs" if w.channels == 1 else None


def group_outputs(node: ir.Node, target: Target) -> object:
    """a convolution with one output per group has one input per group | slice the input and
    convolve each part.
    """
    w = PackerWindow.from_node(node)
    if w is None or w.group == 1 or w.depthwise:
        return None
    return f"{w.group} groups of {w.channels} channels" if w.outputs == 1 else None


def transposed_group_count(node: ir.Node, target: Target) -> object:
    """a transposed convolution has one group | enlarge the map and convolve it group by group."""
    group = int(ir.get_attr(node, "group") or 1)
    return f"{group} groups" if group != 1 else None


def transposed_dilation(node: ir.Node, target: Target) -> object:
    """a transposed convolution is not dilated | use a kernel with zeros between."""
    w = PackerWindow.from_node(node)
    if w is None or max(w.dilations) == 1:
        return None
    return f"dilations {list(w.dilations)}"


def conv_line_buffer(node: ir.Node, target: Target) -> object:
    """the input rows under a kernel fit {own.packing.conv.line_buffer_bytes} bytes
    ({own.packing.conv.depthwise_line_buffer_bytes} for
    depthwise) along one axis | use fewer channels or a narrower map.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    c = get_packer_profile(target).conv
    need = min(
        w.get_line_buffer_bytes(c.channel_align),
        w.get_line_buffer_bytes(c.channel_align, swapped=True),
    )
    return (
        f"{need} bytes"
        if need > (c.depthwise_line_buffer_bytes if w.depthwise else c.line_buffer_bytes)
        else None
    )


def conv_line_buffer_swapped(node: ir.Node, target: Target) -> object:
    """where the stride is above 1, the input rows under a kernel fit
    {own.packing.conv.line_buffer_bytes} bytes without
    swapping
    axes | use fewer channels or a narrower map.
    """
    w = PackerWindow.from_node(node)
    if w is None or max(w.strides) == 1:
        return None
    need, c = (
        w.get_line_buffer_bytes(get_packer_profile(target).conv.channel_align),
        get_packer_profile(target).conv,
    )
    return (
        f"{need} bytes"
        if need > (c.depthwise_line_buffer_bytes if w.depthwise else c.line_buffer_bytes)
        else None
    )


def conv_line_buffer_inner(node: ir.Node, target: Target) -> object:
    """the input rows under a kernel, with channels rounded up to 8, fit
    {own.packing.conv.second_line_buffer_bytes}
    bytes | use
    fewer channels or a narrower map.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    c = get_packer_profile(target).conv
    first = w.get_line_buffer_bytes(c.channel_align)
    swapped = first > (c.depthwise_line_buffer_bytes if w.depthwise else c.line_buffer_bytes)
    need = w.get_line_buffer_bytes(8, c.second_width_align, swapped)
    return f"{need} bytes" if need > c.second_line_buffer_bytes else None


def conv_input_bytes(node: ir.Node, target: Target) -> object:
    """the input fits {own.packing.conv.max_input_bytes} bytes, with channels and width rounded up
    to 8, and input and
    output
    together {own.packing.conv.max_input_output_bytes} | cut the map into tiles of rows.
    """
    w, result = PackerWindow.from_node(node), static_shape(node.outputs[0])
    if w is None or w.get_map_bytes() <= get_packer_profile(target).conv.line_buffer_bytes:
        return None
    one, both = (
        get_packer_profile(target).conv.max_input_bytes,
        get_packer_profile(target).conv.max_input_output_bytes,
    )
    need = w.get_map_bytes() + (math.prod(result[1:]) if result is not None else 0)
    if both is not None and need > both:
        return f"{need} bytes"
    return (
        f"an input of {w.get_map_bytes()} bytes"
        if one is not None and w.get_map_bytes() > one
        else None
    )


def weight_slice_bytes(node: ir.Node, target: Target) -> object:
    """the weights of {own.packing.conv.weight_slice_outputs} outputs, channels rounded up to 8, fit
    {own.packing.conv.weight_slice_bytes} bytes | use fewer channels or a smaller kernel.
    """
    w = PackerWindow.from_node(node)
    if w is None or w.depthwise:
        return None
    need = round_up(w.channels, 8) * w.area * get_packer_profile(target).conv.weight_slice_outputs
    return f"{need} bytes" if need > get_packer_profile(target).conv.weight_slice_bytes else None


@unmeasured(
    "as many shares as ran are right; with three times as many the executor crashes, on the host "
    "at least"
)
def weight_slice_count(node: ir.Node, target: Target) -> object:
    """the weights come in at most {own.packing.conv.max_weight_slices} shares of
    {own.packing.conv.weight_slice_bytes}
    bytes | cut
    the layer over its outputs.
    """
    w = PackerWindow.from_node(node)
    if w is None or w.depthwise or get_packer_profile(target).conv.max_weight_slices is None:
        return None
    kind, one = get_packer_profile(target).conv, round_up(w.channels, 8) * w.area
    outputs = max(
        kind.weight_slice_bytes // one // kind.weight_slice_outputs * kind.weight_slice_outputs,
        kind.weight_slice_outputs,
    )
    shares = math.ceil(w.outputs / outputs)
    return (
        f"{shares} shares"
        if shares > (get_packer_profile(target).conv.max_weight_slices or shares)
        else None
    )


def depthwise_weights(node: ir.Node, target: Target) -> object:
    """the weights of a depthwise convolution, channels rounded up to 8, fit
    {own.packing.conv.max_depthwise_weight_bytes}
    bytes | convolve the channels in parts.
    """
    w, most = (
        PackerWindow.from_node(node),
        get_packer_profile(target).conv.max_depthwise_weight_bytes,
    )
    if w is None or not w.depthwise or most is None:
        return None
    need = round_up(w.channels, 8) * w.area
    return f"{need} bytes" if need > most else None


def input_smaller_than_kernel(node: ir.Node, target: Target) -> object:
    """the input is not smaller than the kernel; the packer adds the pads of the rows to the columns
    and the other way
    round | pad the map in a node before, or cut the kernel.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    rows, columns = w.pads[0] + w.pads[2], w.pads[1] + w.pads[3]
    height, width = w.height, w.width
    if get_packer_profile(target).conv.hoists_padding and not _reads_graph_input(node):
        if w.channels < w.kernel[0]:
            height, rows = height + rows, 0
        if w.height < w.kernel[1]:
            width, columns = width + columns, 0
    small = width + rows < w.kernel[1] or height + columns < w.kernel[0]
    return (
        f"{format_sides((w.height, w.width))} under {format_sides(w.kernel)}, pads {list(w.pads)}"
        if small
        else None
    )


def _reads_graph_input(node: ir.Node) -> bool:
    """Whether the node reads a graph input, perhaps through its Quant."""
    maker = ir.producer(node.inputs[0])
    return maker is None or maker.op_type == QUANT.name


def input_output_bytes(node: ir.Node, target: Target) -> object:
    """input and output together fit {target.shared_memory} bytes
    ({own.packing.conv.max_depthwise_input_output_bytes}
    for depthwise) |
    make the maps smaller.
    """
    w, source, result = (
        PackerWindow.from_node(node),
        static_shape(node.inputs[0]),
        static_shape(node.outputs[0]),
    )
    if target.shared_memory is None or w is None or source is None or result is None:
        return None
    need = math.prod(source[1:]) + math.prod(result[1:])
    limit = (
        get_packer_profile(target).conv.max_depthwise_input_output_bytes
        if w.depthwise
        else target.shared_memory
    )
    return f"{need} bytes" if need > limit else None
