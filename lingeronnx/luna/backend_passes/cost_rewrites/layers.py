"""Cheaper forms of layers: 1x1 depthwise convolutions for BatchNorm2dInt, 1x1 ones for LinearInt.

All compute ``sat8(rsh(sum of products + bias, q_x + q_w - q_o))``. The executor calls two kernels
for each channel of a BatchNorm2dInt, with a thousand cycles before their first elements, and for a
LinearInt two transposes in addition to the product.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....ir import ir
from ....operators.integer_ops import BATCH_NORM2D, CONV2D, LINEAR
from ..node_builders import MAX_CONCAT_INPUTS, POINTWISE_CONV_ATTRIBUTES
from .graph_editor import RewriteEditor, static_shape
from .proposal import RewriteProposal

__all__ = ["propose_depthwise_conv", "propose_pointwise_conv"]

_SCALES = ("scale_x", "scale_w", "scale_o")
_CHANNEL_COUNTS = (2, 4, 8, 16, 32, 64)  # to try if all channels have the same factor
#: Upper limits of the image width; the largest divisor of the area below each is tried.
_MAX_IMAGE_WIDTHS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
_MAX_PARTS = MAX_CONCAT_INPUTS**2  # joined by two levels of iqCats


@dataclass(frozen=True)
class _PointwiseView:
    """A tensor viewed as [1, channels, *image], its channels split over 1x1 depthwise convolutions.

    Attributes
    ----------
    channels
        Total number of channels.
    image
        Height and width.
    part_count
        Number of convolutions.
    """

    channels: int
    image: tuple[int, int]
    part_count: int = 1

    @property
    def channel_ranges(self) -> list[tuple[int, int]]:
        """(first channel, end) of each part, the end excluded; the last part may be shorter."""
        size = -(-self.channels // self.part_count)
        starts = range(0, self.channels, size)
        return [(start, min(start + size, self.channels)) for start in starts]


def propose_depthwise_conv(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose 1x1 depthwise convolutions for a BatchNorm2dInt, in the cheapest supported form.

    They cover all channels or a part each; if all channels have one factor and offset, any number
    of channels may be used. None for other nodes, unless the batch is 1 and factors (int8) and
    offsets (int32) are constant, and if the chip supports no form.
    """
    shape = static_shape(node.inputs[0]) if node.inputs else None
    if node.op_type != BATCH_NORM2D.name or shape is None or shape[0] != 1:
        return None
    arrays = [ir.const_value(value) for value in node.inputs[1:3]]
    constants = [array for array in arrays if array is not None]
    if [array.dtype for array in constants] != [np.int8, np.int32]:
        return None
    is_uniform = all((array == array[0]).all() for array in constants)
    cheapest = _find_cheapest_view(editor, shape, is_uniform)
    if cheapest is None:
        return None
    cycles, view = cheapest
    factor, offset = constants
    count = view.part_count
    label = "a 1x1 depthwise convolution" if count == 1 else f"{count} 1x1 depthwise convolutions"
    return RewriteProposal(
        f"{label} instead of two kernels per channel",
        cycles,
        lambda: _write_depthwise_convs(editor, node, view, factor, offset),
    )


def _write_depthwise_convs(
    editor: RewriteEditor,
    node: ir.Node,
    view: _PointwiseView,
    factor: np.ndarray,
    offset: np.ndarray,
) -> None:
    """Replace BatchNorm2dInt `node` by the 1x1 depthwise convolutions of `view`, in place.

    `factor` and `offset` become weight and bias. Several convolutions read Slices of the channels
    and are joined by an iqCat.
    """
    area = math.prod(view.image)
    # One element per channel of the view; a uniform array may have more or fewer.
    factor, offset = np.resize(factor, view.channels), np.resize(offset, view.channels)
    weight, bias = ir.require_input(node, 1), ir.require_input(node, 2)
    rows = editor.reshape(ir.require_input(node), [view.channels, area], node)
    if view.part_count == 1:
        image = editor.reshape(rows, [1, view.channels, *view.image], node)
        kernel = factor.reshape(-1, 1, 1, 1)
        constants = [
            editor.reshape_constant(weight, kernel.shape, kernel),
            editor.reshape_constant(bias, offset.shape, offset),
        ]
        result = _insert_pointwise_conv(editor, node, image, constants, group=view.channels)
        editor.replace_output(result, node)
        return
    results = []
    for start, end in view.channel_ranges:
        part_rows = editor.slice_rows(rows, start, end, node)
        image = editor.reshape(part_rows, [1, end - start, *view.image], node)
        kernel = factor[start:end].reshape(-1, 1, 1, 1)
        constants = [
            editor.add_constant(f"{weight.name}_from{start}", kernel),
            editor.add_constant(f"{bias.name}_from{start}", offset[start:end]),
        ]
        result = _insert_pointwise_conv(editor, node, image, constants, group=end - start)
        results.append(editor.reshape(result, [end - start, area], node))
    scale = float(ir.get_attr(node, "scale_o"))
    editor.replace_output(editor.concat_rows(results, scale, node), node)


def _find_cheapest_view(
    editor: RewriteEditor, shape: Sequence[int], is_uniform: bool
) -> tuple[float, _PointwiseView] | None:
    """Return (cycles, view) of the cheapest view of a tensor whose convolutions the chip supports.

    None if there is none. A view that is not supported is also split into 2 to `_MAX_PARTS` parts.
    `is_uniform` says that all channels have one factor and offset.
    """
    best: tuple[float, _PointwiseView] | None = None
    views = _list_unsplit_views(shape, is_uniform)
    priced_views = [(_estimate_view_cycles(editor, view), view) for view in views]
    for cycles, view in sorted(priced_views, key=operator.itemgetter(0)):
        if best is not None and best[0] <= cycles:  # a split view costs more than the unsplit one
            break
        if _is_view_supported(editor, view):
            return cycles, view
        for part_count in range(2, _MAX_PARTS + 1):
            split_view = replace(view, part_count=part_count)
            if not _is_view_supported(editor, split_view):
                continue
            split_cycles = _estimate_view_cycles(editor, split_view)
            if best is None or split_cycles < best[0]:
                best = split_cycles, split_view
    return best


def _list_unsplit_views(shape: Sequence[int], is_uniform: bool) -> list[_PointwiseView]:
    """List the views of a tensor of `shape` as an image for one convolution.

    They have the channels of `shape` and, if `is_uniform`, each count of `_CHANNEL_COUNTS` that
    divides the elements, with several image sizes each.
    """
    total = math.prod(shape)
    channel_counts = [shape[1]]
    if is_uniform:
        channel_counts += [count for count in _CHANNEL_COUNTS if total % count == 0]
    views = []
    for channels in dict.fromkeys(channel_counts):
        views += [
            _PointwiseView(channels, image) for image in _iterate_image_sizes(total // channels)
        ]
    return views


def _iterate_image_sizes(area: int) -> Iterator[tuple[int, int]]:
    """Yield (height, width) of images with `area` elements, by increasing width, each once.

    The widths are the largest divisors of the area up to each of `_MAX_IMAGE_WIDTHS`.
    """
    widths = set()
    for max_width in _MAX_IMAGE_WIDTHS:
        widths.add(next(w for w in range(min(max_width, area), 0, -1) if area % w == 0))
    for width in sorted(widths):
        yield area // width, width


def _estimate_view_cycles(editor: RewriteEditor, view: _PointwiseView) -> float:
    """Estimate the cycles of a view: its convolutions, and Slices and an iqCat if it has parts."""
    area = math.prod(view.image)
    cycles = 0.0
    for start, end in view.channel_ranges:
        image_shape = [1, end - start, *view.image]
        cycles += editor.costs.estimate_cycles(
            CONV2D.name, [image_shape, [end - start, 1, 1, 1]], image_shape, group=end - start
        )
    if view.part_count == 1:
        return cycles
    part_bytes = [(end - start) * area for start, end in view.channel_ranges]
    slice_cycles = [
        editor.costs.estimate_slice_cycles(view.channels * area, size) for size in part_bytes
    ]
    return cycles + sum(slice_cycles) + editor.estimate_concat_cycles(part_bytes)


def _is_view_supported(editor: RewriteEditor, view: _PointwiseView) -> bool:
    """Whether the chip supports the convolution of the first, largest part of `view`."""
    start, end = view.channel_ranges[0]
    return _is_conv_supported(
        editor, [1, end - start, *view.image], [end - start, 1, 1, 1], end - start
    )


def _is_conv_supported(
    editor: RewriteEditor, image_shape: Sequence[int], weight_shape: Sequence[int], group: int
) -> bool:
    """Whether the chip computes a 1x1 Conv2dInt with these shapes and `group` correctly.

    The output has batch 1, the weight's outputs and the image's size.
    """
    return editor.is_layer_supported(
        CONV2D.name,
        image_shape,
        weight_shape,
        [1, weight_shape[0], *image_shape[2:]],
        {**POINTWISE_CONV_ATTRIBUTES, "group": group},
    )


def _insert_pointwise_conv(
    editor: RewriteEditor,
    node: ir.Node,
    image: ir.Value,
    constants: Sequence[ir.Value],
    group: int = 1,
) -> ir.Value:
    """Insert a 1x1 convolution of `image` with the scales of `node` before it; return its output.

    `constants` are the weight and, optionally, the bias.
    """
    attributes = {
        **POINTWISE_CONV_ATTRIBUTES,
        "group": group,
        **{key: float(ir.get_attr(node, key)) for key in _SCALES},
        **editor.target.node_attributes.get("", {}),
    }
    outputs, size = (static_shape(constants[0]) or [0])[0], (static_shape(image) or [])[2:]
    return editor.add_operator(
        CONV2D.name, [image, *constants], attributes, [1, outputs, *size], node
    )


def propose_pointwise_conv(editor: RewriteEditor, node: ir.Node) -> RewriteProposal | None:
    """Propose a convolution over a 1x1 image for a LinearInt with one row.

    A diagonal weight matrix becomes a depthwise convolution. None for other nodes, several rows,
    widths other than 8 bits, and if the chip does not support the convolution.
    """
    if node.op_type != LINEAR.name or len(node.inputs) < 2:
        return None
    bit_widths = {ir.get_attr(node, key, 8) for key in ("data_bits", "parameter_bits", "o_bits")}
    shape, weight = static_shape(node.inputs[0]), ir.const_value(node.inputs[1])
    if shape is None or weight is None or weight.dtype != np.int8 or bit_widths != {8}:
        return None
    outputs, inputs = weight.shape
    image_shape, weight_shape, group = [1, inputs, 1, 1], [outputs, inputs, 1, 1], 1
    kernel = weight
    if outputs == inputs > 1 and not (weight - np.diag(np.diagonal(weight))).any():
        kernel, weight_shape, group = np.diagonal(weight), [outputs, 1, 1, 1], outputs
    if math.prod(shape) != inputs:
        return None
    if not _is_conv_supported(editor, image_shape, weight_shape, group):
        return None
    cycles = editor.costs.estimate_cycles(
        CONV2D.name, [image_shape, weight_shape], [1, outputs, 1, 1], group=group
    )

    def write() -> None:
        """Replace `node` by a 1x1 convolution over its input, reshaped to an image, in place."""
        new_weight = editor.reshape_constant(ir.require_input(node, 1), weight_shape, kernel)
        image = editor.reshape(ir.require_input(node), image_shape, node)
        constants = [new_weight, *(value for value in node.inputs[2:] if value is not None)]
        result = _insert_pointwise_conv(editor, node, image, constants, group)
        editor.replace_output(result, node)

    description = "a convolution over a 1x1 image, which needs no transposes"
    return RewriteProposal(description, cycles, write)
