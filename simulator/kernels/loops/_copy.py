"""Compiled copies of elements of any type.

Owns: `make_strided_copy`, a copy along up to five axes, `make_indexed_copy`, a copy by flat
indices, `broadcast_operands` for operands that broadcast. Must not know: operators, rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator._jit import jit, register_inline
from simulator.kernel import Array, TensorSpec
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef, Scratch

__all__ = [
    "FLAT_IN",
    "FLAT_OUT",
    "make_copy",
    "fill_flat",
    "to_rank4_shape",
    "physical_shape",
    "make_strided_copy",
    "broadcast_operands",
    "make_broadcast_arguments",
    "make_indexed_copy",
    "merge_axes",
    "slice_repeated",
]

FLAT_IN, FLAT_OUT = InputRef(0, (-1,)), OutputRef(0, (-1,))
_AXES = 5


@jit
def _copy_strided(x: Array, first: int, steps: tuple[int, ...], out: Array) -> None:
    """Fill out [A, B, C, D, E] with x[first + i * steps[0] + j * steps[1] + ...] for flat x.

    x and out have the same type. (i, j, ...) is the index in out; the five steps are in elements.
    """
    _, b, c, d, e = out.shape
    step_a, step_b, step_c, step_d, step_e = steps
    for i in range(out.shape[0]):
        for j in range(b):
            for k in range(c):
                base = first + i * step_a + j * step_b + k * step_c
                if step_e == 1:
                    for m in range(d):
                        row, source = out[i, j, k, m], x[base + m * step_d : base + m * step_d + e]
                        for n in range(e):
                            row[n] = source[n]
                else:
                    for m in range(d):
                        row, start = out[i, j, k, m], base + m * step_d
                        for n in range(e):
                            row[n] = x[start + n * step_e]


@jit
def _copy_indexed(x: Array, index: Array, fill: Any, out: Array) -> None:
    """Fill out [N, T] with x[n, index[t]] for x [N, S], or with `fill` where index[t] < 0.

    index is int32 [T]; x, fill and out have the same type.
    """
    for n in range(out.shape[0]):
        source, target = x[n], out[n]
        for i in range(index.size):
            target[i] = source[index[i]] if index[i] >= 0 else fill


@jit
def _copy(x: Array, out: Array) -> None:
    """Copy flat x to flat out, element by element."""
    for i in range(out.size):
        out[i] = x[i]


@jit
def fill_flat(x: Array, value: int) -> None:
    """Set all elements of flat x to `value`; NumPy's `x[:] = value` compiles far longer."""
    for i in range(x.size):
        x[i] = value


def make_copy() -> NativeLoop:
    """Return a loop that copies input 0 to output 0, element by element."""
    return NativeLoop(_copy, (FLAT_IN, FLAT_OUT))


def make_strided_copy(
    first: int, sizes: Sequence[int], steps: Sequence[int], index: int = 0
) -> NativeLoop | None:
    """Return a loop that copies elements at regular distances, or None for more than `_AXES` axes.

    The axes are those of `merge_axes`.

    Parameters
    ----------
    first
        Flat index of the first element in the input.
    sizes
        Shape of the output for one sample; the first axis follows the batch.
    steps
        Distance of neighbouring elements in the input along each axis.
    index
        Index of the output that the loop fills; its input is input 0.
    """
    merged = merge_axes(sizes, steps)
    if len(merged) > _AXES:
        return None
    padded = [merged[0], *[(1, 0)] * (_AXES - len(merged)), *merged[1:]]
    if padded[-1][0] == 1:
        padded[-1] = (1, 1)
    shape = (-1, *(size for size, _ in padded[1:]))
    return NativeLoop(
        _copy_strided, (FLAT_IN, first, tuple(step for _, step in padded), OutputRef(index, shape))
    )


def merge_axes(sizes: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return (size, distance of neighbouring elements) of the axes that a copy has to tell apart.

    Of the axes after the first one, those of size 1 are left out, and adjacent ones that are one
    run of equal distances are one. `sizes` and `steps` are those of all axes.
    """
    merged = [(sizes[0], steps[0])]
    for size, step in zip(sizes[1:], steps[1:], strict=True):
        if len(merged) > 1 and merged[-1][1] == size * step:
            merged[-1] = (merged[-1][0] * size, step)
        elif size != 1:
            merged.append((size, step))
    return merged


def make_indexed_copy(size: int, index: np.ndarray, fill: int | None, kind: np.dtype) -> NativeLoop:
    """Return a loop that selects elements of every sample by their flat indices.

    Parameters
    ----------
    size
        Number of elements of a sample.
    index
        Flat indices, in the order of the output; -1 selects `fill`.
    fill
        Value for indices of -1; None if there are none.
    kind
        Type of the elements.
    """
    flat = np.ascontiguousarray(index, np.int32).reshape(-1)
    value = np.zeros(1, kind)[0] if fill is None else np.array(fill).astype(kind)[()]
    return NativeLoop(
        _copy_indexed, (InputRef(0, (-1, size)), flat, value, OutputRef(0, (-1, flat.size)))
    )


def physical_shape(spec: TensorSpec, channel_last: bool) -> tuple[int, ...]:
    """Return the shape of a tensor's array: [N, *space, C] if channel-last, else that of `spec`.

    Only tensors of rank 3 and 4 have a channel-last layout; others keep their shape.
    """
    if channel_last and len(spec.shape) in (3, 4):
        return (spec.shape[0], *spec.shape[2:], spec.shape[1])
    return spec.shape


def to_rank4_shape(shape: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return `shape` with four axes, for an operand of an operation of rank `rank`; None above 4.

    Leading axes of size 1 are added to an operand of lower rank; otherwise axis 0 becomes -1, the
    batch, followed by axes of size 1.
    """
    if rank > 4:
        return None
    if len(shape) < rank or not shape:
        return (1,) * (4 - len(shape)) + tuple(shape)
    return (-1, *[1] * (4 - rank), *shape[1:])


@register_inline
def slice_repeated(x: Any, first: Any, count: Any) -> Any:
    """Return `count` elements of flat x from `first` on, where x repeats after its last element.

    `first` and the size of x are multiples of `count`.
    """
    start = first % x.size
    return x[start : start + count]


@register_inline
def broadcast_operands(x: Any, y: Any, wide_x: Any, wide_y: Any, out: Any) -> Any:
    """Return x and y [A, B, C, D] broadcast to the shape of `out`, flat.

    An operand of that size is returned itself; another is expanded into its scratch memory, flat,
    of its type, with at least out.size elements. Axes have the size in `out` or 1.
    """
    if x.size < out.size:
        _expand(x, out.shape, wide_x)
    if y.size < out.size:
        _expand(y, out.shape, wide_y)
    return (
        view_as(x, (x.size,)) if x.size == out.size else wide_x[: out.size],
        view_as(y, (y.size,)) if y.size == out.size else wide_y[: out.size],
    )


@jit
def _expand(x: Array, shape: tuple[int, ...], out: Array) -> None:
    """Fill the first elements of flat out with x [A, B, C, D] broadcast to `shape`, flattened."""
    a, b, c, d = shape
    for i in range(a):
        for j in range(b):
            for k in range(c):
                row = x[
                    i if x.shape[0] > 1 else 0,
                    j if x.shape[1] > 1 else 0,
                    k if x.shape[2] > 1 else 0,
                ]
                first = ((i * b + j) * c + k) * d
                target = out[first : first + d]
                for m in range(d):
                    target[m] = row[m if x.shape[3] == d else 0]


def _merge_axes(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Merge neighbouring axes behind the batch along which the same of `shapes` broadcast.

    The last one is the shape that the others broadcast to. Axes of size 1 there are dropped.
    """
    rank = len(shapes[-1])
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    groups: list[list[int]] = []
    last_pattern = None
    for axis in range(1, rank):
        pattern = [shape[axis] == 1 for shape in aligned]
        if pattern[-1]:
            continue
        if pattern == last_pattern:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last_pattern = pattern
    merged: list[tuple[int, ...]] = [(shape[0],) for shape in aligned]
    for group in groups:
        merged = [
            (*sizes, math.prod(map(shape.__getitem__, group)))
            for sizes, shape in zip(merged, aligned, strict=True)
        ]
    return merged


def make_broadcast_arguments(
    specs: Sequence[TensorSpec], out: TensorSpec, channel_last: bool
) -> tuple[Any, ...] | None:
    """Return (x, y, scratch_x, scratch_y, out) for a loop over two operands that broadcast.

    They are placeholders for arrays of four axes. None if the output has more than four axes, also
    after those are merged along which the same operands broadcast.
    """
    shapes = [physical_shape(spec, channel_last) for spec in (*specs, out)]
    if len(out.shape) > 4:
        shapes = _merge_axes(shapes)
    rank = len(shapes[-1])
    x_shape, y_shape, out_shape = (to_rank4_shape(shape, rank) for shape in shapes)
    if x_shape is None or y_shape is None or out_shape is None:
        return None
    size = math.prod(out.shape[1:])
    scratch = (Scratch(size, spec.dtype, per_row=True) for spec in specs)
    return InputRef(0, x_shape), InputRef(1, y_shape), *scratch, OutputRef(0, out_shape)
