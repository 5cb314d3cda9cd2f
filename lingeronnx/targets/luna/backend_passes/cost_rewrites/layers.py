"""Other forms of layers.

Factors of channels as a depthwise convolution, a product of one row as one over a point.
All compute ``sat8(rsh(sum of products + bias, q_x + q_w - q_o))``. The executor calls two kernels
for each channel of a BatchNorm2dInt, with a thousand cycles before their first elements, and for a
LinearInt two transposes beside the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .....formats import BATCH_NORM2D, CONV2D, LINEAR
from .....graph import ir
from ..node_builders import POINTWISE_CONV_ATTRIBUTES
from .graph_editor import MAX_CONCAT_INPUTS, RewriteEditor, static_shape
from .proposal import RewriteProposal

__all__ = ["propose_depthwise_conv", "propose_pointwise_conv"]

_SCALES = ("scale_x", "scale_w", "scale_o")
_CHANNEL_COUNTS = (2, 4, 8, 16, 32, 64)  # of a tensor with one factor for all
_MAX_IMAGE_WIDTHS = (
    1,
    4,
    8,
    16,
    32,
    64,
    128,
    256,
    512,
)  # of an image, at most: the largest divisor below each is tried


@dataclass(frozen=True)
class _PointwiseView:
    """A convolution of size 1x1 over [1, C, H, W], of `part_count` times as many channels in all.

    Weight [N, 1 or C, 1, 1].
    channels : of the whole. image : H and W.
    """

    channels: int
    image: tuple[int, int]
    part_count: int = 1

    @property
    def channel_ranges(self) -> list[tuple[int, int]]:
        """Where each part begins and ends."""
        each = -(-self.channels // self.part_count)
        return [
            (start, min(start + each, self.channels)) for start in range(0, self.channels, each)
        ]


def propose_depthwise_conv(sheet: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """A BatchNorm2dInt as depthwise convolutions of size 1x1, over all channels or some at a time."""
    shape = static_shape(node.inputs[0]) if node.inputs else None
    if node.op_type != BATCH_NORM2D.name or shape is None or shape[0] != 1:
        return None
    held = [ir.const_value(value) for value in node.inputs[1:3]]
    arrays = [array for array in held if array is not None]
    if len(arrays) != 2 or arrays[0].dtype != np.int8 or arrays[1].dtype != np.int32:
        return None
    found = _find_cheapest_view(sheet, shape, all((array == array[0]).all() for array in arrays))
    if found is None:
        return None
    cycles, view = found

    def write() -> None:
        area = math.prod(view.image)
        factor, offset = (
            np.resize(array, view.channels) for array in arrays
        )  # as many, or one for all
        known = [ir.require_input(node, 1), ir.require_input(node, 2)]
        lines, made = sheet.reshape(ir.require_input(node), [view.channels, area], node), []
        for start, end in view.channel_ranges:
            some = lines if view.part_count == 1 else sheet.slice_rows(lines, start, end, node)
            over = sheet.reshape(some, [1, end - start, *view.image], node)
            weight, bias = factor[start:end].reshape(-1, 1, 1, 1), offset[start:end]
            if view.part_count == 1:
                held = [
                    sheet.held(v, a.shape, a) for v, a in zip(known, (weight, bias), strict=True)
                ]
            else:
                held = [
                    sheet.add_constant(f"{v.name}_from{start}", a)
                    for v, a in zip(known, (weight, bias), strict=True)
                ]
            result = _insert_pointwise_conv(sheet, node, over, held, group=end - start)
            made.append(
                result if view.part_count == 1 else sheet.reshape(result, [end - start, area], node)
            )
        whole = (
            made[0]
            if view.part_count == 1
            else sheet.concat_rows(made, float(ir.get_attr(node, "scale_o")), node)
        )
        sheet.replace_output(whole, node)

    count = (
        "a depthwise convolution"
        if view.part_count == 1
        else f"{view.part_count} depthwise convolutions"
    )
    return RewriteProposal(
        f"{count} of size 1x1, in place of two kernels for each channel", cycles, write
    )


def _find_cheapest_view(
    sheet: RewriteEditor, shape: Sequence[int], has_uniform_factor: bool
) -> tuple[float, _PointwiseView] | None:
    """Return the cheapest view of a tensor under which the chip takes the convolutions, and what they cost."""
    total = math.prod(shape)
    channels = dict.fromkeys(
        [shape[1], *(c for c in _CHANNEL_COUNTS if has_uniform_factor and total % c == 0)]
    )
    whole = [
        _PointwiseView(c, image) for c in channels for image in _iterate_image_sizes(total // c)
    ]
    best: tuple[float, _PointwiseView] | None = None
    for cycles, number in sorted(
        (_estimate_view_cycles(sheet, view), number) for number, view in enumerate(whole)
    ):
        view = whole[number]
        if best is not None and best[0] <= cycles:  # in parts it costs more than as a whole
            break
        if _is_view_supported(sheet, view):
            return cycles, view
        for some in (replace(view, part_count=parts) for parts in range(2, MAX_CONCAT_INPUTS + 1)):
            if _is_view_supported(sheet, some) and (
                best is None or _estimate_view_cycles(sheet, some) < best[0]
            ):
                best = _estimate_view_cycles(sheet, some), some
    return best


def _iterate_image_sizes(area: int) -> Iterator[tuple[int, int]]:
    """Yield heights and widths of images of so many points."""
    widths = {
        next(w for w in range(min(most, area), 0, -1) if area % w == 0)
        for most in _MAX_IMAGE_WIDTHS
    }
    yield from ((area // width, width) for width in sorted(widths))


def _estimate_view_cycles(sheet: RewriteEditor, view: _PointwiseView) -> float:
    area = math.prod(view.image)
    cycles = 0.0
    for start, end in view.channel_ranges:
        over = [1, end - start, *view.image]
        cycles += sheet.costs.estimate_cycles(
            CONV2D.name, [over, [end - start, 1, 1, 1]], over, group=end - start
        )
    if view.part_count == 1:
        return cycles
    pieces = [(end - start) * area for start, end in view.channel_ranges]
    return (
        cycles
        + sum(sheet.costs.estimate_slice_cycles(view.channels * area, each) for each in pieces)
        + sheet.costs.estimate_concat_cycles(pieces)
    )


def _is_view_supported(sheet: RewriteEditor, view: _PointwiseView) -> bool:
    """Whether the chip takes the convolutions of a view."""
    start, end = view.channel_ranges[0]
    return _is_conv_supported(
        sheet, [1, end - start, *view.image], [end - start, 1, 1, 1], end - start
    )


def _is_conv_supported(
    sheet: RewriteEditor, over: Sequence[int], weight: Sequence[int], group: int
) -> bool:
    """Whether the chip takes a convolution of size 1x1 of a tensor of sizes `over`."""
    return sheet.is_layer_supported(
        CONV2D.name,
        over,
        weight,
        [1, weight[0], *over[2:]],
        {**POINTWISE_CONV_ATTRIBUTES, "group": group},
    )


def _insert_pointwise_conv(
    sheet: RewriteEditor, node: ir.Node, over: ir.Value, held: Sequence[ir.Value], group: int = 1
) -> ir.Value:
    """Return what a convolution of size 1x1 gives at the scales of `node`.

    Held : its weight, and bias or none.
    """
    attributes = {
        **POINTWISE_CONV_ATTRIBUTES,
        "group": group,
        **{key: float(ir.get_attr(node, key)) for key in _SCALES},
        **sheet.target.node_attributes.get("", {}),
    }
    shape = [1, (static_shape(held[0]) or [0])[0], *(static_shape(over) or [])[2:]]
    return sheet.add_operator(CONV2D.name, [over, *held], attributes, shape, node)


def propose_pointwise_conv(sheet: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """A LinearInt of one row as a convolution over one point."""
    if node.op_type != LINEAR.name or len(node.inputs) < 2:
        return None
    shape, weight = static_shape(node.inputs[0]), ir.const_value(node.inputs[1])
    plain = all(ir.get_attr(node, key, 8) == 8 for key in ("data_bits", "parameter_bits", "o_bits"))
    if shape is None or weight is None or weight.dtype != np.int8 or not plain:
        return None
    outputs, inputs = weight.shape
    over, square, group = [1, inputs, 1, 1], [outputs, inputs, 1, 1], 1
    if outputs == inputs > 1 and not (weight - np.diag(np.diagonal(weight))).any():
        square, group = [outputs, 1, 1, 1], outputs
    if math.prod(shape) != inputs or not _is_conv_supported(sheet, over, square, group):
        return None
    cycles = sheet.costs.estimate_cycles(
        CONV2D.name, [over, square], [1, outputs, 1, 1], group=group
    )

    def write() -> None:
        held = ir.require_input(node, 1)
        factor = sheet.held(held, square, np.diagonal(weight) if group > 1 else weight)
        point = sheet.reshape(ir.require_input(node), over, node)
        given = [factor, *(v for v in node.inputs[2:] if v is not None)]
        sheet.replace_output(_insert_pointwise_conv(sheet, node, point, given, group), node)

    what = "a convolution over one point, which turns nothing"
    return RewriteProposal(what, cycles, write)
