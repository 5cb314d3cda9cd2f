"""Limits of pools: None if the node is within the limit, else a text with the offending value.

The docstring of each limit is the rule that users read; see `limit_tables`.
"""

from __future__ import annotations

from ....common.arithmetic import round_up
from ....ir import ir
from ....targets import Target
from ...packer_profile import get_packer_profile
from ..assumptions import unmeasured
from ..window import PackerWindow, format_sides, static_shape
from .conv import stride_within_kernel

__all__ = [
    "window_axes",
    "pool_strides",
    "pool_pads",
    "max_pool_side",
    "pool_line_buffer",
    "pool_line_buffer_unchecked",
    "pool_line_buffer_swapped",
    "pool_line_buffer_max",
    "pool_line_buffer_average",
    "average_pool_input_bytes",
    "odd_kernel_input_bytes",
    "uneven_average_input_bytes",
    "overlapping_max_input_bytes",
    "pool_ceil_mode",
    "average_area",
    "global_average_area",
    "average_channel_split",
    "average_executor_line_buffer",
    "is_executor_line_buffer_exceeded",
    "is_average_channel_split_wrong",
]


def window_axes(node: ir.Node, target: Target) -> str | None:
    """the pooling window must be 1-D or 2-D and match the spatial rank of the input | export the
    model again.
    """
    shape, kernel = static_shape(node.inputs[0]), ir.get_attr(node, "kernel_shape")
    if shape is None or not kernel or (len(kernel) in (1, 2) and len(shape) == len(kernel) + 2):
        return None
    return f"a {len(kernel)}-D window, an input of rank {len(shape)}"


def pool_strides(node: ir.Node, target: Target) -> str | None:
    """the pooling stride must not exceed the window size | subsample after pooling."""
    return stride_within_kernel(node, target)


def pool_pads(node: ir.Node, target: Target) -> str | None:
    """pooling pads must not exceed the window size, or {own.packing.pool.max_pad} for max pooling |
    insert an explicit Pad before the pool.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    max_pad = None
    if node.op_type == "MaxPool":
        limits = get_packer_profile(target).pool
        has_platform = _has_platform_attribute(node)
        max_pad = limits.max_pad_with_platform if has_platform else limits.max_pad
    max_pads = [k if max_pad is None else min(max_pad, k) for k in window.kernel] * 2
    exceeds = any(not 0 <= p <= limit for p, limit in zip(window.pads, max_pads, strict=True))
    return f"pads {list(window.pads)}" if exceeds else None


def max_pool_side(node: ir.Node, target: Target) -> str | None:
    """height and width of a max pooling window must not exceed {own.packing.pool.max_kernel} unless
    the window spans the input along one axis | pool in two steps.
    """
    window = PackerWindow.from_node(node)
    if window is None:
        return None
    limits = get_packer_profile(target).pool
    has_platform = _has_platform_attribute(node)
    max_kernel = limits.max_kernel_with_platform if has_platform else limits.max_kernel
    covers_axis = window.kernel[0] == window.height or window.kernel[1] == window.width
    if max_kernel is None or max(window.kernel) <= max_kernel or covers_axis:
        return None
    return format_sides(window.kernel)


def _has_platform_attribute(node: ir.Node) -> bool:
    """Whether the node has the attribute `platform`, for which the packer has other pool limits."""
    return ir.get_attr(node, "platform") is not None


def pool_line_buffer(node: ir.Node, target: Target) -> str | None:
    """the line buffer of a pool (input rows under the window) must fit in
    {own.packing.pool.line_buffer_bytes} bytes along at least one axis, unless a window side exceeds
    {own.packing.pool.unchecked_side} | use fewer channels, a narrower map or a smaller window.
    """
    window = PackerWindow.from_node(node)
    if window is None or max(window.kernel) > get_packer_profile(target).pool.unchecked_side:
        return None
    return _find_line_buffer_excess(window, target)


def pool_line_buffer_unchecked(node: ir.Node, target: Target) -> str | None:
    """the line buffer of a pool (input rows under the window) must fit in
    {own.packing.pool.line_buffer_bytes} bytes along at least one axis | use fewer channels, a
    narrower map or a smaller window.
    """
    window = PackerWindow.from_node(node)
    if window is None or get_packer_profile(target).pool.is_unchecked_correct:
        return None
    return _find_line_buffer_excess(window, target)


def _find_line_buffer_excess(window: PackerWindow, target: Target) -> str | None:
    """Return "N bytes" if the line buffer of a pool exceeds the chip's limit along both axes.

    N is the smaller of both sizes; None if it is within the limit along an axis.
    """
    limits = get_packer_profile(target).pool
    required_bytes = min(
        window.get_line_buffer_bytes(limits.channel_align),
        window.get_line_buffer_bytes(limits.channel_align, swapped=True),
    )
    return f"{required_bytes} bytes" if required_bytes > limits.line_buffer_bytes else None


@unmeasured(
    "a stride above 1 gives wrong results if the axes of a pool are swapped, as for a convolution"
)
def pool_line_buffer_swapped(node: ir.Node, target: Target) -> str | None:
    """with a stride above 1, the line buffer of a pool (input rows under the window) must fit in
    {own.packing.pool.line_buffer_bytes} bytes without swapping the axes, unless a window side
    exceeds {own.packing.pool.unchecked_side} | use fewer channels, a narrower map or a smaller
    window.
    """
    window, limits = PackerWindow.from_node(node), get_packer_profile(target).pool
    if window is None or max(window.strides) == 1 or max(window.kernel) > limits.unchecked_side:
        return None
    required_bytes = window.get_line_buffer_bytes(limits.channel_align)
    return f"{required_bytes} bytes" if required_bytes > limits.line_buffer_bytes else None


def pool_line_buffer_max(node: ir.Node, target: Target) -> str | None:
    """the line buffer of a max pool (input rows under the window), with channels rounded up to 8,
    must fit in {own.packing.pool.max_pool_line_buffer_bytes} bytes | use fewer channels, a narrower
    map or a smaller window.
    """
    limit_bytes = get_packer_profile(target).pool.max_pool_line_buffer_bytes
    return _find_padded_line_buffer_excess(node, limit_bytes)


def _find_padded_line_buffer_excess(node: ir.Node, limit_bytes: int | None) -> str | None:
    """Return "N bytes" if the line buffer under the window of `node` exceeds `limit_bytes`.

    Channels are rounded up to 8. None if it does not, without a limit, or if the sizes of the node
    are not static.
    """
    window = PackerWindow.from_node(node)
    if window is None or limit_bytes is None:
        return None
    required_bytes = window.get_line_buffer_bytes(8)
    return f"{required_bytes} bytes" if required_bytes > limit_bytes else None


def pool_line_buffer_average(node: ir.Node, target: Target) -> str | None:
    """the line buffer of an average pool (input rows under the window), with channels rounded up to
    8, must fit in {own.packing.pool.average_pool_line_buffer_bytes} bytes | use fewer channels, a
    narrower map or a smaller window.
    """
    limit_bytes = get_packer_profile(target).pool.average_pool_line_buffer_bytes
    return _find_padded_line_buffer_excess(node, limit_bytes)


def average_pool_input_bytes(node: ir.Node, target: Target) -> str | None:
    """the input of an average pool, with channels and width rounded up to 8, must fit in
    {own.packing.pool.max_average_input_bytes} bytes | split the map into row tiles.
    """
    limit_bytes = get_packer_profile(target).pool.max_average_input_bytes
    return _find_map_excess(PackerWindow.from_node(node), limit_bytes)


def _find_map_excess(window: PackerWindow | None, limit_bytes: int | None) -> str | None:
    """Return "N bytes" if the padded input map of `window` exceeds `limit_bytes`.

    None if it does not, or without a window or a limit.
    """
    if window is None or limit_bytes is None or window.get_map_bytes() <= limit_bytes:
        return None
    return f"{window.get_map_bytes()} bytes"


def odd_kernel_input_bytes(node: ir.Node, target: Target) -> str | None:
    """the input under a pooling window with an odd side, with channels and width rounded up to 8,
    must fit in {own.packing.pool.max_odd_kernel_input_bytes} bytes | split the map into row tiles,
    or use an even window.
    """
    window = PackerWindow.from_node(node)
    if window is None or not any(k % 2 for k in window.kernel):
        return None
    return _find_map_excess(window, get_packer_profile(target).pool.max_odd_kernel_input_bytes)


@unmeasured("over a large map, an average needs a division by a power of two; 2x2 was measured")
def uneven_average_input_bytes(node: ir.Node, target: Target) -> str | None:
    """the input of an average pool whose window has not a power of two of elements, with channels
    and width rounded up to 8, must fit in {own.packing.pool.max_odd_kernel_input_bytes} bytes |
    split the map into row tiles, or use an even window.
    """
    window = PackerWindow.from_node(node)
    if window is None or not window.area & (window.area - 1):
        return None
    return _find_map_excess(window, get_packer_profile(target).pool.max_odd_kernel_input_bytes)


@unmeasured("windows that overlap do not run over a large map; 3x3 with a stride of 1 was measured")
def overlapping_max_input_bytes(node: ir.Node, target: Target) -> str | None:
    """the input of a max pool whose windows overlap, with channels and width rounded up to 8, must
    fit in {own.packing.pool.max_odd_kernel_input_bytes} bytes | split the map into row tiles.
    """
    window = PackerWindow.from_node(node)
    if window is None or window.kernel == window.strides:
        return None
    return _find_map_excess(window, get_packer_profile(target).pool.max_odd_kernel_input_bytes)


def pool_ceil_mode(node: ir.Node, target: Target) -> str | None:
    """ceil_mode=1 is not supported if the last window extends past the input | pad the input."""
    if not ir.get_attr(node, "ceil_mode", 0):
        return None
    window = PackerWindow.from_node(node)
    if window is None:
        return "ceil_mode 1"
    remainders = [
        (size + window.pads[i] + window.pads[i + 2] - window.kernel[i]) % window.strides[i]
        for i, size in enumerate((window.height, window.width))
    ]
    return "ceil_mode 1" if any(remainders) else None


def average_area(node: ir.Node, target: Target) -> str | None:
    """an average pooling window must not have more than {own.packing.pool.max_average_area}
    elements | pool in two steps.
    """
    window = PackerWindow.from_node(node)
    if window is None or window.area <= get_packer_profile(target).pool.max_average_area:
        return None
    return f"{window.area} elements"


@unmeasured(
    "the executor of arcs rounds the width up as that of venus does; this explains two measured "
    "pools with a stride of 46"
)
def average_executor_line_buffer(node: ir.Node, target: Target) -> str | None:
    """the line buffer of an average pool as the executor counts it (the width rounded up to a power
    of two that grows with the stride) must fit in {own.packing.pool.executor_line_buffer_bytes}
    bytes | pool one window at a time.
    """
    window = PackerWindow.from_node(node)
    if window is None or not is_executor_line_buffer_exceeded(window, target):
        return None
    return f"strides {list(window.strides)}"


def is_executor_line_buffer_exceeded(window: PackerWindow, target: Target) -> bool:
    """Whether the executor refuses an average pool, because it counts too many bytes for it.

    Up to a stride of 4 it counts no more than the packer. Whether it counts with more than 32 bits
    was not measured, so that pools whose bytes would overflow count as refused.
    """
    limit_bytes = get_packer_profile(target).pool.executor_line_buffer_bytes
    if limit_bytes is None or window.strides[1] <= 4:
        return False
    column_bytes = round_up(window.channels, 8) * window.kernel[0]
    return column_bytes * _get_executor_row_length(window) > limit_bytes


def _get_executor_row_length(window: PackerWindow) -> int:
    """Return the row length of an average pool as the executors round it up, for its stride."""
    return round_up(window.width, 1 << (3 + window.strides[1] // 2))


def _count_executor_bytes(column_bytes: int, window: PackerWindow) -> int:
    """Return the bytes of some rows as the executor of venus counts them, in 32 bits."""
    return (column_bytes * _get_executor_row_length(window) + 2**31) % 2**32 - 2**31


def global_average_area(node: ir.Node, target: Target) -> str | None:
    """the number of elements of a global average pool must be a power of two or at most
    {own.packing.pool.max_global_area_per_channel} times the number of channels | pool in two steps.
    """
    window = PackerWindow.from_node(node)
    area_per_channel = get_packer_profile(target).pool.max_global_area_per_channel
    if window is None or area_per_channel is None or not window.is_single_position:
        return None
    is_power_of_two = window.area & (window.area - 1) == 0
    if is_power_of_two or window.area <= area_per_channel * window.channels:
        return None
    return f"{format_sides(window.kernel)} of {window.channels} channels"


def average_channel_split(node: ir.Node, target: Target) -> str | None:
    """an average pool over more than {own.packing.pool.channel_split_bytes} bytes, which is
    computed in parts of 8 channels, must have a multiple of 8 channels, and packer and executor
    must agree on the bytes | pool 8 channels at a time.
    """
    window = PackerWindow.from_node(node)
    if window is None or not is_average_channel_split_wrong(window, window.channels, target):
        return None
    return f"{window.channels} channels of {format_sides((window.height, window.width))}"


def is_average_channel_split_wrong(window: PackerWindow, channels: int, target: Target) -> bool:
    """Whether an average pool over `channels` channels comes out wrong for its parts of channels.

    The packer and the executor decide on their own whether to compute it in parts: they round the
    width up to different multiples, and the executor's bytes overflow 32 bits.
    """
    limit_bytes = get_packer_profile(target).pool.channel_split_bytes
    if limit_bytes is None:
        return False
    column_bytes = round_up(channels, 8) * window.height
    packer_splits = column_bytes * round_up(window.width, 8 * window.strides[1]) > limit_bytes
    if _count_executor_bytes(column_bytes, window) > limit_bytes:
        return channels % 8 != 0
    return packer_splits and channels > 8
