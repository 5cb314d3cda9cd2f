"""Limits of convolutions: see `limits`."""

from __future__ import annotations

import math

from .....formats import QUANT
from .....graph import ir
from .....ops.layers.conv import ConvGeometry, known
from .... import Target
from ...packing import packing
from ..beliefs import unmeasured
from ..window import PackedWindow, by, rounded, sizes

__all__ = [
    "kernel_side", "kernel_dilated", "kernel_line", "line_dilation", "dilated_line", "groups_padded_ahead",
    "stride_values", "stride_within_kernel", "pad_side", "dilation_values", "depthwise_multiplier", "group_outputs",
    "one_group", "undilated", "conv_line_buffer", "conv_line_buffer_swapped", "conv_line_buffer_inner", "conv_map",
    "weight_share", "weight_shares", "depthwise_weights", "input_below_kernel", "input_with_output", "line_group",
]  # fmt: skip


def kernel_side(node: ir.Node, target: Target) -> object:
    """kernel sides are at most {own.packing.conv.max_kernel} | split the kernel into smaller ones whose results are
    added.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    sides = [k for k, d in zip(w.kernel, w.dilations, strict=True) if d == 1]
    return by(w.kernel) if max(sides, default=0) > packing(target).conv.max_kernel else None


def kernel_dilated(node: ir.Node, target: Target) -> object:
    """kernel sides along a dilated axis are at most {own.packing.conv.max_kernel_dilated} | split the kernel into
    smaller ones whose results are added.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    sides = [k for k, d in zip(w.kernel, w.dilations, strict=True) if d != 1]
    return by(w.kernel) if max(sides, default=0) > packing(target).conv.max_kernel_dilated else None


def kernel_line(node: ir.Node, target: Target) -> object:
    """1-D kernels are at most {own.packing.conv.max_kernel_1d} long | split the kernel into shorter ones that are
    added.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    return w.kernel[1] if w.kernel[1] > packing(target).conv.max_kernel_1d else None


def line_dilation(node: ir.Node, target: Target) -> object:
    """1-D kernels are not dilated | use a kernel with zeros between."""
    w = PackedWindow.of(node)
    return w.dilations[1] if w is not None and w.dilations[1] != 1 else None


def dilated_line(node: ir.Node, target: Target) -> object:
    """a convolution of lines is not dilated | use a kernel with zeros between."""
    return line_dilation(node, target) if len(ir.shape(node.inputs[1]) or ()) == 3 else None


def groups_padded_ahead(node: ir.Node, target: Target) -> object:
    """a grouped convolution has as many channels in a group as rows in its kernel, and no map lower than the kernel is
    wide: the packer would pad it in a node before | convolve each group by itself.
    """
    g = ConvGeometry.image(node)
    if not packing(target).conv.pre_pad or g.group == 1 or g.weight[1] == 1 or not known(g):
        return None
    small = g.weight[1] < g.kernel[0] or int(g.source[2] or 0) < g.kernel[1]
    return f"{g.group} groups of {g.weight[1]} channels under {'x'.join(map(str, g.kernel))}" if small else None


def line_group(node: ir.Node, target: Target) -> object:
    """a 1-D convolution has one group | write it as a two-dimensional one over a map of height 1."""
    w = PackedWindow.of(node)
    if w is None or packing(target).conv.groups_1d or w.group == 1:
        return None
    return f"{w.group} groups"


def stride_values(node: ir.Node, target: Target) -> object:
    """strides are one of {own.packing.conv.strides} | use a stride of {own.packing.conv.any_stride}."""
    w = PackedWindow.of(node)
    if w is None:
        return None
    return next((s for s in w.strides if s not in packing(target).conv.strides), None)


def stride_within_kernel(node: ir.Node, target: Target) -> object:
    """a stride is not larger than the kernel | enlarge the kernel with zeros (--fit does)."""
    w = PackedWindow.of(node)
    if w is None:
        return None
    return next((f"stride {s} > kernel {k}" for s, k in zip(w.strides, w.kernel, strict=True) if s > k), None)


def pad_side(node: ir.Node, target: Target) -> object:
    """pads are at most {own.packing.conv.max_pad} and not larger than the kernel | pad in a node before."""
    w = PackedWindow.of(node)
    if w is None:
        return None
    limits = [min(packing(target).conv.max_pad, k) for k in w.kernel] * 2
    return f"pads {list(w.pads)}" if any(not 0 <= p <= m for p, m in zip(w.pads, limits, strict=True)) else None


def dilation_values(node: ir.Node, target: Target) -> object:
    """dilations are one of {own.packing.conv.dilations} | use an undilated kernel."""
    w = PackedWindow.of(node)
    if w is None:
        return None
    return next((d for d in w.dilations if d not in packing(target).conv.dilations), None)


def depthwise_multiplier(node: ir.Node, target: Target) -> object:
    """a depthwise convolution has as many outputs as inputs | use a multiplier of 1 and concatenate."""
    w = PackedWindow.of(node)
    if w is None or packing(target).conv.depthwise_multiplier or w.group == 1 or w.depthwise:
        return None
    return f"{w.group} inputs, {w.group * w.outputs} outputs" if w.channels == 1 else None


def group_outputs(node: ir.Node, target: Target) -> object:
    """a convolution with one output per group has one input per group | slice the input and convolve each part."""
    w = PackedWindow.of(node)
    if w is None or w.group == 1 or w.depthwise:
        return None
    return f"{w.group} groups of {w.channels} channels" if w.outputs == 1 else None


def one_group(node: ir.Node, target: Target) -> object:
    """a transposed convolution has one group | enlarge the map and convolve it group by group."""
    group = int(ir.attr(node, "group") or 1)
    return f"{group} groups" if group != 1 else None


def undilated(node: ir.Node, target: Target) -> object:
    """a transposed convolution is not dilated | use a kernel with zeros between."""
    w = PackedWindow.of(node)
    if w is None or max(w.dilations) == 1:
        return None
    return f"dilations {list(w.dilations)}"


def conv_line_buffer(node: ir.Node, target: Target) -> object:
    """the input rows under a kernel fit {own.packing.conv.slab} bytes ({own.packing.conv.slab_depthwise} for
    depthwise) along one axis | use fewer channels or a narrower map.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    c = packing(target).conv
    need = min(w.line_buffer(c.channel_align), w.line_buffer(c.channel_align, swapped=True))
    return f"{need} bytes" if need > (c.slab_depthwise if w.depthwise else c.slab) else None


def conv_line_buffer_swapped(node: ir.Node, target: Target) -> object:
    """where the stride is above 1, the input rows under a kernel fit {own.packing.conv.slab} bytes without swapping
    axes | use fewer channels or a narrower map.
    """
    w = PackedWindow.of(node)
    if w is None or max(w.strides) == 1:
        return None
    need, c = w.line_buffer(packing(target).conv.channel_align), packing(target).conv
    return f"{need} bytes" if need > (c.slab_depthwise if w.depthwise else c.slab) else None


def conv_line_buffer_inner(node: ir.Node, target: Target) -> object:
    """the input rows under a kernel, with channels rounded up to 8, fit {own.packing.conv.inner_slab} bytes | use
    fewer channels or a narrower map.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    c = packing(target).conv
    first = w.line_buffer(c.channel_align)
    swapped = first > (c.slab_depthwise if w.depthwise else c.slab)
    need = w.line_buffer(8, c.inner_width, swapped)
    return f"{need} bytes" if need > c.inner_slab else None


def conv_map(node: ir.Node, target: Target) -> object:
    """the input fits {own.packing.conv.max_map} bytes, with channels and width rounded up to 8, and input and output
    together {own.packing.conv.max_maps} | cut the map into tiles of rows.
    """
    w, result = PackedWindow.of(node), sizes(node.outputs[0])
    if w is None or w.map() <= packing(target).conv.slab:
        return None
    one, both = packing(target).conv.max_map, packing(target).conv.max_maps
    need = w.map() + (math.prod(result[1:]) if result is not None else 0)
    if both is not None and need > both:
        return f"{need} bytes"
    return f"an input of {w.map()} bytes" if one is not None and w.map() > one else None


def weight_share(node: ir.Node, target: Target) -> object:
    """the weights of {own.packing.conv.share_outputs} outputs, channels rounded up to 8, fit
    {own.packing.conv.share_weights} bytes | use fewer channels or a smaller kernel.
    """
    w = PackedWindow.of(node)
    if w is None or w.depthwise:
        return None
    need = rounded(w.channels, 8) * w.area * packing(target).conv.share_outputs
    return f"{need} bytes" if need > packing(target).conv.share_weights else None


@unmeasured("as many shares as ran are right; with three times as many the executor crashes, on the host at least")
def weight_shares(node: ir.Node, target: Target) -> object:
    """the weights come in at most {own.packing.conv.max_shares} shares of {own.packing.conv.share_weights} bytes | cut
    the layer over its outputs.
    """
    w = PackedWindow.of(node)
    if w is None or w.depthwise or packing(target).conv.max_shares is None:
        return None
    kind, one = packing(target).conv, rounded(w.channels, 8) * w.area
    outputs = max(kind.share_weights // one // kind.share_outputs * kind.share_outputs, kind.share_outputs)
    shares = math.ceil(w.outputs / outputs)
    return f"{shares} shares" if shares > (packing(target).conv.max_shares or shares) else None


def depthwise_weights(node: ir.Node, target: Target) -> object:
    """the weights of a depthwise convolution, channels rounded up to 8, fit {own.packing.conv.depthwise_weights}
    bytes | convolve the channels in parts.
    """
    w, most = PackedWindow.of(node), packing(target).conv.depthwise_weights
    if w is None or not w.depthwise or most is None:
        return None
    need = rounded(w.channels, 8) * w.area
    return f"{need} bytes" if need > most else None


def input_below_kernel(node: ir.Node, target: Target) -> object:
    """the input is not smaller than the kernel; the packer adds the pads of the rows to the columns and the other way
    round | pad the map in a node before, or cut the kernel.
    """
    w = PackedWindow.of(node)
    if w is None:
        return None
    rows, columns = w.pads[0] + w.pads[2], w.pads[1] + w.pads[3]
    height, width = w.height, w.width
    if packing(target).conv.pre_pad and not _first(node):
        if w.channels < w.kernel[0]:
            height, rows = height + rows, 0
        if w.height < w.kernel[1]:
            width, columns = width + columns, 0
    small = width + rows < w.kernel[1] or height + columns < w.kernel[0]
    return f"{by((w.height, w.width))} under {by(w.kernel)}, pads {list(w.pads)}" if small else None


def _first(node: ir.Node) -> bool:
    """Whether the node reads a graph input, perhaps through its Quant."""
    maker = ir.producer(node.inputs[0])
    return maker is None or maker.op_type == QUANT.name


def input_with_output(node: ir.Node, target: Target) -> object:
    """input and output together fit {target.shared_memory} bytes ({own.packing.conv.memory_depthwise} for depthwise) |
    make the maps smaller.
    """
    w, source, result = PackedWindow.of(node), sizes(node.inputs[0]), sizes(node.outputs[0])
    if target.shared_memory is None or w is None or source is None or result is None:
        return None
    need = math.prod(source[1:]) + math.prod(result[1:])
    limit = packing(target).conv.memory_depthwise if w.depthwise else target.shared_memory
    return f"{need} bytes" if need > limit else None
