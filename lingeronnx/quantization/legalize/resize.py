"""Replace a Resize by operators that the platform has.

nearest, integer factors
    Each element k times along its axis: the map viewed as [C, H*W, 1], k copies concatenated along
    the last axis, viewed again as [C, H, k*W]; rows are repeated in the same way. The copies have
    one scale: exact.
linear, factor 2
    The map u of repeated elements, its edge repeated once, under a depthwise filter along each
    axis: ``[1, 2, 1]/4`` for half_pixel (0.25*x[i-1] + 0.75*x[i] and 0.75*x[i] + 0.25*x[i+1]),
    ``[1, 1]/2`` for asymmetric (x[i] and (x[i] + x[i+1])/2). The filter's weights are exact in 8
    bits: one rounding.
linear, factor 1/k
    A depthwise filter with stride k: for half_pixel the mean of the two middle elements of k, for
    odd k the middle one; for asymmetric the first.
linear, other sizes
    Also with aligned corners, between layers: rows and columns in turn as the channels of a 1x1
    convolution, whose weights are the interpolation matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...ir import ir
from ...ir.attributes import AttributeValue
from ...operators.repeat_resize.integer_op import COORDINATE_TRANSFORMS, nearest_positions
from ...targets import Target
from ._base import RewriteBuilder, format_sizes, get_sizes, is_standard_op
from .constant_arithmetic import is_between_layers

__all__ = ["decompose_resize"]

#: coordinate_transformation_mode -> (filter after repeating elements, (edge rows before, after)).
_UPSAMPLE_FILTERS = {
    "half_pixel": ((0.25, 0.5, 0.25), (1, 1)),
    "pytorch_half_pixel": ((0.25, 0.5, 0.25), (1, 1)),
    "asymmetric": ((0.5, 0.5), (0, 1)),
}


def decompose_resize(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a Resize that the platform does not support by copies, filters or matrix products.

    Mode "linear" becomes a depthwise filter or products with interpolation matrices; mode "nearest"
    with integer factors becomes concatenated copies if the target has no Resize and each element is
    repeated in place. Only images with known sizes. Returns the description and the cost of the
    change, or None without a change.
    """
    if not is_standard_op(node, "Resize") or ir.get_attr(node, "axes"):
        return None
    sizes = _get_spatial_sizes(node)
    if sizes is None:
        return None
    mode = ir.get_attr(node, "mode", "nearest")
    factors = None
    if all(out_size % in_size == 0 for in_size, out_size in sizes):
        factors = [out_size // in_size for in_size, out_size in sizes]
    if mode == "linear":
        return _decompose_linear(model, node, target, sizes, factors)
    if mode != "nearest" or factors is None or target.can_run("Resize"):
        return None
    if not _is_plain_repeat(node, sizes):
        return None
    builder = RewriteBuilder(model, node)
    _emit_nearest_upsample(builder, ir.require_input(node), factors)
    builder.replace_node()
    return f"each element repeated {_format_repeats(factors)} by concatenated copies", "exact"


def _get_spatial_sizes(node: ir.Node) -> list[tuple[int, int]] | None:
    """Return (input size, output size) of the height, then of the width, of the Resize `node`.

    None if a rank is not 4, a size is unknown or zero, or the number of channels changes.
    """
    shapes = [ir.get_shape(value) or () for value in (node.inputs[0], node.outputs[0])]
    if any(len(shape) != 4 or not all(shape[1:]) for shape in shapes):
        return None
    in_shape, out_shape = (get_sizes(shape[1:]) for shape in shapes)
    if in_shape[0] != out_shape[0]:
        return None
    return list(zip(in_shape[1:], out_shape[1:], strict=True))


def _decompose_linear(
    model: ir.Model,
    node: ir.Node,
    target: Target,
    sizes: Sequence[tuple[int, int]],
    factors: Sequence[int] | None,
) -> tuple[str, str] | None:
    """Replace a linear Resize by a depthwise filter, or by matrix products if no filter applies.

    `sizes` are (input, output) of height and width; `factors` are their integer scale factors, or
    None if one is not an integer. Returns the description and the cost of the change, or None
    without a change.
    """
    result = None
    if all(in_size % out_size == 0 for in_size, out_size in sizes):
        result = _decompose_downsample(model, node, target)
    elif factors is not None:
        result = _decompose_linear_upsample(model, node, factors)
    return result or _decompose_as_matmuls(model, node, target)


def _format_repeats(factors: Sequence[int]) -> str:
    """Format the product of `factors` as "3 times"; "once" for a product of 1."""
    count = math.prod(factors)
    return f"{count} times" if count > 1 else "once"


def _is_plain_repeat(node: ir.Node, sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether a nearest Resize takes input position i // k for output position i, on every axis.

    `sizes` are (input, output) of each axis, the latter k times the former.
    """
    for in_size, out_size in sizes:
        positions = nearest_positions(node, in_size, out_size)
        expected = np.arange(out_size) // (out_size // in_size)
        if positions is None or not np.array_equal(positions, expected):
            return False
    return True


def _emit_nearest_upsample(
    builder: RewriteBuilder, value: ir.Value, factors: Sequence[int]
) -> ir.Value:
    """Append the repetition of every element of `value` [N, C, H, W] by `factors` along H and W.

    Returns the result; appends a Reshape even if both factors are 1.
    """
    batch, *dims = ir.require_shape(value)
    channels, height, width = (int(dim or 1) for dim in dims)
    height_factor, width_factor = factors
    if height_factor > 1:  # [C*H, W]: repeat rows
        shape = [batch or "N", channels * height, width]
        value = _emit_copies(builder, value, shape, height_factor, "rows")
        height *= height_factor
    if width_factor > 1:
        shape = [batch or "N", channels * height * width, 1]
        value = _emit_copies(builder, value, shape, width_factor, "columns")
    shape = [batch or "N", channels, height, width * width_factor]
    return _emit_reshape(builder, value, shape, "repeated")


def _emit_copies(
    builder: RewriteBuilder, value: ir.Value, shape: Sequence[int | str], count: int, suffix: str
) -> ir.Value:
    """Append `count` copies of `value`, reshaped to `shape` [N, A, B], along the last axis.

    Returns the result [N, A, count * B]. Names end in `suffix`.
    """
    flat = _emit_reshape(builder, value, shape, suffix)
    return builder.concat_parts([flat] * count, 2, [*shape[:2], int(shape[2]) * count])


def _emit_reshape(
    builder: RewriteBuilder, value: ir.Value, shape: Sequence[int | str], suffix: str
) -> ir.Value:
    """Append a Reshape of `value` to `shape`, whose batch keeps its size, and return its output."""
    shape_constant = builder.constant(np.array([0, *shape[1:]], np.int64), f"{suffix}_shape")
    return builder("Reshape", [value, shape_constant], shape, suffix)


def _decompose_linear_upsample(
    model: ir.Model, node: ir.Node, factors: Sequence[int]
) -> tuple[str, str] | None:
    """Replace a linear Resize by factors 1 and 2 by repeated elements and a depthwise filter.

    Only if a factor is 2, without antialiasing, and for coordinates "half_pixel" or "asymmetric".
    `factors` are those of height and width. Returns the description and the cost of the change, or
    None without a change.
    """
    coordinates = str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"))
    if coordinates not in _UPSAMPLE_FILTERS or ir.get_attr(node, "antialias", 0):
        return None
    if not set(factors) <= {1, 2} or set(factors) == {1}:
        return None
    taps, (rows_before, rows_after) = _UPSAMPLE_FILTERS[coordinates]
    builder = RewriteBuilder(model, node)
    value = _emit_nearest_upsample(builder, ir.require_input(node), factors)
    channels, kernel = int((ir.get_shape(value) or (1, 1))[1] or 1), np.ones(())
    for axis, factor in enumerate(factors):
        if factor == 2:
            value = _emit_edge_padding(builder, value, 2 + axis, rows_before, rows_after)
        kernel = np.multiply.outer(kernel, taps if factor == 2 else (1.0,))
    _emit_depthwise_filter(
        builder, value, kernel, channels, {"kernel_shape": list(kernel.shape), "group": channels}
    )
    builder.replace_node()
    description = (
        f"each element repeated {_format_repeats(factors)} by concatenated copies, then a "
        "depthwise filter"
    )
    return description, "one more rounding of half a step at most"


def _emit_depthwise_filter(
    builder: RewriteBuilder,
    value: ir.Value,
    kernel: np.ndarray,
    channels: int,
    attributes: Mapping[str, AttributeValue],
) -> None:
    """Append the Conv that applies `kernel` to each channel and gives the node's result.

    `kernel` is [height, width]; `attributes` are those of the Conv.
    """
    weight = np.broadcast_to(kernel, (channels, 1, *kernel.shape)).astype(np.float32)
    constant = builder.constant(np.ascontiguousarray(weight), "filter")
    shape = list(builder.result.shape or ())
    builder("Conv", [value, constant], shape, "filtered", attributes)


def _decompose_downsample(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a linear Resize by 1/k by a depthwise filter with stride k.

    Only on targets with convolution limits, for a largest k above 1 and within their largest
    kernel, and for coordinates "half_pixel" or "asymmetric"; the taps are 1 - the distance to the
    sampled position, at least 0. Returns the description and the cost of the change, or None
    without a change.
    """
    if target.conv_limits is None:  # in float there is one rounding less without this rewrite
        return None
    coordinates = str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"))
    if coordinates not in _UPSAMPLE_FILTERS or ir.get_attr(node, "antialias", 0):
        return None
    channels, *in_sizes = get_sizes(ir.require_shape(node.inputs[0])[1:])
    out_sizes = get_sizes(ir.require_shape(node.outputs[0])[2:])
    strides = [in_size // out_size for in_size, out_size in zip(in_sizes, out_sizes, strict=True)]
    if not 1 < max(strides) <= target.conv_limits.max_kernel:
        return None
    if not all(_has_scale(node, 2 + axis, 1 / stride) for axis, stride in enumerate(strides)):
        return None
    transform = COORDINATE_TRANSFORMS[coordinates]
    kernel = np.ones(())
    for stride, out_size in zip(strides, out_sizes, strict=True):
        position = float(transform(np.zeros(1), 1 / stride, stride * out_size, out_size)[0])
        taps = np.maximum(0, 1 - np.abs(np.arange(stride) - position))
        kernel = np.multiply.outer(kernel, taps)
    builder = RewriteBuilder(model, node)
    attributes: dict[str, AttributeValue] = {
        "kernel_shape": strides,
        "strides": strides,
        "group": channels,
    }
    _emit_depthwise_filter(builder, ir.require_input(node), kernel, channels, attributes)
    builder.replace_node()
    return (
        f"a {format_sizes(kernel.shape)} depthwise filter with the same stride",
        "one more rounding of half a step at most",
    )


def _decompose_as_matmuls(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a linear Resize to any size by a product with a matrix for each resized axis.

    Only between layers on targets with convolution limits, without antialiasing. A Resize that
    changes nothing becomes a Reshape. Returns the description and the cost of the change, or None
    without a change.
    """
    coordinates = str(ir.get_attr(node, "coordinate_transformation_mode", "half_pixel"))
    if target.conv_limits is None or coordinates not in COORDINATE_TRANSFORMS:
        return None
    # After the last layer, resizing to the size of a picture is left to the host.
    if ir.get_attr(node, "antialias", 0) or not is_between_layers(node):
        return None
    source = ir.require_input(node)
    in_sizes = get_sizes(ir.require_shape(source)[1:])
    out_sizes = get_sizes(ir.require_shape(node.outputs[0])[1:])
    row_matrix = _interpolation_matrix(node, 2, in_sizes[1], out_sizes[1], coordinates)
    column_matrix = _interpolation_matrix(node, 3, in_sizes[2], out_sizes[2], coordinates)
    if row_matrix is None or column_matrix is None:
        return None
    builder = RewriteBuilder(model, node)
    if _is_identity(row_matrix) and _is_identity(column_matrix):
        builder.reshape(source, in_sizes, "same")
        builder.replace_node()
        return "removed: it does not change the size", "exact"
    _emit_separable_resize(builder, source, row_matrix, column_matrix)
    builder.replace_node()
    return (
        "a product with an interpolation matrix for each axis",
        "one more rounding of half a step at most",
    )


def _emit_separable_resize(
    builder: RewriteBuilder, source: ir.Value, row_matrix: np.ndarray, column_matrix: np.ndarray
) -> None:
    """Append the products of columns and rows of `source` [N, C, H, W] with their matrices.

    Each matrix is (out size, in size). The result is [N, C, H', W'], the output of the last node.
    """
    batch, channels, height, width = list(source.shape or ())
    out_height, out_width = len(row_matrix), len(column_matrix)
    value = builder(
        "Transpose", [source], [batch, width, height, channels], "columns", {"perm": [0, 3, 2, 1]}
    )
    value = _emit_interpolation(
        builder, value, column_matrix, [batch, out_width, height, channels], "wider"
    )
    value = builder(
        "Transpose",
        [value],
        [batch, height, out_width, channels],
        "rows",
        {"perm": [0, 2, 1, 3]},
    )
    value = _emit_interpolation(
        builder, value, row_matrix, [batch, out_height, out_width, channels], "higher"
    )
    builder(
        "Transpose",
        [value],
        [batch, channels, out_height, out_width],
        "image",
        {"perm": [0, 3, 1, 2]},
    )


def _interpolation_matrix(
    node: ir.Node, axis: int, in_size: int, out_size: int, coordinates: str
) -> np.ndarray | None:
    """Return the float32 weights of input elements for each output element, (out_size, in_size).

    `coordinates` is the coordinate mode. None if the scale that the Resize `node` gives for `axis`
    differs from the ratio of the sizes.
    """
    scale = out_size / in_size
    if not _has_scale(node, axis, scale):
        return None
    positions = COORDINATE_TRANSFORMS[coordinates](np.arange(out_size), scale, in_size, out_size)
    positions = np.clip(positions, 0, in_size - 1)
    distances = np.abs(positions[:, None] - np.arange(in_size))
    return np.asarray(np.maximum(0, 1 - distances), np.float32)


def _is_identity(matrix: np.ndarray) -> bool:
    """Whether `matrix` is square and the identity."""
    return np.array_equal(matrix, np.eye(len(matrix)))


def _emit_interpolation(
    builder: RewriteBuilder,
    value: ir.Value,
    matrix: np.ndarray,
    shape: Sequence[ir.Dim],
    suffix: str,
) -> ir.Value:
    """Append the product of axis 1 of `value` with `matrix` by a 1x1 Conv, and return it.

    `matrix` is (out size, in size), and `shape` that of the result. For the identity, `value`
    itself is returned.
    """
    if _is_identity(matrix):
        return value
    weight = builder.constant(matrix[:, :, None, None], "shares")
    return builder("Conv", [value, weight], shape, suffix, {"kernel_shape": [1, 1]})


def _has_scale(node: ir.Node, axis: int, factor: float) -> bool:
    """Whether the Resize `node` scales `axis` by `factor` (within 1e-6), or states sizes instead.

    False for scales that are computed at run time.
    """
    scales_input = node.inputs[2] if len(node.inputs) > 2 else None
    if scales_input is None:
        return True
    scales = ir.const_value(scales_input)
    if scales is None:
        return False
    return not scales.size or abs(float(scales[axis]) - factor) < 1e-6


def _emit_edge_padding(
    builder: RewriteBuilder, value: ir.Value, axis: int, before: int, after: int
) -> ir.Value:
    """Append nodes that repeat the first and last position of `value` along `axis`.

    Return the result. `before` and `after` are 0 or 1, the numbers of repeated positions.
    """
    shape = list(value.shape or ())
    size = int(ir.require_shape(value)[axis] or 1)
    parts = [value]
    if before:
        parts.insert(0, builder.slice_axis(value, axis, 0, 1, "first"))
    if after:
        parts.append(builder.slice_axis(value, axis, size - 1, size, "last"))
    shape[axis] = size + before + after
    return builder.concat_parts(parts, axis, shape)
