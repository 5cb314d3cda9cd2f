"""Float operators that move, generate or select elements, such as slices, padding and gather."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from torch.nn import functional as F

from .float_ops import Attributes, get_int_list, get_torch_dtype, to_int_list

__all__ = ["SHAPE_OPERATORS"]

# ---- shapes -------------------------------------------------------------------------------------


def _reshape(a: Attributes, x: Any, shape: Any) -> Any:
    """Return `x` in the shape that the tensor `shape` holds.

    A size of 0 copies that of `x` unless attribute `allowzero` is set; -1 is inferred.
    """
    target = to_int_list(shape) or []
    if not a.get("allowzero", 0):
        target = [x.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return x.reshape(tuple(target))


def _flatten(a: Attributes, x: Any) -> Any:
    """Return `x` as a matrix: axes before attribute `axis` (default 1), and those from it on."""
    axis = a.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    """Return `x` without the axes `axes` (input or attribute), or without all axes of size 1.

    The latter if no axes are given.
    """
    squeezed = get_int_list(a, "axes", axes)
    return x.squeeze() if squeezed is None else x.squeeze(tuple(squeezed))


def _unsqueeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    """Return `x` with axes of size 1 inserted; `axes` (attribute or input) count in the result."""
    inserted = get_int_list(a, "axes", axes) or []
    rank = x.ndim + len(inserted)
    for axis in sorted(axis % rank for axis in inserted):
        x = x.unsqueeze(axis)
    return x


def _transpose(a: Attributes, x: Any) -> Any:
    """Return `x` with axes permuted by the attribute `perm`, by default in reverse order."""
    return x.permute(*(a.get("perm") or reversed(range(x.ndim)))) if x.ndim else x


def _expand(a: Attributes, x: Any, shape: Any) -> Any:
    """Return `x` broadcast together with the shape that the tensor `shape` holds.

    Axes of size 1 in that shape keep the size of `x`.
    """
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(to_int_list(shape) or ())))


def _shape(a: Attributes, x: Any) -> Any:
    """Return the sizes of axes `start` to `end` (exclusive) of `x` as an int64 tensor.

    Both are attributes; by default all axes.
    """
    return torch.tensor(list(x.shape)[a.get("start", 0) : a.get("end")], dtype=torch.int64)


def _split(a: Attributes, x: Any, sizes: Any = None) -> Any:
    """Split `x` along attribute `axis` (default 0) into a tuple of parts of the given sizes.

    Without `sizes` (input or attribute `split`) there is a part per output of the node, all of the
    same size except the last, which may be smaller.
    """
    axis, split_sizes = a.get("axis", 0), get_int_list(a, "split", sizes)
    if split_sizes is None:
        return tuple(x.split(max(-(-x.shape[axis] // a.output_count), 1), axis))
    return tuple(x.split(split_sizes, axis))


def _slice(
    a: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Any:
    """Select a range of indices of `x` along each of `axes`: from `starts` to `ends`, by `steps`.

    All are tensors of integers. The default axes are the first ones, the default step is 1;
    negative starts and ends count from the end, and negative steps go backwards.
    """
    first, last = to_int_list(starts) or [], to_int_list(ends) or []
    for begin, end, axis, step in zip(
        first,
        last,
        to_int_list(axes) or range(len(first)),
        to_int_list(steps) or [1] * len(first),
        strict=True,
    ):
        indices = list(range(*slice(begin, end, step).indices(x.shape[axis])))
        x = x.index_select(axis, torch.tensor(indices, dtype=torch.int64, device=x.device))
    return x


def _pad(a: Attributes, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    """Return `x` padded, or cropped by negative amounts, along `axes`, by default along all.

    `pads` has all begins, then all ends. The attribute `mode` is "constant" with `value` (default
    0), or a mode of numpy's pad such as "reflect", "edge" and "wrap".
    """
    amounts = to_int_list(pads) or []
    padded_axes = [axis % x.ndim for axis in to_int_list(axes) or range(x.ndim)]
    begins, ends = amounts[: len(padded_axes)], amounts[len(padded_axes) :]
    pads_by_axis = dict(zip(padded_axes, zip(begins, ends, strict=True), strict=True))
    mode = a.get("mode", "constant")
    if mode == "constant":
        flat: list[int] = []
        for axis in reversed(range(x.ndim)):
            flat += pads_by_axis.get(axis, (0, 0))
        return F.pad(x, flat, value=0 if value is None else value.item())
    for axis, (begin, end) in pads_by_axis.items():
        cropped = np.arange(max(-begin, 0), x.shape[axis] - max(-end, 0))
        indices = np.pad(cropped, [max(begin, 0), max(end, 0)], mode=mode)
        x = x.index_select(axis, torch.from_numpy(indices).to(x.device))
    return x


def _space_to_depth(a: Attributes, x: Any) -> Any:
    """Move blocks of b x b pixels to channels: [N, C, H, W] to [N, C b b, H / b, W / b].

    In mode DCR (default) the position in the block is the outer axis of the channels, in CRD the
    channel is.
    """
    (n, c, h, w), b = x.shape, a.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if a.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return (
        x.reshape(n, c, h // b, b, w // b, b).permute(*order).reshape(n, c * b * b, h // b, w // b)
    )


def _depth_to_space(a: Attributes, x: Any) -> Any:
    """Move channels to blocks of b x b pixels: [N, C, H, W] to [N, C / b / b, H b, W b].

    In mode DCR (default) the position in the block is the outer axis of the channels, in CRD the
    channel is.
    """
    (n, c, h, w), b = x.shape, a.get("blocksize")
    if a.get("mode", "DCR") == "DCR":
        blocks = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // b**2, h * b, w * b)


# ---- generation and selection -------------------------------------------------------------------


def _constant_of_shape(a: Attributes, shape: Any) -> Any:
    """Return a tensor of `shape` (a 1-D tensor) filled with attribute `value`, by default 0.0."""
    value = a.get("value")
    fill = torch.zeros(1)
    if value is not None:
        fill = torch.from_numpy(np.array(numpy_helper.to_array(value)))
    return fill.to(shape.device).reshape(()).expand(to_int_list(shape) or [])


def _range(a: Attributes, start: Any, limit: Any, delta: Any) -> Any:
    """Return the numbers from `start` to `limit` (exclusive) by `delta`, all scalar tensors.

    The result has the type of `start`; it is empty if `limit` is not in the direction of `delta`.
    """
    first, last, step = (scalar.reshape(()) for scalar in (start, limit, delta))
    count = max(math.ceil((last.item() - first.item()) / step.item()), 0)
    return first + torch.arange(count, dtype=first.dtype, device=first.device) * step


def _eye(a: Attributes, x: Any) -> Any:
    """Return a matrix with ones on diagonal `k`, of the shape of `x`.

    Its type is the attribute `dtype`, or that of `x`.
    """
    dtype = get_torch_dtype(a, a.get("dtype")) if "dtype" in a else x.dtype
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    return (columns[None] - rows[:, None] == a.get("k", 0)).to(dtype)


def _one_hot(a: Attributes, index: Any, depth: Any, values: Any) -> Any:
    """Return one-hot encodings of `index` along `axis`; `values` are (off, on).

    Negative indices count from the end; out of [-depth, depth) all are off.
    """
    (size,), axis = to_int_list(depth) or [0], a.get("axis", -1)
    axis = axis if axis >= 0 else axis + index.ndim + 1
    wrapped = torch.remainder(index.to(torch.int64), size).unsqueeze(axis)
    outside = ((index < -size) | (index >= size)).unsqueeze(axis)
    steps = torch.arange(size, device=index.device).reshape(-1, *(1,) * (index.ndim - axis))
    return torch.where((wrapped == steps) & ~outside, values[1], values[0])


def _trilu(a: Attributes, x: Any, diagonal: Any = None) -> Any:
    """Return the triangle of the last two axes of `x`, upper unless attribute `upper` is 0.

    It starts at diagonal `diagonal` (a tensor, by default 0); all other elements become 0.
    """
    (k,) = to_int_list(diagonal) or [0]
    return torch.triu(x, k) if a.get("upper", 1) else torch.tril(x, k)


def _reverse_sequence(a: Attributes, x: Any, lengths: Any) -> Any:
    """Reverse the first ``lengths[n]`` steps of each sample n of `x`; the other steps stay.

    The attributes `time_axis` and `batch_axis` are 0 and 1 by default.
    """
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    steps = torch.arange(x.shape[time], device=x.device)[:, None]
    source_steps = torch.where(steps < lengths, lengths - 1 - steps, steps)  # [time, batch]
    time_major = x.movedim((time, batch), (0, 1))
    index = source_steps.reshape(*source_steps.shape, *(1,) * (x.ndim - 2))
    reversed_x = time_major.gather(0, index.expand(time_major.shape))
    return reversed_x.movedim((0, 1), (time, batch))


def _normalize_indices(index: Any, size: Any) -> Any:
    """Return `index` as int64, with `size` added to negative elements, which count from the end.

    `size` is a number, or a tensor that broadcasts with `index`.
    """
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


def _gather(a: Attributes, x: Any, index: Any) -> Any:
    """Return slices of `x` at `index` along attribute `axis`; the axes of `index` replace it.

    The default axis is 0; negative indices count from the end.
    """
    axis = a.get("axis", 0) % x.ndim
    selected = x.index_select(axis, _normalize_indices(index, x.shape[axis]).reshape(-1))
    return selected.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _gather_elements(a: Attributes, x: Any, index: Any) -> Any:
    """Return the element of `x` at each `index` along attribute `axis`.

    All other coordinates are those of the element of `index`, whose shape the result has. The
    default axis is 0; negative indices count from the end.
    """
    axis = a.get("axis", 0)
    return x.gather(axis, _normalize_indices(index, x.shape[axis]))


def _gather_nd(a: Attributes, x: Any, index: Any) -> Any:
    """Select slices of `x` by the index tuples on the last axis of `index`.

    A tuple indexes the axes of `x` after the first `batch_dims` (attribute, default 0), which both
    tensors have in common. Negative indices count from the end.
    """
    batch, depth = a.get("batch_dims", 0), index.shape[-1]
    groups = math.prod(x.shape[:batch])
    inner = x.reshape(groups, *x.shape[batch:])
    sizes = torch.tensor(inner.shape[1 : 1 + depth], device=x.device)
    indices = _normalize_indices(index.reshape(groups, -1, depth), sizes)
    group_indices = torch.arange(groups, device=x.device)[:, None]
    selected = inner[(group_indices, *indices.unbind(-1))]
    return selected.reshape((*index.shape[:-1], *x.shape[batch + depth :]))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(a: Attributes, x: Any, axis: int, index: Any, updates: Any) -> Any:
    """Return `x` with `updates` written at `index` (not negative) along `axis`.

    If the attribute `reduction` is add, mul, max or min, they are combined with the present
    elements.
    """
    reduction = a.get("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[reduction])


def _scatter_elements(a: Attributes, x: Any, index: Any, updates: Any) -> Any:
    """Return `x` with each element of `updates` written at its `index` along attribute `axis`.

    Or combined with the present element by the attribute `reduction`. The default axis is 0;
    negative indices count from the end. `x` is not modified.
    """
    axis = a.get("axis", 0)
    return _scatter(a, x, axis, _normalize_indices(index, x.shape[axis]), updates)


def _scatter_nd(a: Attributes, x: Any, index: Any, updates: Any) -> Any:
    """Return `x` with slices `updates` written at the index tuples on the last axis of `index`.

    The attribute `reduction` (add, mul, max or min) combines them with the present elements
    instead. Negative indices count from the end. `x` is not modified.
    """
    depth = index.shape[-1]
    sizes = x.shape[:depth]
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(depth)], device=x.device)
    indices = _normalize_indices(index, torch.tensor(sizes, device=x.device))
    flat_indices = (indices * strides).sum(-1).reshape(-1, 1)
    slices = x.reshape(math.prod(sizes), -1)
    values = updates.reshape(len(flat_indices), -1)
    return _scatter(a, slices, 0, flat_indices.expand(values.shape), values).reshape(x.shape)


SHAPE_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Concat": lambda a, *xs: torch.cat(xs, a.get("axis")),
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": lambda a, x: torch.tensor(x.numel(), dtype=torch.int64),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda a, x, repeats: x.tile(tuple(to_int_list(repeats) or ())),
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
