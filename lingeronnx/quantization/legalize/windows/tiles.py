"""Tile a feature map that is too large for the chip: the same convolution or pool on each tile.

A tile with the outputs a .. b-1 along one axis reads ``x[a*s - p .. (b-1)*s - p + (k-1)*d]``;
positions outside the map are the tile's own padding. A pool may be split along its channels as
well. The tiles of a convolution share its weight and bias, and all tiles the scale of the result:
every integer equals that of the untiled layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....ir import float_ops, ir
from ....ir.attributes import AttributeValue
from ....ir.detached_nodes import make_detached_node, make_detached_value
from ....operators.lowerings import find_lowering_rule
from ....targets import Target
from .._base import RewriteBuilder, format_sizes, split_range

__all__ = ["tile_feature_map"]

_MAX_PARTS = 32


class _TileRange(NamedTuple):
    """Input range `start` to `end` - 1 that a tile of the result reads on an axis, with padding."""

    start: int
    end: int
    pad_begin: int
    pad_end: int


class _TiledWindow(NamedTuple):
    """The sliding window of a 2-D convolution or pool, with the sizes of its input and result.

    Attributes
    ----------
    input_shape
        Channels, height and width.
    result
        Height and width of the output.
    kernel, strides, pads, dilations
        As in ONNX.
    """

    input_shape: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def from_node(cls, node: ir.Node) -> _TiledWindow | None:
        """Return the window of `node`, a 2-D Conv or pool; None for other nodes and unknown shapes.

        Also None with `auto_pad` or `ceil_mode`. The batch is left out of all shapes.
        """
        input_shape, result = (
            ir.get_shape(value) or () for value in (node.inputs[0], node.outputs[0])
        )
        if len(input_shape) != 4 or len(result) != 4:
            return None
        kernel = _get_kernel(node)
        if len(kernel) != 2 or None in (*input_shape[1:], *result[1:]):
            return None
        has_implicit_size = ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET"
        if has_implicit_size or ir.get_attr(node, "ceil_mode", 0):
            return None
        return cls(
            _to_ints(input_shape[1:]),
            _to_ints(result[2:]),
            _to_ints(kernel),
            _to_ints(ir.get_attr(node, "strides") or [1, 1]),
            _to_ints(ir.get_attr(node, "pads") or [0] * 4),
            _to_ints(ir.get_attr(node, "dilations") or [1, 1]),
        )

    def tile(self, axis: int, first: int, end: int) -> _TileRange:
        """Return the input range and padding that outputs `first` to `end` - 1 along `axis` need.

        `axis` is 0 for the height, 1 for the width.
        """
        size, stride, pad = self.input_shape[1 + axis], self.strides[axis], self.pads[axis]
        reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        read_start, read_end = first * stride - pad, (end - 1) * stride - pad + reach
        return _TileRange(
            max(read_start, 0), min(read_end, size), max(-read_start, 0), max(read_end - size, 0)
        )


def _get_kernel(node: ir.Node) -> Sequence[Any]:
    """Return the kernel shape of `node`, a Conv or pool; empty if it is unknown.

    The attribute `kernel_shape` counts, otherwise the weights of a Conv.
    """
    kernel: Sequence[Any] | None = ir.get_attr(node, "kernel_shape")
    if not kernel and node.op_type == "Conv":
        kernel = (ir.get_shape(node.inputs[1]) or ())[2:]
    return kernel or ()


def _to_ints(dims: Sequence[Any]) -> tuple[int, ...]:
    """Return `dims` as a tuple of integers; they must be known."""
    return tuple(int(dim) for dim in dims)


def tile_feature_map(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Split the map of a 2-D Conv or pool into as few tiles as meet all limits.

    At most `_MAX_PARTS` tiles: ranges of channels (pools only), rows and columns. A Conv must have
    one group. Does not test whether `node` itself needs a split. Returns the description and the
    cost of the change; None, without a change, if there is no such split.
    """
    if node.domain or node.op_type not in float_ops.WINDOWED_OPS - {"ConvTranspose"}:
        return None
    window, is_conv = _TiledWindow.from_node(node), node.op_type == "Conv"
    if window is None or (is_conv and ir.get_attr(node, "group", 1) != 1):
        return None
    sizes = (window.input_shape[0], *window.result)
    for counts in _iterate_tile_counts(window, is_conv):
        ranges = [split_range(size, count) for size, count in zip(sizes, counts, strict=True)]
        if not _are_tiles_supported(node, window, ranges, target):
            continue
        _emit_tiles(model, node, window, ranges)
        tile_count = math.prod(map(len, ranges))
        map_shape = format_sizes(window.input_shape)
        return f"{node.op_type} on a map of {map_shape} split into {tile_count} tiles", "exact"
    return None


def _iterate_tile_counts(window: _TiledWindow, is_conv: bool) -> Iterator[tuple[int, int, int]]:
    """Yield how many ranges of channels, rows and columns to try for tiling a map.

    Few tiles come first, from 2 to `_MAX_PARTS`; of as many tiles, those with more ranges of
    channels, then of rows. The channels of a Conv are not split.
    """
    max_channels = 1 if is_conv else min(_MAX_PARTS, window.input_shape[0])
    max_rows, max_columns = (min(_MAX_PARTS, size) for size in window.result)
    counts = itertools.product(
        range(1, max_channels + 1), range(1, max_rows + 1), range(1, max_columns + 1)
    )
    candidates = [triple for triple in counts if 1 < math.prod(triple) <= _MAX_PARTS]
    yield from sorted(candidates, key=lambda triple: (math.prod(triple), -triple[0], -triple[1]))


class _MapTile(NamedTuple):
    """Shape of a tile of the input, its pads as in ONNX, and the height and width of its output."""

    channels: int
    height: int
    width: int
    pads: tuple[int, ...]
    result: tuple[int, ...]


def _are_tiles_supported(
    node: ir.Node, window: _TiledWindow, ranges: Sequence[Sequence[tuple[int, int]]], target: Target
) -> bool:
    """Whether every tile (ranges of channels, rows and columns of the result) meets all limits.

    A tile of a pool with several outputs must not become a global pool.
    """
    shapes: set[_MapTile] = set()
    for channel_range, *spatial_ranges in itertools.product(*ranges):
        rows, columns = (window.tile(axis, *bounds) for axis, bounds in enumerate(spatial_ranges))
        height, width = rows.end - rows.start, columns.end - columns.start
        if min(height, width) <= 0:
            return False
        pads = (rows.pad_begin, columns.pad_begin, rows.pad_end, columns.pad_end)
        result = tuple(end - start for start, end in spatial_ranges)
        channels = channel_range[1] - channel_range[0]
        shapes.add(_MapTile(channels, height, width, pads, result))
    for shape in shapes:
        is_global = shape.result == (1, 1) != window.result
        if node.op_type != "Conv" and is_global:
            return False
        tile = _make_tile_node(node, shape)
        op, _ = find_lowering_rule(tile, target)
        if op is None or op.find_violations(tile, target):
            return False
    return True


def _make_tile_node(node: ir.Node, shape: _MapTile) -> ir.Node:
    """Create a detached copy of `node`, a Conv or pool, on a tile of batch 1, to check its limits.

    Shapes and pads are those of the tile; the weight is shared.
    """
    in_shape = [1, shape.channels, shape.height, shape.width]
    inputs = [make_detached_value(in_shape, like=ir.require_input(node), computed=True)]
    outputs = shape.channels
    if node.op_type == "Conv":
        weight = ir.require_input(node, 1)
        weight_shape = _to_ints(ir.require_shape(weight))
        constant = ir.const_value(weight)
        inputs.append(make_detached_value(weight_shape, like=weight, constant=constant))
        outputs = weight_shape[0]
    attributes = {**_get_attributes(node), "pads": list(shape.pads)}
    return make_detached_node(node.op_type, inputs, [1, outputs, *shape.result], attributes)


def _get_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """Return the attributes of `node` as a dict of name to Python value."""
    return {name: ir.get_attr(node, name) for name in node.attributes}


def _emit_tiles(
    model: ir.Model,
    node: ir.Node,
    window: _TiledWindow,
    ranges: Sequence[Sequence[tuple[int, int]]],
) -> None:
    """Replace `node` by copies on tiles, for these ranges of channels, rows and columns.

    `ranges` are (start, end), those of rows and columns of the result; tiles are joined by Concats.
    """
    builder = RewriteBuilder(model, node)
    channel_ranges, row_ranges, column_ranges = ranges
    channel_parts = []
    for start, end in channel_ranges:
        source = builder.slice_axis(ir.require_input(node), 1, start, end, "channels")
        outputs = end - start
        if node.op_type == "Conv":
            outputs = (ir.get_shape(builder.result) or (1, 1))[1] or outputs
        row_parts = []
        for row_range in row_ranges:
            rows = window.tile(0, *row_range)
            band = builder.slice_axis(source, 2, rows.start, rows.end, "rows")
            column_parts = [
                _emit_tile(builder, band, window, rows, outputs, row_range, column_range)
                for column_range in column_ranges
            ]
            row_parts.append(_concat_parts(builder, column_parts, 3))
        channel_parts.append(_concat_parts(builder, row_parts, 2))
    _concat_parts(builder, channel_parts, 1)
    builder.replace_node()


def _emit_tile(
    builder: RewriteBuilder,
    band: ir.Value,
    window: _TiledWindow,
    rows: _TileRange,
    outputs: int,
    row_range: tuple[int, int],
    column_range: tuple[int, int],
) -> ir.Value:
    """Append the convolution or pool on one tile of `band`, a range of input rows.

    Return its output. `rows` are the input rows and pads of `row_range` of the result;
    `column_range` are columns of the result, `outputs` its channels.
    """
    node = builder.node
    columns = window.tile(1, *column_range)
    tile = builder.slice_axis(band, 3, columns.start, columns.end, "columns")
    height, width = row_range[1] - row_range[0], column_range[1] - column_range[0]
    shape = [(builder.result.shape or ["N"])[0], outputs, height, width]
    pads = [rows.pad_begin, columns.pad_begin, rows.pad_end, columns.pad_end]
    attributes = {**_get_attributes(node), "pads": pads}
    return builder(node.op_type, [tile, *node.inputs[1:]], shape, "tile", attributes)


def _concat_parts(builder: RewriteBuilder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """Append the concatenation of `parts` along `axis`; return a single part itself."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape or ())
    shape[axis] = sum(int(ir.require_shape(part)[axis] or 0) for part in parts)
    return builder.concat_parts(parts, axis, shape)
