"""Limits of convolutions: None if the node is within the limit, else the offending value.

The docstring of each limit is the rule that users read; see `limit_tables`.
"""

from __future__ import annotations

import math

from ....common.arithmetic import round_up
from ....ir import ir
from ....operators.integer_ops import QUANT
from ....targets import Target
from ...packer_profile import ConvPackerLimits, get_packer_profile
from ..assumptions import unmeasured
from ..window import PackerWindow, format_sides, static_shape

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
    "depthwise_1d",
    "left_over_rows",
    "left_over_rows_depthwise",
    "count_left_over_rows",
    "is_computed_in_row_tiles",
]


def kernel_side(node: ir.Node, target: Target) -> str | None:
    """kernel height and width must not exceed {own.packing.conv.max_kernel} | split the kernel and
    add the partial results.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    sides = [k for k, d in zip(window.kernel, window.dilations, strict=True) if d == 1]
    exceeds = max(sides, default=0) > get_packer_profile(target).conv.max_kernel
    return format_sides(window.kernel) if exceeds else None


def kernel_dilated(node: ir.Node, target: Target) -> str | None:
    """the kernel size along a dilated axis must not exceed {own.packing.conv.max_kernel_dilated} |
    split the kernel and add the partial results.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    sides = [k for k, d in zip(window.kernel, window.dilations, strict=True) if d != 1]
    exceeds = max(sides, default=0) > get_packer_profile(target).conv.max_kernel_dilated
    return format_sides(window.kernel) if exceeds else None


def kernel_length_1d(node: ir.Node, target: Target) -> int | None:
    """1-D kernels must not be longer than {own.packing.conv.max_kernel_1d} | split the kernel and
    add the partial results.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    return (
        window.kernel[1]
        if window.kernel[1] > get_packer_profile(target).conv.max_kernel_1d
        else None
    )


def dilation_1d(node: ir.Node, target: Target) -> int | None:
    """1-D convolutions do not support dilation | expand the kernel with zeros."""
    window = PackerWindow.from_node(node)
    return window.dilations[1] if window is not None and window.dilations[1] != 1 else None


def conv1d_dilation(node: ir.Node, target: Target) -> int | None:
    """convolutions with a 3-D weight do not support dilation | expand the kernel with zeros."""
    return dilation_1d(node, target) if len(ir.get_shape(node.inputs[1]) or ()) == 3 else None


def grouped_hoisted_padding(node: ir.Node, target: Target) -> str | None:
    """a grouped convolution must have at least as many channels per group as kernel rows, and at
    least as many input rows as kernel columns, because the packer hoists its padding otherwise |
    convolve each group separately.
    """
    window = PackerWindow.from_node(node)
    if window is None or not get_packer_profile(target).conv.hoists_padding:
        return None
    if window.group == 1 or window.depthwise or window.channels == 1:
        return None
    if window.channels >= window.kernel[0] and window.height >= window.kernel[1]:
        return None
    sides = format_sides(window.kernel)
    return f"{window.group} groups of {window.channels} channels under {sides}"


def group_count_1d(node: ir.Node, target: Target) -> str | None:
    """1-D convolutions do not support groups | write it as a 2-D convolution over a map of height
    1.
    """
    window = PackerWindow.from_node(node)
    if window is None or get_packer_profile(target).conv.supports_groups_1d or window.group == 1:
        return None
    return f"{window.group} groups"


def depthwise_1d(node: ir.Node, target: Target) -> str | None:
    """1-D convolutions must not be depthwise | write it as a 2-D convolution over a map of height
    1.
    """
    window = PackerWindow.from_node(node)
    if window is None or get_packer_profile(target).conv.supports_depthwise_1d:
        return None
    is_depthwise = window.depthwise or (window.group > 1 and window.outputs == 1)
    return f"{window.group} groups of one output" if is_depthwise else None


def stride_values(node: ir.Node, target: Target) -> int | None:
    """strides must be one of {own.packing.conv.strides} | use a stride of
    {own.packing.conv.stride_text}.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    return next(
        (s for s in window.strides if s not in get_packer_profile(target).conv.strides), None
    )


def stride_within_kernel(node: ir.Node, target: Target) -> str | None:
    """the stride must not exceed the kernel size | pad the kernel with zeros (--fit does this)."""
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    return next(
        (
            f"stride {s} > kernel {k}"
            for s, k in zip(window.strides, window.kernel, strict=True)
            if s > k
        ),
        None,
    )


def pad_side(node: ir.Node, target: Target) -> str | None:
    """padding must not exceed {own.packing.conv.max_pad} or the kernel size | insert an explicit
    Pad before the layer.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    limits = [min(get_packer_profile(target).conv.max_pad, k) for k in window.kernel] * 2
    exceeds = any(not 0 <= p <= limit for p, limit in zip(window.pads, limits, strict=True))
    return f"pads {list(window.pads)}" if exceeds else None


def dilation_values(node: ir.Node, target: Target) -> int | None:
    """dilations must be one of {own.packing.conv.dilations} | use an undilated kernel."""
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    return next(
        (d for d in window.dilations if d not in get_packer_profile(target).conv.dilations), None
    )


def depthwise_multiplier(node: ir.Node, target: Target) -> str | None:
    """depthwise convolutions require a channel multiplier of 1 | use several depthwise convolutions
    and concatenate.
    """
    window = PackerWindow.from_node(node)
    if (
        window is None
        or get_packer_profile(target).conv.supports_depthwise_multiplier
        or window.group == 1
        or window.depthwise
    ):
        return None
    return (
        f"{window.group} inputs, {window.group * window.outputs} outputs"
        if window.channels == 1
        else None
    )


def group_outputs(node: ir.Node, target: Target) -> str | None:
    """a grouped convolution with one output per group must have one input per group | slice the
    input and convolve each part.
    """
    window = PackerWindow.from_node(node)
    if window is None or window.group == 1 or window.depthwise:
        return None
    return f"{window.group} groups of {window.channels} channels" if window.outputs == 1 else None


def transposed_group_count(node: ir.Node, target: Target) -> str | None:
    """transposed convolutions do not support groups | upsample the input and convolve each group
    separately.
    """
    group = int(ir.get_attr(node, "group") or 1)
    return f"{group} groups" if group != 1 else None


def transposed_dilation(node: ir.Node, target: Target) -> str | None:
    """transposed convolutions do not support dilation | expand the kernel with zeros."""
    window = PackerWindow.from_node(node)
    if window is None or max(window.dilations) == 1:
        return None
    return f"dilations {list(window.dilations)}"


def conv_line_buffer(node: ir.Node, target: Target) -> str | None:
    """the line buffer (input rows under the kernel) must fit in
    {own.packing.conv.line_buffer_bytes} bytes ({own.packing.conv.depthwise_line_buffer_bytes} for
    depthwise) along at least one axis | reduce the channels or the input width.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    limits = get_packer_profile(target).conv
    required_bytes = min(
        window.get_line_buffer_bytes(limits.channel_align),
        window.get_line_buffer_bytes(limits.channel_align, swapped=True),
    )
    exceeds = required_bytes > _get_line_buffer_limit(window, limits)
    return f"{required_bytes} bytes" if exceeds else None


def _get_line_buffer_limit(window: PackerWindow, limits: ConvPackerLimits) -> int:
    """Return the bytes of the line buffer for a convolution.

    Depthwise ones have a limit of their own.
    """
    return limits.depthwise_line_buffer_bytes if window.depthwise else limits.line_buffer_bytes


def conv_line_buffer_swapped(node: ir.Node, target: Target) -> str | None:
    """with a stride above 1, the line buffer (input rows under the kernel) must fit in
    {own.packing.conv.line_buffer_bytes} bytes without swapping the axes | reduce the channels or
    the input width.
    """
    window = PackerWindow.from_node(node)
    if window is None or max(window.strides) == 1:
        return None
    limits = get_packer_profile(target).conv
    required_bytes = window.get_line_buffer_bytes(limits.channel_align)
    exceeds = required_bytes > _get_line_buffer_limit(window, limits)
    return f"{required_bytes} bytes" if exceeds else None


def conv_line_buffer_inner(node: ir.Node, target: Target) -> str | None:
    """the line buffer (input rows under the kernel), with channels rounded up to 8, must fit in
    {own.packing.conv.second_line_buffer_bytes} bytes | reduce the channels or the input width.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    limits = get_packer_profile(target).conv
    line_buffer_bytes = window.get_line_buffer_bytes(limits.channel_align)
    swapped = line_buffer_bytes > _get_line_buffer_limit(window, limits)
    required_bytes = window.get_line_buffer_bytes(8, limits.second_width_align, swapped)
    exceeds = required_bytes > limits.second_line_buffer_bytes
    return f"{required_bytes} bytes" if exceeds else None


def conv_input_bytes(node: ir.Node, target: Target) -> str | None:
    """the input, with channels and width rounded up to 8, must fit in
    {own.packing.conv.max_input_bytes} bytes, and input and output together in
    {own.packing.conv.max_input_output_bytes} | split the map into row tiles.
    """
    window, output_shape = PackerWindow.from_node(node), static_shape(node.outputs[0])
    limits = get_packer_profile(target).conv
    if window is None or window.get_map_bytes() <= limits.line_buffer_bytes:
        return None
    input_bytes = window.get_map_bytes()
    output_bytes = math.prod(output_shape[1:]) if output_shape is not None else 0
    total_limit, input_limit = limits.max_input_output_bytes, limits.max_input_bytes
    if total_limit is not None and input_bytes + output_bytes > total_limit:
        return f"{input_bytes + output_bytes} bytes"
    if input_limit is not None and input_bytes > input_limit:
        return f"an input of {input_bytes} bytes"
    return None


def left_over_rows(node: ir.Node, target: Target) -> str | None:
    """if the input exceeds {own.packing.conv.row_tile_bytes} bytes, no row may be left over at its
    bottom | slice off the rows that no window reads.
    """
    window = PackerWindow.from_node(node)
    return None if window is None or window.depthwise else _find_left_over_rows(window, target)


@unmeasured("rows left over by a depthwise convolution do the harm that they do for one group")
def left_over_rows_depthwise(node: ir.Node, target: Target) -> str | None:
    """if the input of a depthwise convolution exceeds
    {own.packing.conv.depthwise_line_buffer_bytes} bytes, no row may be left over at its bottom |
    slice off the rows that no window reads.
    """
    window = PackerWindow.from_node(node)
    return _find_left_over_rows(window, target) if window is not None and window.depthwise else None


def _find_left_over_rows(window: PackerWindow, target: Target) -> str | None:
    """Return "N of M rows" if a convolution that is computed in tiles leaves rows over."""
    rows = count_left_over_rows(window)
    if not rows or not is_computed_in_row_tiles(window, target):
        return None
    return f"{rows} of {window.height} rows"


def count_left_over_rows(window: PackerWindow) -> int:
    """Return the input rows that no window reads, after the packer has lowered the bottom pad."""
    top, bottom = window.pads[0], window.pads[2]
    reach = (window.kernel[0] - 1) * window.dilations[0] + 1
    unread_rows = (window.height + top + bottom - reach) % window.strides[0]
    return max(unread_rows - bottom, 0)


def is_computed_in_row_tiles(window: PackerWindow, target: Target) -> bool:
    """Whether a convolution is computed in tiles of rows which must leave no row over."""
    limits = get_packer_profile(target).conv
    limit_bytes = limits.row_tile_bytes
    if limit_bytes is None:
        return False
    if window.depthwise:
        limit_bytes = min(limit_bytes, limits.depthwise_line_buffer_bytes)
    rows = window.height
    if limits.row_tile_windows:
        reach = (window.kernel[0] - 1) * window.dilations[0] + 1
        padded_rows = rows + window.pads[0] + window.pads[2]
        rows = (padded_rows - reach) // window.strides[0] * window.strides[0] + reach
    row_width = round_up(window.width, limits.second_width_align * window.strides[1])
    return round_up(window.channels, 8) * row_width * rows > limit_bytes


def weight_slice_bytes(node: ir.Node, target: Target) -> str | None:
    """the weights of {own.packing.conv.weight_slice_outputs} outputs, with channels rounded up to
    8, must fit in {own.packing.conv.weight_slice_bytes} bytes | use fewer channels or a smaller
    kernel.
    """
    window = PackerWindow.from_node(node)
    if window is None or window.depthwise:
        return None
    limits = get_packer_profile(target).conv
    required_bytes = round_up(window.channels, 8) * window.area * limits.weight_slice_outputs
    return f"{required_bytes} bytes" if required_bytes > limits.weight_slice_bytes else None


@unmeasured(
    "weights with the largest number of slices that was run are correct; with three times as many "
    "the executor crashes, at least on the host"
)
def weight_slice_count(node: ir.Node, target: Target) -> str | None:
    """the weights must fit in {own.packing.conv.max_weight_slices} slices of
    {own.packing.conv.weight_slice_bytes} bytes | split the layer by output channels.
    """
    window = PackerWindow.from_node(node)
    limits = get_packer_profile(target).conv
    if window is None or window.depthwise or limits.max_weight_slices is None:
        return None
    bytes_per_output = round_up(window.channels, 8) * window.area
    align = limits.weight_slice_outputs
    slice_outputs = max(limits.weight_slice_bytes // bytes_per_output // align * align, align)
    slice_count = math.ceil(window.outputs / slice_outputs)
    # A limit of 0 is no limit.
    exceeds = slice_count > (limits.max_weight_slices or slice_count)
    return f"{slice_count} slices" if exceeds else None


def depthwise_weights(node: ir.Node, target: Target) -> str | None:
    """the weights of a depthwise convolution, with channels rounded up to 8, must fit in
    {own.packing.conv.max_depthwise_weight_bytes} bytes | split the channels into several
    convolutions.
    """
    window = PackerWindow.from_node(node)
    limit_bytes = get_packer_profile(target).conv.max_depthwise_weight_bytes
    if window is None or not window.depthwise or limit_bytes is None:
        return None
    required_bytes = round_up(window.channels, 8) * window.area
    return f"{required_bytes} bytes" if required_bytes > limit_bytes else None


def input_smaller_than_kernel(node: ir.Node, target: Target) -> str | None:
    """the input must not be smaller than the kernel (the packer adds the padding of rows to columns
    and vice versa) | insert an explicit Pad before the layer, or reduce the kernel.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    row_pads = window.pads[0] + window.pads[2]
    column_pads = window.pads[1] + window.pads[3]
    height, width = window.height, window.width
    # An integer graph input has no producer, or a Quant.
    producer = ir.producer(node.inputs[0])
    reads_graph_input = producer is None or producer.op_type == QUANT.name
    if get_packer_profile(target).conv.hoists_padding and not reads_graph_input:
        if window.channels < window.kernel[0]:
            height, row_pads = height + row_pads, 0
        if window.height < window.kernel[1]:
            width, column_pads = width + column_pads, 0
    if not get_packer_profile(target).conv.adds_padding_to_other_axis:
        row_pads, column_pads = column_pads, row_pads
    # The packer adds the padding of the rows to the columns and vice versa.
    if width + row_pads >= window.kernel[1] and height + column_pads >= window.kernel[0]:
        return None
    map_size = format_sides((window.height, window.width))
    return f"{map_size} under {format_sides(window.kernel)}, pads {list(window.pads)}"


def input_output_bytes(node: ir.Node, target: Target) -> str | None:
    """input and output together must fit in {target.shared_memory} bytes
    ({own.packing.conv.max_depthwise_input_output_bytes} for depthwise) | use smaller maps.
    """
    window = PackerWindow.from_node(node)
    input_shape, output_shape = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if target.shared_memory is None or window is None:
        return None
    if input_shape is None or output_shape is None:
        return None
    limit_bytes = target.shared_memory
    if window.depthwise:
        limit_bytes = get_packer_profile(target).conv.max_depthwise_input_output_bytes
    required_bytes = math.prod(input_shape[1:]) + math.prod(output_shape[1:])
    return f"{required_bytes} bytes" if required_bytes > limit_bytes else None
