"""Exact rewrites of convolutions, pools and pads that the executor computes wrong at some sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.arithmetic import round_up
from ...ir import ir
from ...operators.integer_ops import AVG_POOL2D, CONV2D, PAD
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..packer.limits.conv import count_left_over_rows, is_computed_in_row_tiles
from ..packer.limits.pool import (
    is_average_channel_split_wrong,
    is_executor_line_buffer_exceeded,
)
from ..packer.memory.findings import MAX_COPY_BYTES
from ..packer.window import PackerWindow
from .node_builders import (
    MAX_CONCAT_INPUTS,
    find_scale,
    get_dims,
    insert_concat,
    make_slice,
    replace_by_producer,
)

__all__ = [
    "has_hoisted_padding",
    "pool_single_windows",
    "slice_off_left_over_rows",
    "split_average_channels",
    "split_large_pads",
]

#: Channels that the executor of venus pools at a time.
_POOLED_CHANNELS = 8

#: First and end index of a range.
Range = tuple[int, int]


def slice_off_left_over_rows(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Slice rows that no window reads off the input of convolutions computed in tiles of rows.

    In place; returns one description per convolution. Their bottom padding becomes 0, which is what
    the packer makes of it.
    """
    rewrites = []
    for node in list(graph.graph):
        if node.op_type != CONV2D.name:
            continue
        window = PackerWindow.from_node(node)
        rows = 0 if window is None else count_left_over_rows(window)
        if window is None or not rows or not is_computed_in_row_tiles(window, target):
            continue
        source = ir.require_input(node)
        used_names = ir.get_tensor_names(graph)
        end = window.height - rows
        kept = make_slice(graph, source, 2, 0, end, f"{source.name}_read", used_names)
        graph.graph.insert_before(node, kept)
        node.replace_input_with(0, kept.outputs[0])
        ir.set_attr(node, "pads", [*window.pads[:2], 0, window.pads[3]])
        description = f"{rows} rows that no window reads sliced off: the chip would count them"
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def split_average_channels(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Pool the channels of AvgPool2dInt in parts that the executor computes correctly, in place.

    A stride along an axis with one window becomes 1, which may suffice. Returns one description per
    pool.
    """
    rewrites = []
    for node in list(graph.graph):
        window = PackerWindow.from_node(node) if node.op_type == AVG_POOL2D.name else None
        if window is None or not is_average_channel_split_wrong(window, window.channels, target):
            continue
        output_size = get_dims(node.outputs[0])[2:]
        strides = [1 if n == 1 else s for n, s in zip(output_size, window.strides, strict=True)]
        ir.set_attr(node, "strides", strides)
        window = PackerWindow.from_node(node)
        description = f"strides {strides}: one window covers an axis"
        if window is not None and is_average_channel_split_wrong(window, window.channels, target):
            description = _pool_channels_in_parts(graph, node, window, target)
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _pool_channels_in_parts(
    graph: ir.Model, node: ir.Node, window: PackerWindow, target: Target
) -> str:
    """Replace a pool by pools of multiples of 8 channels, and return a description."""
    if window.channels < _POOLED_CHANNELS:
        _compute_with_repeated_channels(graph, node)
        return f"{window.channels} channels repeated up to {_POOLED_CHANNELS}: the chip pools these"
    ranges = _choose_pooled_ranges(window, target)
    _compute_in_parts(graph, [node], 1, ranges, overlaps=True)
    return (
        f"{window.channels} channels pooled in {len(ranges)} parts: packer and executor divide "
        "them differently"
    )


def pool_single_windows(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Pool the columns of each window of an AvgPool2dInt by itself, with a stride of 1, in place.

    For pools whose stride the executor refuses, without padding of the columns. Returns one
    description per pool.
    """
    rewrites = []
    for node in list(graph.graph):
        window = PackerWindow.from_node(node) if node.op_type == AVG_POOL2D.name else None
        if window is None or not is_executor_line_buffer_exceeded(window, target):
            continue
        if window.pads[1] or window.pads[3]:
            continue
        windows = get_dims(node.outputs[0])[3]
        stride, width = window.strides[1], window.kernel[1]
        ir.set_attr(node, "strides", [window.strides[0], 1])
        description = f"{windows} windows of a row pooled one by one: the chip refuses the stride"
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
        if windows > 1:
            starts = [stride * index for index in range(windows)]
            _compute_in_parts(graph, [node], 3, [(start, start + width) for start in starts])
    return rewrites


def _choose_pooled_ranges(window: PackerWindow, target: Target) -> list[Range]:
    """Return ranges of channels that are pooled correctly, each a multiple of 8 channels.

    The last one may overlap the one before it. There are at least 8 channels.
    """
    size = window.channels // _POOLED_CHANNELS * _POOLED_CHANNELS
    while size > _POOLED_CHANNELS and is_average_channel_split_wrong(window, size, target):
        size -= _POOLED_CHANNELS
    starts = list(range(0, window.channels - size + 1, size))
    ranges = [(start, start + size) for start in starts]
    missing = window.channels - ranges[-1][1]
    if missing:
        first = window.channels - round_up(missing, _POOLED_CHANNELS)
        ranges.append((first, window.channels))
    return ranges


def split_large_pads(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Split iqPads with more than `MAX_COPY_BYTES` of output by channels, in place.

    So are depthwise convolutions whose padding the packer moves into such an iqPad, and one that
    alone reads an iqPad is split with it. A map with a channel above the limit stays. Returns one
    description per node.
    """
    rewrites = []
    for node in list(graph.graph):
        if node.graph is None:
            continue  # split together with an iqPad
        channels, map_bytes = _measure_padded_map(node)
        if channels * map_bytes <= MAX_COPY_BYTES or map_bytes > MAX_COPY_BYTES:
            continue
        size = MAX_COPY_BYTES // map_bytes
        size = math.ceil(channels / math.ceil(channels / size))
        ranges = [(start, min(start + size, channels)) for start in range(0, channels, size)]
        _compute_in_parts(graph, _collect_padded_layers(node), 1, ranges)
        description = (
            f"{channels} channels padded in {len(ranges)} parts: the chip pads at most "
            f"{MAX_COPY_BYTES} bytes"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _collect_padded_layers(node: ir.Node) -> list[ir.Node]:
    """Return `node`, with the depthwise convolution that alone reads it if it is an iqPad."""
    uses = list(node.outputs[0].uses())
    if node.op_type != PAD.name or len(uses) != 1 or node.outputs[0].is_graph_output():
        return [node]
    consumer = uses[0].node
    window = PackerWindow.from_node(consumer) if consumer.op_type == CONV2D.name else None
    return [node, consumer] if window is not None and window.depthwise else [node]


def _measure_padded_map(node: ir.Node) -> tuple[int, int]:
    """Return channels and bytes per channel of the output of an iqPad, one that the packer inserts.

    (0, 0) for other nodes, and for convolutions that cannot be split by channels.
    """
    if node.op_type == PAD.name:
        _, channels, height, width = get_dims(node.outputs[0])
        source_channels = get_dims(node.inputs[0])[1]
        return (channels, height * width) if channels == source_channels else (0, 0)
    window = PackerWindow.from_node(node) if node.op_type == CONV2D.name else None
    if window is None or not window.depthwise:
        return 0, 0
    hoists_rows = window.channels < window.kernel[0]
    hoists_columns = window.height < window.kernel[1]
    if not hoists_rows and not hoists_columns:
        return 0, 0
    height = window.height + hoists_rows * (window.pads[0] + window.pads[2])
    width = window.width + hoists_columns * (window.pads[1] + window.pads[3])
    return window.channels, height * width


def has_hoisted_padding(node: ir.Node) -> bool:
    """Whether the packer moves the padding of a Conv2dInt into an iqPad before it.

    It does if the channels are fewer than the kernel's height or the height smaller than its width.
    """
    shapes = [ir.get_shape(value) for value in node.inputs[:2]]
    if node.op_type != CONV2D.name or not any(ir.get_attr(node, "pads") or [0]):
        return False
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return False
    (_, _, height, _), (_, channels, kernel_height, kernel_width) = (
        [int(dim or 0) for dim in shape or ()] for shape in shapes
    )
    return channels < kernel_height or height < kernel_width


def _compute_in_parts(
    graph: ir.Model,
    nodes: Sequence[ir.Node],
    axis: int,
    ranges: Sequence[Range],
    overlaps: bool = False,
) -> None:
    """Replace a chain of nodes by one for each range of its input along an axis, and an iqCat.

    In place. With `overlaps`, input and output have the same size along the axis, and results that
    an earlier range has as well are sliced off.
    """
    source, last = ir.require_input(nodes[0]), nodes[-1]
    parts, end_of_results = [], 0
    for first, end in ranges:
        part = _slice(graph, last, source, axis, first, end, source)
        for node in nodes:
            part = _insert_part(graph, node, part, axis, first, before=last)
        if overlaps:
            start = end_of_results - first
            part = _slice(graph, last, part, axis, start, end - first, last.outputs[0])
            end_of_results = end
        parts.append(part)
    scale, _ = find_scale(last.outputs[0])
    while len(parts) > 1:
        groups = [
            parts[start : start + MAX_CONCAT_INPUTS]
            for start in range(0, len(parts), MAX_CONCAT_INPUTS)
        ]
        parts = [_join(graph, last, group, axis, scale) for group in groups]
    replace_by_producer(graph, nodes, parts[0])


def _join(
    graph: ir.Model, node: ir.Node, parts: Sequence[ir.Value], axis: int, scale: float
) -> ir.Value:
    """Insert an iqCat of `parts` before `node` and return its output; the part if there is one."""
    if len(parts) == 1:
        return parts[0]
    return insert_concat(graph, node, parts, axis, scale, f"{node.outputs[0].name}_joined")


def _compute_with_repeated_channels(graph: ir.Model, node: ir.Node) -> None:
    """Replace a pool of a few channels by one of `_POOLED_CHANNELS` channels, repeated ones."""
    source = ir.require_input(node)
    scale, _ = find_scale(source)
    channels = get_dims(source)[1]
    count = math.ceil(_POOLED_CHANNELS / channels)
    repeated = source
    for size in (min(count, MAX_CONCAT_INPUTS), math.ceil(count / MAX_CONCAT_INPUTS)):
        if size > 1:
            name = f"{source.name}_repeated"
            repeated = insert_concat(graph, node, [repeated] * size, 1, scale, name)
    value = _slice(graph, node, repeated, 1, 0, _POOLED_CHANNELS, source)
    part = _insert_part(graph, node, value, 1, 0, before=node)
    replace_by_producer(graph, [node], _slice(graph, node, part, 1, 0, channels, node.outputs[0]))


def _slice(
    graph: ir.Model,
    node: ir.Node,
    value: ir.Value,
    axis: int,
    start: int,
    end: int,
    named_after: ir.Value,
) -> ir.Value:
    """Insert a Slice start .. end-1 of `value` along an axis before `node`; return its output.

    Returns `value` itself if that is all of it.
    """
    if (start, end) == (0, get_dims(value)[axis]):
        return value
    name = f"{named_after.name}_from{start}"
    slice_node = make_slice(graph, value, axis, start, end, name, ir.get_tensor_names(graph))
    graph.graph.insert_before(node, slice_node)
    return slice_node.outputs[0]


def _insert_part(
    graph: ir.Model, node: ir.Node, value: ir.Value, axis: int, first: int, before: ir.Node
) -> ir.Value:
    """Insert a copy of `node` before another one; it reads `value`, the input from `first` on.

    The constants of a depthwise convolution are sliced. The output has the size of the input along
    axis 1, and one column along axis 3. Returns the output of the copy.
    """
    output = node.outputs[0]
    shape = get_dims(output)
    shape[axis] = get_dims(value)[axis] if axis == 1 else 1
    name = ir.unique_tensor_name(graph, f"{output.name}_part{first}")
    inputs: list[ir.Value | None] = [value]
    for constant in node.inputs[1:]:
        array = None if constant is None else ir.const_value(constant)
        if node.op_type != CONV2D.name or constant is None or array is None:
            inputs.append(constant)
            continue
        constant_name = ir.unique_tensor_name(graph, f"{constant.name}_part{first}")
        inputs.append(ir.add_initializer(graph, constant_name, array[first : first + shape[1]]))
    copy = ir.make_node(
        node.op_type,
        inputs,
        name=f"{node.name}_part{first}",
        domain=node.domain,
        output=name,
        like=output,
    )
    copy.attributes.update(node.attributes)
    if node.op_type == CONV2D.name:
        ir.set_attr(copy, "group", shape[1])
    copy.outputs[0].shape = ir.Shape(shape)
    graph.graph.insert_before(before, copy)
    return copy.outputs[0]
