"""Limits of pools: see `limits`."""

from __future__ import annotations

import math

from .....graph import ir
from .... import Target
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
    "pool_ceil_mode",
    "average_area",
    "global_average_area",
]


def window_axes(node: ir.Node, target: Target) -> object:
    """a window has as many sides, 1 or 2, as its map has behind batch and channels | export the
    model again.
    """
    shape, sides = static_shape(node.inputs[0]), ir.get_attr(node, "kernel_shape")
    if shape is None or not sides or (len(sides) in (1, 2) and len(shape) == len(sides) + 2):
        return None
    return f"{len(sides)} sides, a map of {len(shape)} axes"


def pool_strides(node: ir.Node, target: Target) -> object:
    """a pool's stride is not larger than its window | take every n-th element behind the pool."""
    return stride_within_kernel(node, target)


def pool_pads(node: ir.Node, target: Target) -> object:
    """a pool's pads are not larger than its window; max pooling's are at most
    {own.packing.pool.max_pad} | pad in a
    node before.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    most: float = math.inf
    if node.op_type == "MaxPool":
        limit = (
            get_packer_profile(target).pool.max_pad_with_platform
            if _has_platform_attribute(node)
            else get_packer_profile(target).pool.max_pad
        )
        most = math.inf if limit is None else limit
    limits = [min(most, k) for k in w.kernel] * 2
    return (
        f"pads {list(w.pads)}"
        if any(not 0 <= p <= m for p, m in zip(w.pads, limits, strict=True))
        else None
    )


def max_pool_side(node: ir.Node, target: Target) -> object:
    """max pooling windows are at most {own.packing.pool.max_kernel} on a side, unless a side covers
    the map | pool in
    two steps.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    most = (
        get_packer_profile(target).pool.max_kernel_with_platform
        if _has_platform_attribute(node)
        else get_packer_profile(target).pool.max_kernel
    )
    whole = w.kernel[0] == w.height or w.kernel[1] == w.width
    return (
        format_sides(w.kernel) if most is not None and max(w.kernel) > most and not whole else None
    )


def _has_platform_attribute(node: ir.Node) -> bool:
    return ir.get_attr(node, "platform") is not None


def pool_line_buffer(node: ir.Node, target: Target) -> object:
    """the input rows under a pool's window fit {own.packing.pool.line_buffer_bytes} bytes along one
    axis, unless a side
    is above
    {own.packing.pool.unchecked_side} | use fewer channels, a narrower map or a smaller window.
    """
    w = PackerWindow.from_node(node)
    if w is None or max(w.kernel) > get_packer_profile(target).pool.unchecked_side:
        return None
    return _pool_line_buffer(w, target)


def pool_line_buffer_unchecked(node: ir.Node, target: Target) -> object:
    """the input rows under a pool's window fit {own.packing.pool.line_buffer_bytes} bytes along one
    axis | use fewer
    channels, a
    narrower map or a smaller window.
    """
    w = PackerWindow.from_node(node)
    if w is None or get_packer_profile(target).pool.is_unchecked_correct:
        return None
    return _pool_line_buffer(w, target)


def _pool_line_buffer(w: PackerWindow, target: Target) -> str | None:
    align = get_packer_profile(target).pool.channel_align
    need = min(w.get_line_buffer_bytes(align), w.get_line_buffer_bytes(align, swapped=True))
    return f"{need} bytes" if need > get_packer_profile(target).pool.line_buffer_bytes else None


@unmeasured(
    "a stride above 1 harms where a pool's axes are swapped, as it does under a convolution"
)
def pool_line_buffer_swapped(node: ir.Node, target: Target) -> object:
    """where the stride is above 1, the input rows under a pool's window fit
    {own.packing.pool.line_buffer_bytes} bytes
    without
    swapping axes, unless a side is above {own.packing.pool.unchecked_side} | use fewer channels, a
    narrower map or a smaller window.
    """
    w, kind = PackerWindow.from_node(node), get_packer_profile(target).pool
    if w is None or max(w.strides) == 1 or max(w.kernel) > kind.unchecked_side:
        return None
    need = w.get_line_buffer_bytes(kind.channel_align)
    return f"{need} bytes" if need > kind.line_buffer_bytes else None


def pool_line_buffer_max(node: ir.Node, target: Target) -> object:
    """the input rows under a max pool's window, with channels rounded up to 8, fit
    {own.packing.pool.max_pool_line_buffer_bytes}
    bytes | use fewer channels, a narrower map or a smaller window.
    """
    w, most = (
        PackerWindow.from_node(node),
        get_packer_profile(target).pool.max_pool_line_buffer_bytes,
    )
    if w is None or most is None:
        return None
    return f"{w.get_line_buffer_bytes(8)} bytes" if w.get_line_buffer_bytes(8) > most else None


def pool_line_buffer_average(node: ir.Node, target: Target) -> object:
    """the input rows under an averaging window, with channels rounded up to 8, fit
    {own.packing.pool.average_pool_line_buffer_bytes} bytes | use fewer channels, a narrower map or
    a smaller window.
    """
    w, most = (
        PackerWindow.from_node(node),
        get_packer_profile(target).pool.average_pool_line_buffer_bytes,
    )
    if w is None or most is None:
        return None
    return f"{w.get_line_buffer_bytes(8)} bytes" if w.get_line_buffer_bytes(8) > most else None


def average_pool_input_bytes(node: ir.Node, target: Target) -> object:
    """averages are taken of maps of at most {own.packing.pool.max_average_input_bytes} bytes,
    channels and width
    rounded up to
    8 | cut the map into tiles of rows.
    """
    w, most = PackerWindow.from_node(node), get_packer_profile(target).pool.max_average_input_bytes
    if w is None or most is None:
        return None
    return f"{w.get_map_bytes()} bytes" if w.get_map_bytes() > most else None


def odd_kernel_input_bytes(node: ir.Node, target: Target) -> object:
    """windows with an odd side pool maps of at most {own.packing.pool.max_odd_kernel_input_bytes}
    bytes, channels and
    width rounded
    up to 8 | cut the map into tiles of rows, or use an even window.
    """
    w, most = (
        PackerWindow.from_node(node),
        get_packer_profile(target).pool.max_odd_kernel_input_bytes,
    )
    if w is None or most is None or not any(k % 2 for k in w.kernel):
        return None
    return f"{w.get_map_bytes()} bytes" if w.get_map_bytes() > most else None


def pool_ceil_mode(node: ir.Node, target: Target) -> object:
    """a pool's last window lies within the map (ceil_mode 0) | pad the map."""
    if not ir.get_attr(node, "ceil_mode", 0):
        return None
    w = PackerWindow.from_node(node)
    if w is None:
        return "ceil_mode 1"
    rest = [
        (n + w.pads[i] + w.pads[i + 2] - w.kernel[i]) % w.strides[i]
        for i, n in enumerate((w.height, w.width))
    ]
    return "ceil_mode 1" if any(rest) else None


def average_area(node: ir.Node, target: Target) -> object:
    """average pooling windows have at most {own.packing.pool.max_average_area} elements | pool in
    two steps.
    """
    w = PackerWindow.from_node(node)
    if w is None:
        return None
    return (
        f"{w.area} elements" if w.area > get_packer_profile(target).pool.max_average_area else None
    )


def global_average_area(node: ir.Node, target: Target) -> object:
    """an average over the whole map is over a power of two of elements, or over at most
    {own.packing.pool.area_per_channel} times as many elements as there are channels | pool in two
    steps.
    """
    w, each = (
        PackerWindow.from_node(node),
        get_packer_profile(target).pool.max_global_area_per_channel,
    )
    if w is None or each is None or not w.is_single_position:
        return None
    power = w.area & (w.area - 1) == 0
    most = each * w.channels
    return (
        f"{format_sides(w.kernel)} of {w.channels} channels"
        if not power and w.area > most
        else None
    )
