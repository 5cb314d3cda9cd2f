"""A map too large for the chip in tiles.

The same convolution or pool on parts of the map, side by side again, exact.
A tile of the outputs a .. b-1 along one axis reads ``x[a*s - p .. (b-1)*s - p + (k-1)*d]``; what
lies outside of the map is the tile's own padding. A pool may be cut along its channels as well. The
tiles of a convolution share its weight and bias, and all tiles the scale of the whole: every
integer is that of the layer in one piece.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph import ir, operators
from ...graph.attributes import AttributeValue
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...ops import find_lowering_rule
from ...targets import Target
from .._base import RewriteBuilder, format_sizes, split_range

__all__ = ["tile_feature_map"]

_MOST_PARTS = 32


@dataclass(frozen=True)
class _TiledWindow:
    """What slides over the map [channels, height, width].

    Pads as in ONNX, result without the channels.
    """

    input_shape: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def from_node(cls, node: ir.Node) -> _TiledWindow | None:
        """Read a Conv or a pool of two dimensions; None for anything else."""
        source, result = ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.outputs[0]) or ()
        if len(source) != 4 or len(result) != 4 or None in (*source[1:], *result[1:]):
            return None
        weight = ir.get_shape(node.inputs[1]) or () if node.op_type == "Conv" else ()
        kernel = ir.get_attr(node, "kernel_shape") or weight[2:]
        if (
            ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET"
            or ir.get_attr(node, "ceil_mode", 0)
            or len(kernel) != 2
        ):
            return None
        ones, zeros = [1, 1], [0] * 4
        return cls(
            _to_ints(source[1:]),
            _to_ints(result[2:]),
            _to_ints(kernel),
            _to_ints(ir.get_attr(node, "strides") or ones),
            _to_ints(ir.get_attr(node, "pads") or zeros),
            _to_ints(ir.get_attr(node, "dilations") or ones),
        )

    def tile(self, axis: int, first: int, last: int) -> tuple[int, int, int, int]:
        """Return where the outputs first ..

        Last-1 along `axis` begin and end in the map, and their two paddings.
        """
        size, stride, pad = self.input_shape[1 + axis], self.strides[axis], self.pads[axis]
        begin = first * stride - pad
        end = (last - 1) * stride - pad + (self.kernel[axis] - 1) * self.dilations[axis] + 1
        return max(begin, 0), min(end, size), max(-begin, 0), max(end - size, 0)


def _to_ints(dims: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(d) for d in dims)


def tile_feature_map(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Cut the map into as few tiles as are within the limits."""
    if node.domain or node.op_type not in operators.WINDOWED_OPS - {"ConvTranspose"}:
        return None
    window = _TiledWindow.from_node(node)
    convolves = node.op_type == "Conv"
    if window is None or (convolves and ir.get_attr(node, "group", 1) != 1):
        return None
    for parts in _iter_tile_counts(window, convolves):
        ranges = [
            split_range(size, count)
            for size, count in zip((window.input_shape[0], *window.result), parts, strict=True)
        ]
        if _tiles_fit_limits(node, window, ranges, target):
            _emit_tiles(model, node, window, ranges)
            count = math.prod(map(len, ranges))
            what = (
                f"{node.op_type} on a map of {format_sizes(window.input_shape)} in {count} "
                "tiles side by side"
            )
            return what, "exact"
    return None


def _iter_tile_counts(window: _TiledWindow, convolves: bool) -> Iterator[tuple[int, int, int]]:
    """Yield how often to cut channels, rows and columns.

    Few parts first, of as many the channels, then the rows.
    """
    most = [1 if convolves else min(_MOST_PARTS, window.input_shape[0])]
    most += [min(_MOST_PARTS, size) for size in window.result]
    ways = itertools.product(*(range(1, m + 1) for m in most))
    few = [(c, h, w) for c, h, w in ways if 1 < c * h * w <= _MOST_PARTS]
    yield from sorted(few, key=lambda way: (math.prod(way), -way[0], -way[1]))


def _tiles_fit_limits(
    node: ir.Node, window: _TiledWindow, ranges: Sequence[Sequence[tuple[int, int]]], target: Target
) -> bool:
    """Whether every tile is within the limits, and more than one window of a pool that has several."""
    distinct: set[tuple[int, ...]] = set()
    for among, *places in itertools.product(*ranges):
        cut = [window.tile(axis, *place) for axis, place in enumerate(places)]
        sizes = [end - begin for begin, end, _, _ in cut]
        if min(sizes) <= 0:
            return False
        pads = [c[2] for c in cut] + [c[3] for c in cut]
        distinct.add(
            (among[1] - among[0], *sizes, *pads, *(last - first for first, last in places))
        )
    for channels, height, width, *rest in distinct:
        pads, result = rest[:4], rest[4:]
        if node.op_type != "Conv" and result == [1, 1] != list(window.result):
            return False
        tile = _make_tile_node(node, (channels, height, width), pads, result)
        op, _ = find_lowering_rule(tile, target)
        if op is None or op.find_violations(tile, target):
            return False
    return True


def _make_tile_node(
    node: ir.Node, source: Sequence[int], pads: Sequence[int], result: Sequence[int]
) -> ir.Node:
    """Return a node like `node` on a map of another size."""
    inputs, outputs = (
        [make_detached_value([1, *source], like=ir.require_input(node), computed=True)],
        source[0],
    )
    if node.op_type == "Conv":
        weight = ir.require_input(node, 1)
        sizes = _to_ints(ir.require_shape(weight))
        inputs.append(make_detached_value(sizes, like=weight, constant=ir.const_value(weight)))
        outputs = sizes[0]
    return make_detached_node(
        node.op_type, inputs, [1, outputs, *result], {**_get_attributes(node), "pads": list(pads)}
    )


def _get_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    return {name: ir.get_attr(node, name) for name in node.attributes}


def _emit_tiles(
    model: ir.Model,
    node: ir.Node,
    window: _TiledWindow,
    ranges: Sequence[Sequence[tuple[int, int]]],
) -> None:
    make = RewriteBuilder(model, node)
    batch = (make.result.shape or ["N"])[0]
    outputs = (ir.get_shape(make.result) or (1, 1))[1] if node.op_type == "Conv" else None

    def joined(parts: list[ir.Value], axis: int) -> ir.Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape or ())
        shape[axis] = sum(int(ir.require_shape(part)[axis] or 0) for part in parts)
        return make.concat_parts(parts, axis, shape)

    of_channels = []
    for first, last in ranges[0]:
        source = make.slice_axis(ir.require_input(node), 1, first, last, "channels")
        of_rows = []
        for rows in ranges[1]:
            top, bottom, *above = window.tile(0, *rows)
            band = make.slice_axis(source, 2, top, bottom, "rows")
            of_columns = []
            for columns in ranges[2]:
                left, right, *beside = window.tile(1, *columns)
                tile = make.slice_axis(band, 3, left, right, "columns")
                shape = [batch, outputs or last - first, rows[1] - rows[0], columns[1] - columns[0]]
                pads = [above[0], beside[0], above[1], beside[1]]
                of_columns.append(
                    make(
                        node.op_type,
                        [tile, *node.inputs[1:]],
                        shape,
                        "tile",
                        {**_get_attributes(node), "pads": pads},
                    )
                )
            of_rows.append(joined(of_columns, 3))
        of_channels.append(joined(of_rows, 2))
    joined(of_channels, 1)
    make.replace_node()
