"""Float operators with sliding windows, and resampling, for any number of spatial axes.

Padding is resolved once for all of them (`_resolve_padding`). Pools unfold the windows to further
axes of the tensor, so that all kernels, strides, dilations and ceil modes are one case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from .float_ops import Attributes, to_int_list

__all__ = ["WINDOW_OPERATORS"]


@dataclass(frozen=True)
class _PaddedWindow:
    """A window, with one value per spatial axis.

    `overhang` is how far the last window extends beyond the padded end (ceil_mode).
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    overhang: Sequence[int]


def _resolve_padding(a: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> _PaddedWindow:
    """Return window, strides, dilations and pads of a node as numbers per spatial axis.

    `sizes` are the spatial sizes of the input. ``auto_pad`` is resolved to pads; the overhang is
    the size by which the last window of ``ceil_mode`` extends beyond the padded input, else 0.
    """
    rank = len(kernel)
    strides, dilations = (a.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads, auto_pad = a.get("pads") or [0] * 2 * rank, a.get("auto_pad", "NOTSET")
    begins, ends, overhang = list(pads[:rank]), list(pads[rank:]), [0] * rank
    for axis, size in enumerate(sizes):
        span = dilations[axis] * (kernel[axis] - 1) + 1
        if auto_pad.startswith("SAME"):
            total = max((-(-size // strides[axis]) - 1) * strides[axis] + span - size, 0)
            small, large = total // 2, total - total // 2
            is_upper = auto_pad == "SAME_UPPER"
            begins[axis], ends[axis] = (small, large) if is_upper else (large, small)
        elif auto_pad == "VALID":
            begins[axis] = ends[axis] = 0
        free = size + begins[axis] + ends[axis] - span
        if a.get("ceil_mode", 0):
            steps = -(-free // strides[axis])
            if steps * strides[axis] >= size + begins[axis]:  # it would start beyond the image
                steps -= 1
            overhang[axis] = max(steps * strides[axis] - free, 0)
    return _PaddedWindow(kernel, strides, dilations, begins, ends, overhang)


def _pad(x: Any, window: _PaddedWindow, value: float, with_overhang: bool = True) -> Any:
    """Return `x` with its spatial axes padded with `value` by the pads of `window`.

    By default the overhang, by which the last window extends beyond the padded end, is padded too.
    """
    amounts: list[int] = []
    for axis in reversed(range(len(window.kernel))):
        overhang = window.overhang[axis] if with_overhang else 0
        amounts += [window.begins[axis], window.ends[axis] + overhang]
    return F.pad(x, amounts, value=value) if any(amounts) else x


def _unfold_windows(x: Any, window: _PaddedWindow) -> Any:
    """Return the windows of the padded tensor `x` [N, C, *space] as [N, C, *positions, *kernel]."""
    for axis, size in enumerate(window.kernel):
        dilation = window.dilations[axis]
        span = dilation * (size - 1) + 1
        x = x.unfold(2 + axis, span, window.strides[axis])[..., ::dilation]
    return x


# ---- convolutions -------------------------------------------------------------------------------


def _conv(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    """Return the convolution of `x` with weights `w` and bias `b` (or None), in 1 to 3 axes.

    Padding is that of the attributes `pads` or ``auto_pad``; strides, dilations and group count
    too.
    """
    window = _resolve_padding(a, x.shape[2:], w.shape[2:])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[w.ndim - 3]
    x = _pad(x, window, 0.0)
    return convolve(x, w, b, tuple(window.strides), 0, tuple(window.dilations), a.get("group", 1))


def _conv_transpose(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    """Return the transposed convolution of `x` with `w` and bias `b`, for 1 to 3 spatial axes.

    The full result is cropped or padded as pads, output_padding, output_shape and ``auto_pad`` say.
    `b` may be None.
    """
    rank = w.ndim - 2
    strides, dilations = (a.get(name) or [1] * rank for name in ("strides", "dilations"))
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    y = convolve(x, w, stride=tuple(strides), groups=a.get("group", 1), dilation=tuple(dilations))
    y = F.pad(y, _get_transposed_padding(a, x.shape[2:], w.shape[2:], strides, dilations))
    return y if b is None else y + b.reshape(1, -1, *(1,) * rank)


def _get_transposed_padding(
    a: Attributes,
    input_size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Return the amounts that crop (negative) or pad the full output of a transposed convolution.

    They are in the order of torch's `pad`: last axis first, begin and end of each. `output_shape`,
    or input size times stride for ``auto_pad`` SAME, takes precedence over the pads.
    """
    rank = len(kernel)
    output_padding = a.get("output_padding") or [0] * rank
    pads, auto_pad = a.get("pads") or [0] * 2 * rank, a.get("auto_pad")
    output_shape = a.get("output_shape")
    if output_shape is not None:
        output_shape = output_shape[-rank:]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [size * stride for size, stride in zip(input_size, strides, strict=True)]
    amounts: list[int] = []
    for axis in reversed(range(rank)):
        begin, end = pads[axis], pads[axis + rank]
        if output_shape is not None:
            span = dilations[axis] * (kernel[axis] - 1) + 1
            full_size = strides[axis] * (input_size[axis] - 1) + output_padding[axis] + span
            total = full_size - output_shape[axis]
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            end = total - begin
        amounts += [-begin, output_padding[axis] - end]
    return amounts


# ---- pools --------------------------------------------------------------------------------------


def _max_pool(a: Attributes, x: Any) -> Any:
    """Return the maximum of each window, and for two outputs also its flat index.

    The index counts through the whole batch, in row-major order or with ``storage_order`` 1
    column-major in space.
    """
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    rank = len(window.kernel)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    elements = _unfold_windows(_pad(x, window, lowest), window).flatten(2 + rank)
    if a.output_count == 1:
        return elements.amax(-1)
    # The second output is the flat index of each maximum, row-major or (storage_order)
    # column-major in space.
    is_column_major = bool(a.get("storage_order", 0))
    space = np.arange(math.prod(x.shape[2:])).reshape(
        x.shape[2:], order="F" if is_column_major else "C"
    )
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * rank) * space.size
    flat_indices = torch.from_numpy(images + space).to(x.device)
    index_windows = _unfold_windows(_pad(flat_indices, window, 0), window).flatten(2 + rank)
    maxima, positions = elements.max(-1)
    return maxima, index_windows.gather(-1, positions[..., None])[..., 0]


def _average_pool(a: Attributes, x: Any) -> Any:
    """Return the mean of each window of `x`.

    Padding counts as zeros with ``count_include_pad``, else not at all; the part of the last window
    of ``ceil_mode`` beyond the padded end never counts.
    """
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    inner = tuple(range(2 + len(window.kernel), 2 + 2 * len(window.kernel)))
    total = _unfold_windows(_pad(x, window, 0.0), window).sum(inner)
    ones = x.new_ones(1, 1, *x.shape[2:])
    if a.get("count_include_pad", 0):  # the overhang does not count in any case
        ones = _pad(ones, window, 1.0, with_overhang=False)
        amounts: list[int] = []
        for overhang in reversed(window.overhang):
            amounts += [0, overhang]
        ones = F.pad(ones, amounts)
    else:
        ones = _pad(ones, window, 0.0)
    return total / _unfold_windows(ones, window).sum(inner)


def _lp_pool(a: Attributes, x: Any) -> Any:
    """Return the p-norm of each window of `x`; padding counts as zero.

    p is the attribute `p`, by default 2.
    """
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    elements = _unfold_windows(_pad(x, window, 0.0), window).flatten(2 + len(window.kernel))
    return torch.linalg.vector_norm(elements, a.get("p", 2), -1)


def _get_spatial_axes(x: Any) -> tuple[int, ...]:
    """Return the axes of `x` from 2 on, which come after batch and channel."""
    return tuple(range(2, x.ndim))


def _lrn(a: Attributes, x: Any) -> Any:
    """Return x / (bias + alpha / size * sum)^beta, with the sum of squares of `size` channels.

    These are the channel and its neighbours (axis 1), one more after than before for an even size;
    beyond the ends channels are zero.
    """
    size = a.get("size")
    amounts = [0, 0] * (x.ndim - 2) + [(size - 1) // 2, size // 2]
    total = F.pad(x.square(), amounts).unfold(1, size, 1).sum(-1)
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * total) ** a.get("beta", 0.75)


# ---- resampling ---------------------------------------------------------------------------------


class _ResizedAxis(NamedTuple):
    """An axis to resample: its index, output size, scale, and the start and end of its roi."""

    axis: int
    output_size: int
    scale: float
    roi: tuple[float, float]

    def is_identity(self, x: Any) -> bool:
        """Whether resampling this axis leaves `x` unchanged: same size, scale 1 and full roi."""
        is_same_size = self.output_size == x.shape[self.axis] and self.scale == 1.0
        return is_same_size and self.roi == (0.0, 1.0)


def _resize(a: Attributes, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """Return `x` resampled axis by axis, as the Resize node with attributes `a` does.

    Mode nearest selects elements, linear and cubic multiply by a matrix [out, in]. With
    ``tf_crop_and_resize`` positions outside the input get ``extrapolation_value``. `roi`, `scales`
    and `sizes` are the inputs of the node or None.
    """
    outside = []
    for resized in _resolve_resized_axes(a, x, roi, scales, sizes):
        if resized.is_identity(x):
            continue
        axis, size = resized.axis, x.shape[resized.axis]
        coordinates = _get_source_coordinates(
            a, size, resized.output_size, resized.scale, resized.roi
        )
        if a.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            outside.append((axis, (coordinates < 0) | (coordinates > size - 1)))
        x = _resample_axis(a, x, axis, coordinates, resized.scale)
    for axis, is_outside in outside:
        mask = torch.from_numpy(is_outside).to(x.device).reshape(-1, *(1,) * (x.ndim - axis - 1))
        fill = torch.as_tensor(a.get("extrapolation_value", 0.0), dtype=x.dtype)
        x = torch.where(mask, fill, x)
    return x


def _resolve_resized_axes(
    a: Attributes, x: Any, roi: Any, scales: Any, sizes: Any
) -> list[_ResizedAxis]:
    """Return axis, output size, scale and roi (start, end) of each axis that a Resize resamples.

    `roi`, `scales` and `sizes` are inputs of the node or None. `sizes`, if not empty, takes
    precedence over `scales`, and ``keep_aspect_ratio_policy`` makes its factors equal. Without a
    roi an axis has (0, 1).
    """
    axes = [axis % x.ndim for axis in a.get("axes") or range(x.ndim)]
    input_sizes = [x.shape[axis] for axis in axes]
    if sizes is not None and sizes.numel():
        output_sizes = to_int_list(sizes) or []
        factors = [
            float(np.float32(output_size) / np.float32(size))
            for output_size, size in zip(output_sizes, input_sizes, strict=True)
        ]
        policy = a.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = (min if policy == "not_larger" else max)(factors)
            factors = [factor] * len(axes)
            output_sizes = [math.floor(factor * size + 0.5) for size in input_sizes]
    else:
        factors = [float(scale) for scale in scales.reshape(-1).tolist()]
        output_sizes = [math.floor(size * factors[i]) for i, size in enumerate(input_sizes)]
    bounds = [0.0] * len(axes) + [1.0] * len(axes)
    if roi is not None and roi.numel():
        bounds = [float(bound) for bound in roi.reshape(-1).tolist()]
    return [
        _ResizedAxis(axis, output_sizes[i], factors[i], (bounds[i], bounds[i + len(axes)]))
        for i, axis in enumerate(axes)
    ]


def _resample_axis(a: Attributes, x: Any, axis: int, coordinates: np.ndarray, scale: float) -> Any:
    """Return `x` sampled along `axis` at real input `coordinates`, one per output element.

    In the mode of the node: nearest (indices are clipped), else by interpolation weights.
    """
    mode, size = a.get("mode", "nearest"), x.shape[axis]
    if mode == "nearest":
        rounded = _round_coordinates(coordinates, a.get("nearest_mode", "round_prefer_floor"))
        indices = np.clip(rounded, 0, size - 1).astype(np.int64)
        return x.index_select(axis, torch.from_numpy(indices).to(x.device))
    weights = _make_resample_matrix(a, mode, coordinates, size, scale)
    matrix = torch.from_numpy(weights).to(x.device, x.dtype)
    return (x.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)


def _get_source_coordinates(
    a: Attributes, size: int, output_size: int, factor: float, roi: tuple[float, float]
) -> np.ndarray:
    """Return the real input coordinate of each output along an axis, float32 [output_size].

    Parameters
    ----------
    size, factor, roi
        Size of the input, scale, and start and end of the region (tf_crop_and_resize).
    """
    mode = a.get("coordinate_transformation_mode", "half_pixel")
    x, scale = np.arange(output_size, dtype=np.float32), np.float32(factor)
    half = np.float32(0.5)
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        if output_size <= 1:
            return x * 0
        return x * np.float32(size - 1) / np.float32(output_size - 1)
    if mode == "tf_crop_and_resize":
        start, end = np.float32(roi[0]), np.float32(roi[1])
        if output_size <= 1:
            return x + half * (start + end) * (size - 1)
        return start * (size - 1) + x * ((end - start) * (size - 1) / np.float32(output_size - 1))
    if mode == "pytorch_half_pixel" and output_size <= 1:
        return x * 0
    if mode == "half_pixel_symmetric":
        ratio = np.float32(output_size) / (scale * np.float32(size))
        return np.float32(size) * half * (1 - ratio) + (x + half) / scale - half
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / scale
    return (x + half) / scale - half


def _round_coordinates(coordinates: np.ndarray, mode: str) -> np.ndarray:
    """Return `coordinates` rounded by `mode`, a nearest_mode of Resize; still floats.

    Halves go down in "round_prefer_floor" and up in "round_prefer_ceil".
    """
    if mode == "floor":
        return np.floor(coordinates)
    if mode == "ceil":
        return np.ceil(coordinates)
    if mode == "round_prefer_floor":
        return np.ceil(coordinates - np.float32(0.5))
    return np.floor(coordinates + np.float32(0.5))


def _make_resample_matrix(
    a: Attributes, mode: str, coordinates: np.ndarray, size: int, factor: float
) -> np.ndarray:
    """Return the weight of each input in each output, float64 [outputs, inputs].

    `coordinates` are the outputs' positions in the input of `size`, `factor` is output by input
    size. Inputs beyond the ends count for the end, or not at all with ``exclude_outside``.
    """
    stretch = max(1.0 / factor, 1.0) if a.get("antialias", 0) else 1.0
    reach = (1.0 if mode == "linear" else 2.0) * stretch
    matrix = np.zeros((len(coordinates), size))
    for output, coordinate in enumerate(coordinates.astype(np.float64)):
        inputs = np.arange(math.floor(coordinate - reach), math.ceil(coordinate + reach) + 1)
        weights = _get_interpolation_weight(
            (inputs - coordinate) / stretch, mode, a.get("cubic_coeff_a", -0.75)
        )
        if a.get("exclude_outside", 0):
            weights = np.where((inputs >= 0) & (inputs < size), weights, 0.0)
        np.add.at(matrix[output], np.clip(inputs, 0, size - 1), weights / weights.sum())
    return matrix


def _get_interpolation_weight(distance: np.ndarray, mode: str, a: float) -> np.ndarray:
    """Return the linear or cubic weight of inputs at a signed distance, elementwise.

    0 from a distance of 1 (linear) or 2 (cubic) on; `a` is cubic_coeff_a.
    """
    d = np.abs(distance)
    if mode == "linear":
        return np.maximum(1.0 - d, 0.0)
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0.0))


WINDOW_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda a, x: x.mean(_get_spatial_axes(x), keepdim=True),
    "GlobalLpPool": lambda a, x: torch.linalg.vector_norm(
        x, a.get("p", 2), _get_spatial_axes(x), keepdim=True
    ),
    "GlobalMaxPool": lambda a, x: x.amax(_get_spatial_axes(x), keepdim=True),
    "LRN": _lrn,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "Resize": _resize,
}
