"""Float operators that move numbers, make them or choose among them.

Shapes, slices, paddings, gathers, scatters.
Must not know: graphs, islands.
"""

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

# ---- shapes ------------------------------------------------------------------------------------------------------


def _reshape(a: Attributes, x: Any, shape: Any) -> Any:
    copies = not a.get("allowzero", 0)
    return x.reshape(
        tuple(
            x.shape[i] if n == 0 and copies else n for i, n in enumerate(to_int_list(shape) or ())
        )
    )


def _flatten(a: Attributes, x: Any) -> Any:
    axis = a.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    wanted = get_int_list(a, "axes", axes)
    return x.squeeze() if wanted is None else x.squeeze(tuple(wanted))


def _unsqueeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    wanted = get_int_list(a, "axes", axes) or []
    for axis in sorted(i % (x.ndim + len(wanted)) for i in wanted):
        x = x.unsqueeze(axis)
    return x


def _transpose(a: Attributes, x: Any) -> Any:
    return x.permute(*(a.get("perm") or reversed(range(x.ndim)))) if x.ndim else x


def _expand(a: Attributes, x: Any, shape: Any) -> Any:
    return x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(to_int_list(shape) or ())))


def _shape(a: Attributes, x: Any) -> Any:
    return torch.tensor(list(x.shape)[a.get("start", 0) : a.get("end")], dtype=torch.int64)


def _split(a: Attributes, x: Any, sizes: Any = None) -> Any:
    axis, parts = a.get("axis", 0), get_int_list(a, "split", sizes)
    return tuple(
        x.split(parts if parts is not None else max(-(-x.shape[axis] // a.wanted), 1), axis)
    )


def _slice(
    a: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Any:
    first, last = to_int_list(starts) or [], to_int_list(ends) or []
    for begin, end, axis, step in zip(
        first,
        last,
        to_int_list(axes) or range(len(first)),
        to_int_list(steps) or [1] * len(first),
        strict=True,
    ):
        places = range(*slice(begin, end, step).indices(x.shape[axis]))
        x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return x


def _pad(a: Attributes, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    amounts, along = (
        to_int_list(pads) or [],
        [i % x.ndim for i in to_int_list(axes) or range(x.ndim)],
    )
    around = dict(
        zip(along, zip(amounts[: len(along)], amounts[len(along) :], strict=True), strict=True)
    )
    mode = a.get("mode", "constant")
    if mode == "constant":
        flat = [n for axis in reversed(range(x.ndim)) for n in around.get(axis, (0, 0))]
        return F.pad(x, flat, value=0 if value is None else value.item())
    for axis, pair in around.items():
        begin, end = (max(-n, 0) for n in pair)
        places = np.pad(np.arange(begin, x.shape[axis] - end), [max(n, 0) for n in pair], mode=mode)
        x = x.index_select(axis, torch.from_numpy(places).to(x.device))
    return x


def _space_to_depth(a: Attributes, x: Any) -> Any:
    (n, c, h, w), b = x.shape, a.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if a.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return (
        x.reshape(n, c, h // b, b, w // b, b).permute(*order).reshape(n, c * b * b, h // b, w // b)
    )


def _depth_to_space(a: Attributes, x: Any) -> Any:
    (n, c, h, w), b = x.shape, a.get("blocksize")
    if a.get("mode", "DCR") == "DCR":
        apart = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        apart = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return apart.reshape(n, c // b**2, h * b, w * b)


# ---- made and chosen ---------------------------------------------------------------------------------------------


def _constant_of_shape(a: Attributes, shape: Any) -> Any:
    value = a.get("value")
    fill = (
        torch.zeros(1)
        if value is None
        else torch.from_numpy(np.array(numpy_helper.to_array(value)))
    )
    return fill.to(shape.device).reshape(()).expand(to_int_list(shape) or [])


def _range(a: Attributes, start: Any, limit: Any, delta: Any) -> Any:
    first, last, step = (v.reshape(()) for v in (start, limit, delta))
    count = max(math.ceil((last.item() - first.item()) / step.item()), 0)
    return first + torch.arange(count, dtype=first.dtype, device=first.device) * step


def _eye(a: Attributes, x: Any) -> Any:
    made = get_torch_dtype(a, a.get("dtype")) if "dtype" in a else x.dtype
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
    return (columns[None] - rows[:, None] == a.get("k", 0)).to(made)


def _one_hot(a: Attributes, index: Any, depth: Any, values: Any) -> Any:
    (size,), axis = to_int_list(depth) or [0], a.get("axis", -1)
    axis = axis if axis >= 0 else axis + index.ndim + 1
    places = torch.remainder(index.to(torch.int64), size).unsqueeze(axis)
    outside = ((index < -size) | (index >= size)).unsqueeze(axis)
    steps = torch.arange(size, device=index.device).reshape(-1, *(1,) * (index.ndim - axis))
    return torch.where((places == steps) & ~outside, values[1], values[0])


def _trilu(a: Attributes, x: Any, diagonal: Any = None) -> Any:
    (k,) = to_int_list(diagonal) or [0]
    return torch.triu(x, k) if a.get("upper", 1) else torch.tril(x, k)


def _reverse_sequence(a: Attributes, x: Any, lengths: Any) -> Any:
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    steps = torch.arange(x.shape[time], device=x.device)[:, None]
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)  # [time, batch]
    moved = x.movedim((time, batch), (0, 1))
    index = places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(moved.shape)
    return moved.gather(0, index).movedim((0, 1), (time, batch))


def _normalize_indices(index: Any, size: Any) -> Any:
    """Return places without negative ones."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


def _gather(a: Attributes, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0) % x.ndim
    chosen = x.index_select(axis, _normalize_indices(index, x.shape[axis]).reshape(-1))
    return chosen.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _gather_elements(a: Attributes, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0)
    return x.gather(axis, _normalize_indices(index, x.shape[axis]))


def _gather_nd(a: Attributes, x: Any, index: Any) -> Any:
    batch, depth = a.get("batch_dims", 0), index.shape[-1]
    groups = math.prod(x.shape[:batch])
    inner = x.reshape(groups, *x.shape[batch:])
    sizes = torch.tensor(inner.shape[1 : 1 + depth], device=x.device)
    places = _normalize_indices(index.reshape(groups, -1, depth), sizes)
    own = torch.arange(groups, device=x.device)[:, None]
    return inner[(own, *places.unbind(-1))].reshape((*index.shape[:-1], *x.shape[batch + depth :]))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(a: Attributes, x: Any, axis: int, index: Any, updates: Any) -> Any:
    how = a.get("reduction", "none")
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[how])


def _scatter_elements(a: Attributes, x: Any, index: Any, updates: Any) -> Any:
    axis = a.get("axis", 0)
    return _scatter(a, x, axis, _normalize_indices(index, x.shape[axis]), updates)


def _scatter_nd(a: Attributes, x: Any, index: Any, updates: Any) -> Any:
    depth = index.shape[-1]
    sizes = x.shape[:depth]
    strides = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(depth)], device=x.device)
    places = (
        (_normalize_indices(index, torch.tensor(sizes, device=x.device)) * strides)
        .sum(-1)
        .reshape(-1, 1)
    )
    rows = x.reshape(math.prod(sizes), -1)
    values = updates.reshape(len(places), -1)
    return _scatter(a, rows, 0, places.expand(values.shape), values).reshape(x.shape)


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
