"""Resize by whole factors without the operator.

Every element repeated, for linear under a small filter.
nearest     each element k times along its axis: the map as [C, H*W, 1], k copies side by side along
the last axis, read
            again as [C, H, k*W]; and whole rows the same way. The copies are held at one scale:
            exact.
linear, 2   the map u of repeated elements, its edge repeated once, under a depthwise filter w along
each axis:
            ``[1, 2, 1]/4`` for half_pixel (0.25*x[i-1] + 0.75*x[i] and 0.75*x[i] + 0.25*x[i+1]),
            ``[1, 1]/2`` for asymmetric (x[i] and (x[i] + x[i+1])/2). The filter's weights are exact
            in 8 bits: one rounding.
linear, 1/k a depthwise filter that moves by k: of half_pixel the mean of the two elements in the
middle of k, of an
            odd k the one there; of asymmetric the first.
linear      to any other sizes, also with corners aligned, between layers: rows and columns one
after the other as the
            channels of a convolution of one tap, whose weights are what each result takes of each
            element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..formats.data_movement.repeat_resize import COORDINATE_TRANSFORMS, nearest_positions
from ..graph import ir
from ..targets import Target
from ._base import RewriteBuilder, format_sizes
from .constant_arithmetic import is_between_layers

__all__ = ["decompose_resize"]

#: coordinate_transformation_mode -> the filter behind elements that stand twice, and rows of edge in front and behind.
_UPSAMPLE_FILTERS = {
    "half_pixel": ((0.25, 0.5, 0.25), (1, 1)),
    "pytorch_half_pixel": ((0.25, 0.5, 0.25), (1, 1)),
    "asymmetric": ((0.5, 0.5), (0, 1)),
}


def decompose_resize(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a Resize as copies side by side, where the platform has none or none of its mode."""
    if node.op_type != "Resize" or node.domain or ir.get_attr(node, "axes"):
        return None
    source, result = (ir.get_shape(v) or () for v in (node.inputs[0], node.outputs[0]))
    if len(source) != 4 or len(result) != 4:
        return None
    sizes = list(zip(source[1:], result[1:], strict=True))
    if any(not n or not m for n, m in sizes) or sizes[0][0] != sizes[0][1]:
        return None
    mode = ir.get_attr(node, "mode", "nearest")
    whole = all(int(m or 1) % int(n or 1) == 0 for n, m in sizes)
    factors = [int(m or 1) // int(n or 1) for n, m in sizes[1:]] if whole else []
    if mode == "linear":
        smaller = all(int(n or 1) % int(m or 1) == 0 for n, m in sizes)
        done = (
            _decompose_downsample(model, node, target)
            if smaller
            else _decompose_linear_upsample(model, node, factors)
            if whole
            else None
        )
        return done or _decompose_as_matmuls(model, node, target)
    if not whole:
        return None
    if mode != "nearest" or target.can_run("Resize") or not _is_plain_repeat(node, sizes[1:]):
        return None
    make = RewriteBuilder(model, node)
    _emit_nearest_upsample(make, ir.require_input(node), factors)
    make.replace_node()
    return f"each element {_format_repeats(factors)} by copies side by side", "exact"


def _format_repeats(factors: Sequence[int]) -> str:
    return f"{math.prod(factors)} times" if math.prod(factors) > 1 else "once"


def _is_plain_repeat(node: ir.Node, sizes: Sequence[tuple[int | None, int | None]]) -> bool:
    """Whether the nearest element of position i is element i // k, along every axis."""
    for n, m in sizes:
        places = nearest_positions(node, int(n or 1), int(m or 1))
        if places is None or not np.array_equal(
            places, np.arange(int(m or 1)) // (int(m or 1) // int(n or 1))
        ):
            return False
    return True


def _emit_nearest_upsample(
    make: RewriteBuilder, value: ir.Value, factors: Sequence[int]
) -> ir.Value:
    """Return `value` [N, C, H, W] with every element `factors` times along H and W.

    At least one node is made.
    """
    n, c, h, w = ir.require_shape(value)
    c, h, w = int(c or 1), int(h or 1), int(w or 1)
    high, wide = factors
    if high > 1:  # [C*H, W], whole rows
        value = _emit_copies(make, value, [n or "N", c * h, w], high, "rows")
        h *= high
    if wide > 1:
        value = _emit_copies(make, value, [n or "N", c * h * w, 1], wide, "columns")
    return _emit_reshape(make, value, [n or "N", c, h, w * wide], "repeated")


def _emit_copies(
    make: RewriteBuilder, value: ir.Value, shape: Sequence[int | str], count: int, what: str
) -> ir.Value:
    """Return `value`, as [N, A, B] in `shape`, `count` times side by side along the last axis."""
    flat = _emit_reshape(make, value, shape, what)
    return make.concat_parts([flat] * count, 2, [*shape[:2], int(shape[2]) * count])


def _emit_reshape(
    make: RewriteBuilder, value: ir.Value, shape: Sequence[int | str], what: str
) -> ir.Value:
    target = make.constant(np.array([0, *shape[1:]], np.int64), f"{what}_shape")
    return make("Reshape", [value, target], shape, what)


def _decompose_linear_upsample(
    model: ir.Model, node: ir.Node, factors: Sequence[int]
) -> tuple[str, str] | None:
    linear_filter = _UPSAMPLE_FILTERS.get(
        str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"))
    )
    if (
        linear_filter is None
        or not set(factors) <= {1, 2}
        or set(factors) == {1}
        or ir.get_attr(node, "antialias", 0)
    ):
        return None
    taps, (before, after) = linear_filter
    make = RewriteBuilder(model, node)
    value = _emit_nearest_upsample(make, ir.require_input(node), factors)
    channels, kernel = int((ir.get_shape(value) or (1, 1))[1] or 1), np.ones(())
    for axis, factor in enumerate(factors):
        if factor == 2:
            value = _emit_edge_padding(make, value, 2 + axis, before, after)
        kernel = np.multiply.outer(kernel, taps if factor == 2 else (1.0,))
    weight = np.broadcast_to(kernel, (channels, 1, *kernel.shape)).astype(np.float32)
    attributes = {"kernel_shape": list(kernel.shape), "group": channels}
    make(
        "Conv",
        [value, make.constant(np.ascontiguousarray(weight), "filter")],
        list(node.outputs[0].shape or ()),
        "filtered",
        attributes,
    )
    make.replace_node()
    taken = (
        f"each element {_format_repeats(factors)} by copies side by side, under a depthwise filter"
    )
    return taken, "one more rounding of half a step at most"


def _decompose_downsample(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    if (
        target.conv_limits is None
    ):  # nothing is gained where floats stand between integers: one rounding less
        return None
    coordinates = str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"))
    (_, channels, *source), (*_, high, wide) = (
        ir.require_shape(node.inputs[0]),
        ir.require_shape(node.outputs[0]),
    )
    results = (int(high or 1), int(wide or 1))
    strides = [int(n or 1) // m for n, m in zip(source, results, strict=True)]
    if coordinates not in _UPSAMPLE_FILTERS or ir.get_attr(node, "antialias", 0):
        return None
    if not 1 < max(strides) <= target.conv_limits.max_kernel:
        return None
    if not all(_has_scale(node, 2 + axis, 1 / stride) for axis, stride in enumerate(strides)):
        return None
    kernel = np.ones(())
    for stride, count in zip(strides, results, strict=True):
        at = float(
            COORDINATE_TRANSFORMS[coordinates](np.zeros(1), 1 / stride, stride * count, count)[0]
        )
        kernel = np.multiply.outer(kernel, np.maximum(0, 1 - np.abs(np.arange(stride) - at)))
    make = RewriteBuilder(model, node)
    weight = np.broadcast_to(kernel, (int(channels or 1), 1, *kernel.shape)).astype(np.float32)
    attributes = {"kernel_shape": strides, "strides": strides, "group": int(channels or 1)}
    taps = make.constant(np.ascontiguousarray(weight), "filter")
    make(
        "Conv",
        [ir.require_input(node), taps],
        list(node.outputs[0].shape or ()),
        "filtered",
        attributes,
    )
    make.replace_node()
    return (
        f"a depthwise filter {format_sizes(kernel.shape)} that moves by as much",
        "one more rounding of half a step at most",
    )


def _decompose_as_matmuls(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a linear Resize to any sizes as a product by a constant matrix for each axis that changes."""
    coordinates, source = (
        str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel")),
        ir.require_input(node),
    )
    if (
        target.conv_limits is None
        or coordinates not in COORDINATE_TRANSFORMS
        or ir.get_attr(node, "antialias", 0)
    ):
        return None
    if not is_between_layers(node):  # a last one to the size of a picture is the host's
        return None
    batch, channels, high, wide = list(source.shape or ())
    (_, _, rows, columns), (_, _, more_rows, more_columns) = (
        ir.require_shape(v) for v in (source, node.outputs[0])
    )
    more_high, more_wide = int(more_rows or 1), int(more_columns or 1)
    of_rows = _interpolation_matrix(node, 2, int(rows or 1), more_high, coordinates)
    of_columns = _interpolation_matrix(node, 3, int(columns or 1), more_wide, coordinates)
    if of_rows is None or of_columns is None:
        return None
    make = RewriteBuilder(model, node)
    if _is_identity(of_rows) and _is_identity(of_columns):
        make.reshape(source, [int(size or 1) for size in ir.require_shape(source)[1:]], "same")
        make.replace_node()
        return "nothing: the sizes stay", "exact"
    value = make(
        "Transpose", [source], [batch, wide, high, channels], "columns", {"perm": [0, 3, 2, 1]}
    )
    value = _emit_interpolation(
        make, value, of_columns, [batch, more_wide, high, channels], "wider"
    )
    value = make(
        "Transpose", [value], [batch, high, more_wide, channels], "rows", {"perm": [0, 2, 1, 3]}
    )
    value = _emit_interpolation(
        make, value, of_rows, [batch, more_high, more_wide, channels], "higher"
    )
    make(
        "Transpose",
        [value],
        [batch, channels, more_high, more_wide],
        "image",
        {"perm": [0, 3, 1, 2]},
    )
    make.replace_node()
    return (
        "a product by a matrix of shares for each axis",
        "one more rounding of half a step at most",
    )


def _interpolation_matrix(
    node: ir.Node, axis: int, size: int, count: int, coordinates: str
) -> np.ndarray | None:
    """Return what each of `count` results takes of each of `size` elements, [count, size].

    None for other scales.
    """
    if not _has_scale(node, axis, count / size):
        return None
    at = np.clip(
        COORDINATE_TRANSFORMS[coordinates](np.arange(count), count / size, size, count), 0, size - 1
    )
    return np.asarray(np.maximum(0, 1 - np.abs(at[:, None] - np.arange(size))), np.float32)


def _is_identity(shares: np.ndarray) -> bool:
    return np.array_equal(shares, np.eye(len(shares)))


def _emit_interpolation(
    make: RewriteBuilder, value: ir.Value, shares: np.ndarray, shape: Sequence[ir.Dim], what: str
) -> ir.Value:
    """Return `value`, of which the axis behind the batch is mixed by `shares`.

    Itself where that does nothing.
    """
    if _is_identity(shares):
        return value
    weight = make.constant(shares[:, :, None, None], "shares")
    return make("Conv", [value, weight], shape, what, {"kernel_shape": [1, 1]})


def _has_scale(node: ir.Node, axis: int, factor: float) -> bool:
    """Whether an axis of a Resize is scaled by this factor, which its sizes alone would leave open."""
    given = node.inputs[2] if len(node.inputs) > 2 else None
    scales = None if given is None else ir.const_value(given)
    return given is None or (
        scales is not None and (not scales.size or abs(float(scales[axis]) - factor) < 1e-6)
    )


def _emit_edge_padding(
    make: RewriteBuilder, value: ir.Value, axis: int, before: int, after: int
) -> ir.Value:
    """Return `value` with its first and last position along `axis` repeated."""
    shape = list(value.shape or ())
    size = int(ir.require_shape(value)[axis] or 1)
    parts = [value]
    if before:
        parts.insert(0, make.slice_axis(value, axis, 0, 1, "first"))
    if after:
        parts.append(make.slice_axis(value, axis, size - 1, size, "last"))
    shape[axis] = size + before + after
    return make.concat_parts(parts, axis, shape)
