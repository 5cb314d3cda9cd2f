"""Float operators that slide windows over space, and those that resample it.

Any number of spatial axes.
Padding is worked out once for all of them (`_resolve_padding`); pools look at the windows as
further axes of the tensor, so that every kernel, stride, dilation and ceil_mode is one case. Must
not know: graphs, islands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from .float_ops import Attributes, to_int_list

__all__ = ["WINDOW_OPERATORS"]


@dataclass(frozen=True)
class _PaddedWindow:
    """A window: one value per spatial axis.

    `overhang`: how far the last one hangs over the padded end (ceil_mode).
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    begins: Sequence[int]
    ends: Sequence[int]
    overhang: Sequence[int]


def _resolve_padding(a: Attributes, sizes: Sequence[int], kernel: Sequence[int]) -> _PaddedWindow:
    """Return the window of a node on space of `sizes`, ``auto_pad`` and ``ceil_mode`` worked out."""
    rank = len(kernel)
    strides, dilations = (a.get(name) or [1] * rank for name in ("strides", "dilations"))
    pads, auto = a.get("pads") or [0] * 2 * rank, a.get("auto_pad", "NOTSET")
    begins, ends, more = list(pads[:rank]), list(pads[rank:]), [0] * rank
    for i, size in enumerate(sizes):
        reach = dilations[i] * (kernel[i] - 1) + 1
        if auto.startswith("SAME"):
            total = max((-(-size // strides[i]) - 1) * strides[i] + reach - size, 0)
            small, large = total // 2, total - total // 2
            begins[i], ends[i] = (small, large) if auto == "SAME_UPPER" else (large, small)
        elif auto == "VALID":
            begins[i] = ends[i] = 0
        free = size + begins[i] + ends[i] - reach
        if a.get("ceil_mode", 0):
            steps = -(-free // strides[i])
            if steps * strides[i] >= size + begins[i]:  # it would begin behind the image
                steps -= 1
            more[i] = max(steps * strides[i] - free, 0)
    return _PaddedWindow(kernel, strides, dilations, begins, ends, more)


def _pad(x: Any, window: _PaddedWindow, value: float, further: bool = True) -> Any:
    around: list[int] = []
    for i in reversed(range(len(window.kernel))):
        around += [window.begins[i], window.ends[i] + (window.overhang[i] if further else 0)]
    return F.pad(x, around, value=value) if any(around) else x


def _unfold_windows(x: Any, window: _PaddedWindow) -> Any:
    """Return the windows of a padded x [N, C, *space] as [N, C, *places, *kernel]."""
    for i, (size, stride, dilation) in enumerate(
        zip(window.kernel, window.strides, window.dilations, strict=True)
    ):
        x = x.unfold(2 + i, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return x


# ---- convolutions ------------------------------------------------------------------------------------------------


def _conv(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    window = _resolve_padding(a, x.shape[2:], w.shape[2:])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[w.ndim - 3]
    x = _pad(x, window, 0.0)
    return convolve(x, w, b, tuple(window.strides), 0, tuple(window.dilations), a.get("group", 1))


def _conv_transpose(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    rank, kernel = w.ndim - 2, w.shape[2:]
    strides, dilations = (a.get(name) or [1] * rank for name in ("strides", "dilations"))
    added, pads, auto = (
        a.get("output_padding") or [0] * rank,
        a.get("pads") or [0] * 2 * rank,
        a.get("auto_pad"),
    )
    wanted = a.get("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    y = transposed(x, w, stride=tuple(strides), groups=a.get("group", 1), dilation=tuple(dilations))
    around: list[int] = []
    for i in reversed(range(rank)):
        begin, end = pads[i], pads[i + rank]
        if wanted is not None:
            total = (
                strides[i] * (x.shape[2 + i] - 1)
                + added[i]
                + dilations[i] * (kernel[i] - 1)
                + 1
                - wanted[i]
            )
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end = total - begin
        around += [-begin, added[i] - end]
    y = F.pad(y, around)
    return y if b is None else y + b.reshape(1, -1, *(1,) * rank)


# ---- pools -------------------------------------------------------------------------------------------------------


def _max_pool(a: Attributes, x: Any) -> Any:
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    rank = len(window.kernel)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    seen = _unfold_windows(_pad(x, window, lowest), window).flatten(2 + rank)
    if a.wanted == 1:
        return seen.amax(-1)
    # where each maximum stands in the whole tensor, space counted by rows or (storage_order) by
    # columns
    space = np.arange(math.prod(x.shape[2:])).reshape(
        x.shape[2:], order="F" if a.get("storage_order", 0) else "C"
    )
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * rank) * space.size
    places = torch.from_numpy(images + space).to(x.device)
    numbered = _unfold_windows(_pad(places, window, 0), window).flatten(2 + rank)
    best, at = seen.max(-1)
    return best, numbered.gather(-1, at[..., None])[..., 0]


def _average_pool(a: Attributes, x: Any) -> Any:
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    inner = tuple(range(2 + len(window.kernel), 2 + 2 * len(window.kernel)))
    total = _unfold_windows(_pad(x, window, 0.0), window).sum(inner)
    ones = x.new_ones(1, 1, *x.shape[2:])
    if a.get("count_include_pad", 0):  # what hangs over the padding counts in no case
        ones = F.pad(
            _pad(ones, window, 1.0, further=False),
            [n for more in reversed(window.overhang) for n in (0, more)],
        )
    else:
        ones = _pad(ones, window, 0.0)
    return total / _unfold_windows(ones, window).sum(inner)


def _lp_pool(a: Attributes, x: Any) -> Any:
    window = _resolve_padding(a, x.shape[2:], a.get("kernel_shape"))
    seen = _unfold_windows(_pad(x, window, 0.0), window).flatten(2 + len(window.kernel))
    return torch.linalg.vector_norm(seen, a.get("p", 2), -1)


def _get_spatial_axes(x: Any) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _lrn(a: Attributes, x: Any) -> Any:
    size = a.get("size")
    around = [0, 0] * (x.ndim - 2) + [(size - 1) // 2, size // 2]
    total = F.pad(x.square(), around).unfold(1, size, 1).sum(-1)
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * total) ** a.get("beta", 0.75)


# ---- resampling --------------------------------------------------------------------------------------------------


def _resize(a: Attributes, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """Resample axis by axis: nearest by choosing, linear and cubic by a matrix [out, in]."""
    along = [i % x.ndim for i in a.get("axes") or range(x.ndim)]
    given_sizes = to_int_list(sizes) if sizes is not None and sizes.numel() else None
    factors = [] if given_sizes is not None else [float(s) for s in scales.reshape(-1).tolist()]
    if given_sizes is not None:
        factors = [
            float(np.float32(n) / np.float32(x.shape[i]))
            for i, n in zip(along, given_sizes, strict=True)
        ]
        policy = a.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            same = (min if policy == "not_larger" else max)(factors)
            factors = [same] * len(along)
            given_sizes = [math.floor(same * x.shape[i] + 0.5) for i in along]
    corners = (
        None if roi is None or not roi.numel() else [float(v) for v in roi.reshape(-1).tolist()]
    )
    mode, outside = a.get("mode", "nearest"), []
    for order, axis in enumerate(along):
        size, factor = x.shape[axis], factors[order]
        wanted = given_sizes[order] if given_sizes is not None else math.floor(size * factor)
        place = (corners[order], corners[order + len(along)]) if corners else (0.0, 1.0)
        if wanted == size and factor == 1.0 and place == (0.0, 1.0):
            continue
        at = _get_source_coordinates(a, size, wanted, factor, place)
        if a.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            outside.append((axis, (at < 0) | (at > size - 1)))
        if mode == "nearest":
            index = np.clip(
                _round_coordinates(at, a.get("nearest_mode", "round_prefer_floor")), 0, size - 1
            )
            x = x.index_select(axis, torch.from_numpy(index.astype(np.int64)).to(x.device))
            continue
        matrix = torch.from_numpy(_make_resample_matrix(a, mode, at, size, factor)).to(
            x.device, x.dtype
        )
        x = (x.movedim(axis, -1) @ matrix.t()).movedim(-1, axis)
    for axis, where in outside:
        gaps = torch.from_numpy(where).to(x.device).reshape(-1, *(1,) * (x.ndim - axis - 1))
        x = torch.where(gaps, torch.as_tensor(a.get("extrapolation_value", 0.0), dtype=x.dtype), x)
    return x


def _get_source_coordinates(
    a: Attributes, size: int, wanted: int, factor: float, roi: tuple[float, float]
) -> np.ndarray:
    """Return where in the input, real numbers, each of the `wanted` outputs lies."""
    mode = a.get("coordinate_transformation_mode", "half_pixel")
    x, scale = np.arange(wanted, dtype=np.float32), np.float32(factor)
    half = np.float32(0.5)
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * np.float32(size - 1) / np.float32(wanted - 1) if wanted > 1 else x * 0
    if mode == "tf_crop_and_resize":
        first, last = (np.float32(v) for v in roi)
        if wanted > 1:
            return first * (size - 1) + x * ((last - first) * (size - 1) / np.float32(wanted - 1))
        return x + half * (first + last) * (size - 1)
    if mode == "pytorch_half_pixel" and wanted <= 1:
        return x * 0
    if mode == "half_pixel_symmetric":
        share = np.float32(wanted) / (scale * np.float32(size))
        return np.float32(size) * half * (1 - share) + (x + half) / scale - half
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / scale
    return (x + half) / scale - half


def _round_coordinates(at: np.ndarray, mode: str) -> np.ndarray:
    if mode == "floor":
        return np.floor(at)
    if mode == "ceil":
        return np.ceil(at)
    return (
        np.ceil(at - np.float32(0.5))
        if mode == "round_prefer_floor"
        else np.floor(at + np.float32(0.5))
    )


def _make_resample_matrix(
    a: Attributes, mode: str, at: np.ndarray, size: int, factor: float
) -> np.ndarray:
    """Return float64 [outputs, inputs]: how much of each input is in each output."""
    spread = max(1.0 / factor, 1.0) if a.get("antialias", 0) else 1.0
    reach = 1.0 if mode == "linear" else 2.0
    matrix = np.zeros((len(at), size))
    for row, place in enumerate(at.astype(np.float64)):
        near = np.arange(math.floor(place - reach * spread), math.ceil(place + reach * spread) + 1)
        weights = _get_interpolation_weight(
            (near - place) / spread, mode, a.get("cubic_coeff_a", -0.75)
        )
        if a.get("exclude_outside", 0):
            weights = np.where((near >= 0) & (near < size), weights, 0.0)
        np.add.at(matrix[row], np.clip(near, 0, size - 1), weights / weights.sum())
    return matrix


def _get_interpolation_weight(d: np.ndarray, mode: str, a: float) -> np.ndarray:
    """Return the weight of an input at distance `d`."""
    d = np.abs(d)
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
