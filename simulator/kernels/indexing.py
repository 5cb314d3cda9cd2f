"""Operators that select integers by index: IndexSelect, Gather, Lookup, Split, ArgMax.

    IndexSelect  y[i, j, ..] = x[indices_0[i], indices_1[j], ..]   slices, tiles, expansions,
                                                                   resizes, paddings
    Gather       y = x[.., indices, ..] along one axis             constant indices of any rank
    Lookup       y = table[x]                                      table rows by computed indices
    Split        slices of x along one axis
    ArgMax       the largest integer of a row and its index

Must not know: rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from simulator.kernel import Kernel, NumpyKernel, RunFunction, SimulatorError, TensorSpec, require
from simulator.kernels.loops._common import require_signed_integer
from simulator.kernels.loops._copy import make_indexed_copy, make_strided_copy, physical_shape
from simulator.kernels.per_sample import PerSampleKernel
from simulator.native import NativeLoop

_MAX_INDEXED_ELEMENTS = 1 << 21  # largest sample whose flat indices are stored

__all__ = ["ArgMax", "Gather", "IndexSelect", "Lookup", "Split"]


def _normalize_axis(axis: int, spec: TensorSpec) -> int:
    """Return `axis` counted from 0.

    Raises SimulatorError if a tensor of `spec` does not have it.
    """
    rank = len(spec.shape)
    require(-rank <= axis < rank, f"axis {axis} does not exist in {spec}")
    return axis % rank


@dataclass(frozen=True, eq=False)
class IndexSelect(Kernel):
    """Select positions along every axis of a tensor of any dtype.

    Parameters
    ----------
    indices
        One integer array [size] per axis, or None for an unchanged axis; -1 selects `fill_value`.
    fill_value
        Value for indices of -1; None if there are none.
    """

    indices: Sequence[np.ndarray | None]
    fill_value: int | None = None

    layout: ClassVar[str] = "any"

    @property
    def is_per_sample(self) -> bool:
        """Whether the selection leaves axis 0 unchanged, which keeps samples separate."""
        return not self.indices or self.indices[0] is None

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Return a kernel that selects positions within each sample; `rank` is not used."""
        return PerSampleKernel(replace(self, indices=(None, *self.indices)))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the type of x: axes with indices have as many elements as these.

        Raises SimulatorError for indices out of range; -1 is allowed if there is a fill value.
        """
        (x,) = specs
        if len(x.shape) != len(self.indices):
            raise SimulatorError(f"indices for {len(self.indices)} axes do not match {x}")
        min_index = 0 if self.fill_value is None else -1
        shape = list(x.shape)
        for axis, index in enumerate(self.indices):
            if index is None:
                continue
            is_inside = not index.size or (min_index <= index.min() and index.max() < shape[axis])
            if not is_inside:
                raise SimulatorError(f"indices along axis {axis} of {x} are out of range")
            shape[axis] = len(index)
        return (TensorSpec(tuple(shape), x.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a compiled copy of the selected elements; index -1 takes the fill value.

        If there is none (as when samples are mixed), a NumPy function that uses slices for equal
        steps and `take` for other axes.
        """
        indices = list(self.indices)
        if channel_last:
            indices.append(indices.pop(1))
        if self.is_per_sample and indices:
            shape = physical_shape(specs[0], channel_last)
            loop = _make_select_loop(shape, indices, self.fill_value, specs[0].dtype)
            if loop is not None:
                return loop
        used_axes = [(axis, index) for axis, index in enumerate(indices) if index is not None]
        selectors = [(axis, _to_slice(index)) for axis, index in used_axes]
        filled = [(axis, np.flatnonzero(index < 0)) for axis, index in used_axes]

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Select along each axis in turn, then set elements of negative indices to the fill."""
            x = ins[0]
            for axis, selector in selectors:
                if isinstance(selector, slice):
                    x = x[(*_leading_axes(axis), selector)]
                else:
                    x = x.take(selector, axis, mode="wrap")
            np.copyto(outs[0], x)
            for axis, positions in filled:
                if positions.size:
                    outs[0][(*_leading_axes(axis), positions)] = self.fill_value

        return run


def _leading_axes(count: int) -> tuple[Any, ...]:
    """Return an index that selects the first `count` axes completely."""
    return (slice(None),) * count


def _make_select_loop(
    shape: Sequence[int], indices: Sequence[np.ndarray | None], fill: int | None, kind: np.dtype
) -> NativeLoop | None:
    """Compile a selection from every sample, or return None if it is empty or too large.

    If all axes have equal steps, it is a strided copy of any size, else an indexed copy, of at most
    `_MAX_INDEXED_ELEMENTS` elements.

    Parameters
    ----------
    shape
        Physical shape of the input.
    indices
        Positions [size] per axis, None for an unchanged axis; axis 0 is the batch and ignored.
    fill
        Value for indices of -1.
    kind
        Type of the elements.
    """
    inner = [
        np.arange(size) if index is None else index
        for index, size in zip(indices[1:], shape[1:], strict=True)
    ]
    sizes = [len(index) for index in inner]
    if 0 in shape[1:] or 0 in sizes:
        return None
    sample_size = math.prod(shape[1:])
    strides = [math.prod(shape[axis + 2 :]) for axis in range(len(inner))]
    slices = [_to_slice(index) for index in inner]
    if all(isinstance(selector, slice) for selector in slices):
        pairs: list[tuple[Any, int]] = list(zip(slices, strides, strict=True))
        first = sum(selector.start * stride for selector, stride in pairs)
        steps = [selector.step * stride for selector, stride in pairs]
        return make_strided_copy(first, [1, *sizes], [sample_size, *steps])
    if math.prod(sizes) > _MAX_INDEXED_ELEMENTS or sample_size > 1 << 30:
        return None
    flat, is_filled = np.zeros(sizes, np.int64), np.zeros(sizes, bool)
    for axis, (index, stride) in enumerate(zip(inner, strides, strict=True)):
        along = index.reshape(-1, *[1] * (len(inner) - 1 - axis))
        flat, is_filled = flat + along * stride, is_filled | (along < 0)
    return make_indexed_copy(sample_size, np.where(is_filled, -1, flat), fill, kind)


def _to_slice(index: np.ndarray) -> slice | np.ndarray:
    """Return the slice equivalent to `index`, if it rises in equal steps from 0 or above.

    Else `index` itself, also if it is empty.
    """
    if index.size == 0 or index[0] < 0:
        return index
    steps = np.diff(index)
    step = int(steps[0]) if steps.size else 1
    if step > 0 and (steps == step).all():
        return slice(int(index[0]), int(index[-1]) + 1, step)
    return index


@dataclass(frozen=True, eq=False)
class Gather(NumpyKernel):
    """Select `indices` (>= 0, of any rank, also a scalar) along `axis` of a tensor of any dtype.

    The axes of the indices replace `axis`.
    """

    axis: int
    indices: np.ndarray

    @property
    def is_per_sample(self) -> bool:
        """Whether the selection keeps samples separate: True unless it is along axis 0."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Return a kernel that selects along this axis within each sample.

        `rank` is that of a sample.
        """
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the type of x: the axes of the indices replace `axis`.

        Raises SimulatorError unless x has the axis and all indices are in [0, size of the axis).
        """
        (x,) = specs
        axis = _normalize_axis(self.axis, x)
        is_inside = self.indices.size == 0 or (
            self.indices.min() >= 0 and self.indices.max() < x.shape[axis]
        )
        require(is_inside, f"indices along axis {axis} of {x} are out of range")
        return (TensorSpec((*x.shape[:axis], *self.indices.shape, *x.shape[axis + 1 :]), x.dtype),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (elements of x at the indices along the axis,)."""
        return (arrays[0].take(self.indices, self.axis),)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Return a compiled selection; along axis 0 and where none exists, a NumPy function."""
        shape, axis = specs[0].shape, _normalize_axis(self.axis, specs[0])
        along: list[Any] = [None] * len(shape)
        along[axis] = self.indices.reshape(-1)
        loop = _make_select_loop(shape, along, None, specs[0].dtype) if axis > 0 else None
        return loop or super().build(specs, channel_last)


@dataclass(frozen=True, eq=False)
class Lookup(NumpyKernel):
    """Look up rows of `table` [rows, ...] by integers x [N, ...]: y [N, ..., ...].

    A run raises SimulatorError if an index is outside the table.
    """

    table: np.ndarray

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the table rows, [*x.shape, *row shape], for indices x.

        Raises SimulatorError unless x is a signed integer.
        """
        (x,) = specs
        require_signed_integer(x, "Lookup")
        return (TensorSpec((*x.shape, *self.table.shape[1:]), self.table.dtype),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (table rows at the indices x,).

        Raises SimulatorError if an index is negative or beyond the table.
        """
        (x,) = arrays
        is_inside = x.size == 0 or (x.min() >= 0 and x.max() < len(self.table))
        require(
            is_inside,
            f"indices from {x.min(initial=0)} to {x.max(initial=0)} are outside a table of "
            f"{len(self.table)} rows",
        )
        return (self.table.take(x, 0),)


@dataclass(frozen=True, eq=False)
class Split(NumpyKernel):
    """Split a tensor of any dtype along `axis` into slices of the given `sizes`."""

    axis: int
    sizes: Sequence[int]

    @property
    def is_per_sample(self) -> bool:
        """Whether the split keeps samples separate: True unless it is along axis 0."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Return a kernel that splits this axis within each sample; `rank` is that of a sample."""
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer one slice of x per size, of the type of x.

        Raises SimulatorError if the sizes do not add up to the axis or one is negative; 0 is
        allowed.
        """
        (x,) = specs
        axis = _normalize_axis(self.axis, x)
        covers_axis = sum(self.sizes) == x.shape[axis] and min(self.sizes, default=0) >= 0
        require(covers_axis, f"slices of {list(self.sizes)} do not add up to axis {axis} of {x}")
        return tuple(
            TensorSpec((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
            for size in self.sizes
        )

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the slices of x along the axis as a tuple, one per size."""
        split_points = np.cumsum([int(n) for n in self.sizes])[:-1]
        slices: list[Any] = np.split(arrays[0], split_points, self.axis)
        return tuple(slices)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Return a compiled copy per slice.

        Along axis 0 or with empty tensors, a NumPy function.
        """
        shape, axis = specs[0].shape, _normalize_axis(self.axis, specs[0])
        if axis == 0 or 0 in self.sizes or 0 in shape[1:]:
            return super().build(specs, channel_last)
        inner, loops, first = math.prod(shape[axis + 1 :]), [], 0
        row_count, row_size = math.prod(shape[1:axis]), shape[axis] * inner
        for index, size in enumerate(self.sizes):
            sizes, steps = [1, row_count, int(size) * inner], [row_count * row_size, row_size, 1]
            loops.append(make_strided_copy(first * inner, sizes, steps, index))
            first += int(size)
        return tuple(loop for loop in loops if loop is not None)


@dataclass(frozen=True, eq=False)
class ArgMax(NumpyKernel):
    """The largest integer of a single row and its first index.

    x [1, .., n, .., 1] -> int32 [2, 1, .., 1].
    """

    axis: int

    @property
    def is_per_sample(self) -> bool:
        """False: axis 0 of the result is not a batch but (value, index)."""
        return False

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the largest value and its index, int32 [2, 1, ...], of the rank of x.

        Raises SimulatorError unless x is a signed integer and all axes but one have size 1.
        """
        (x,) = specs
        require_signed_integer(x, "ArgMax")
        axis = _normalize_axis(self.axis, x)
        require(
            0 < x.shape[axis] == int(np.prod(x.shape)),
            f"ArgMax along axis {axis} requires a single row, not {x}",
        )
        return (TensorSpec((2, *[1] * (len(x.shape) - 1)), np.dtype(np.int32)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (int32 [2, 1, ...],) with the largest integer of x and its first index."""
        row = arrays[0].reshape(-1)
        index = int(row.argmax())
        return (np.array([row[index], index], np.int32).reshape(2, *[1] * (arrays[0].ndim - 1)),)
