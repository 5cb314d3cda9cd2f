"""Operators that choose integers by position: Pick, Gather, Lookup, Split, ArgMax.

    Pick     y[i, j, ..] = x[indices_0[i], indices_1[j], ..]     slices, tiles, expansions, resizes,
    paddings Gather   y = x[.., indices, ..] along one axis               indices of any rank, known
    beforehand Lookup   y = table[x]                                        rows of a table by
    computed indices Split    x cut along one axis
    ArgMax   the largest integer of a row and where it stands

Must not know: rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from simulator.kernel import Kernel, NumpyKernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import require_signed_integer
from simulator.kernels.loops._copy import make_indexed_copy, make_strided_copy, physical_shape
from simulator.kernels.per_sample import PerSampleKernel
from simulator.native import NativeLoop

_MAX_INDEXED_ELEMENTS = 1 << 21  # numbers of a sample whose places are written down

__all__ = ["ArgMax", "Gather", "IndexSelect", "Lookup", "Split"]


def _normalize_axis(axis: int, spec: TensorSpec) -> int:
    rank = len(spec.shape)
    require(-rank <= axis < rank, f"axis {axis} does not exist in {spec}")
    return axis % rank


@dataclass(frozen=True, eq=False)
class IndexSelect(Kernel):
    """Choose positions along every axis. Any dtype.

    Parameters
    ----------
    indices
        One integer array [size] per axis, or None for an axis that stays as it is; -1 stands for
        `fill_value`.
    fill
        What stands where an index is -1; None where none is.
    """

    indices: Sequence[np.ndarray | None]
    fill_value: int | None = None

    layout: ClassVar[str] = "any"

    @property
    def is_per_sample(self) -> bool:
        """Samples stay apart while axis 0 stays as it is."""
        return self.indices[0] is None if len(self.indices) else True

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Pick from the rows of each sample."""
        return PerSampleKernel(replace(self, indices=(None, *self.indices)))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the sizes of the indices."""
        (x,) = specs
        require(
            len(x.shape) == len(self.indices),
            f"indices for {len(self.indices)} axes do not fit {x}",
        )
        least = 0 if self.fill_value is None else -1
        for axis, (index, size) in enumerate(zip(self.indices, x.shape, strict=True)):
            inside = (
                index is None or index.size == 0 or (least <= index.min() and index.max() < size)
            )
            require(inside, f"axis {axis} of {x} has no such positions")
        sizes = (n if i is None else len(i) for i, n in zip(self.indices, x.shape, strict=True))
        return (TensorSpec(tuple(sizes), x.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Turn runs of equal steps into views; the rest is taken index by index."""
        indices = list(self.indices)
        if channel_last:
            indices.append(indices.pop(1))
        if (
            self.is_per_sample
            and indices
            and (
                loop := _make_select_loop(
                    physical_shape(specs[0], channel_last), indices, self.fill_value, specs[0].dtype
                )
            )
        ):
            return loop
        picks = [
            (axis, _to_slice(index)) for axis, index in enumerate(indices) if index is not None
        ]
        gaps = [
            (axis, np.flatnonzero(index < 0))
            for axis, index in enumerate(indices)
            if index is not None
        ]

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            x = ins[0]
            for axis, place in picks:
                before: Any = (slice(None),) * axis
                x = (
                    x[(*before, place)]
                    if isinstance(place, slice)
                    else x.take(place, axis, mode="wrap")
                )
            np.copyto(outs[0], x)
            for axis, where in gaps:
                if where.size:
                    before = (slice(None),) * axis
                    outs[0][(*before, where)] = self.fill_value

        return run


def _make_select_loop(
    shape: Sequence[int], indices: Sequence[np.ndarray | None], fill: int | None, kind: np.dtype
) -> NativeLoop | None:
    """Return the compiled choice from every sample.

    By equal steps where all axes have them, else number by number.
    """
    inner = [
        np.arange(size) if index is None else index
        for index, size in zip(indices[1:], shape[1:], strict=True)
    ]
    sizes = [len(index) for index in inner]
    steps = [math.prod(shape[axis + 2 :]) for axis in range(len(inner))]
    places = [_to_slice(index) for index in inner]
    if 0 in shape[1:] or 0 in sizes:
        return None
    if all(isinstance(place, slice) for place in places):
        cuts: list[Any] = places
        first = sum(cut.start * step for cut, step in zip(cuts, steps, strict=True))
        gaps = [cut.step * step for cut, step in zip(cuts, steps, strict=True)]
        return make_strided_copy(first, [1, *sizes], [math.prod(shape[1:]), *gaps])
    if math.prod(sizes) > _MAX_INDEXED_ELEMENTS or math.prod(shape[1:]) > 1 << 30:
        return None
    flat, gap = np.zeros(sizes, np.int64), np.zeros(sizes, bool)
    for axis, (index, step) in enumerate(zip(inner, steps, strict=True)):
        along = index.reshape(-1, *[1] * (len(inner) - 1 - axis))
        flat, gap = flat + along * step, gap | (along < 0)
    return make_indexed_copy(math.prod(shape[1:]), np.where(gap, -1, flat), fill, kind)


def _to_slice(index: np.ndarray) -> slice | np.ndarray:
    """Return a slice where the positions rise by equal steps."""
    steps = np.unique(np.diff(index))
    if index.size and index[0] >= 0 and (index.size == 1 or (steps.size == 1 and steps[0] > 0)):
        return slice(int(index[0]), int(index[-1]) + 1, int(steps[0]) if steps.size else 1)
    return index


@dataclass(frozen=True, eq=False)
class Gather(NumpyKernel):
    """Take `indices` (>= 0, any rank, also none) along `axis`, whose place their axes take.

    Any dtype.
    """

    axis: int
    indices: np.ndarray

    @property
    def is_per_sample(self) -> bool:
        """Taking along axis 0 mixes samples."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Take from the rows of each sample."""
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y."""
        (x,) = specs
        axis = _normalize_axis(self.axis, x)
        inside = self.indices.size == 0 or (
            self.indices.min() >= 0 and self.indices.max() < x.shape[axis]
        )
        require(inside, f"axis {axis} of {x} has no such positions")
        return (TensorSpec((*x.shape[:axis], *self.indices.shape, *x.shape[axis + 1 :]), x.dtype),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the chosen positions of x."""
        return (arrays[0].take(self.indices, self.axis),)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """As a choice along one axis, compiled where that is possible."""
        shape, axis = specs[0].shape, _normalize_axis(self.axis, specs[0])
        along: list[Any] = [None] * len(shape)
        along[axis] = self.indices.reshape(-1)
        loop = _make_select_loop(shape, along, None, specs[0].dtype) if axis > 0 else None
        return loop or super().build(specs, channel_last)


@dataclass(frozen=True, eq=False)
class Lookup(NumpyKernel):
    """Rows of `table` [rows, ...] by the integers x [N, ...]: y [N, ..., ...].

    Raises SimulatorError at a run for an index outside of the table.
    """

    table: np.ndarray

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map indices -> rows."""
        (x,) = specs
        require_signed_integer(x, "Lookup")
        return (TensorSpec((*x.shape, *self.table.shape[1:]), self.table.dtype),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the rows at the indices x."""
        (x,) = arrays
        inside = x.size == 0 or (x.min() >= 0 and x.max() < len(self.table))
        require(
            inside,
            (
                f"an index from {x.min(initial=0)} to {x.max(initial=0)}: the table has "
                f"{len(self.table)} rows"
            ),
        )
        return (self.table.take(x, 0),)


@dataclass(frozen=True, eq=False)
class Split(NumpyKernel):
    """Cut x along `axis` into parts of the given `sizes`. Any dtype."""

    axis: int
    sizes: Sequence[int]

    @property
    def is_per_sample(self) -> bool:
        """Cutting axis 0 mixes samples."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Cut the rows of each sample."""
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> its parts."""
        (x,) = specs
        axis = _normalize_axis(self.axis, x)
        fits = sum(self.sizes) == x.shape[axis] and min(self.sizes, default=0) >= 0
        require(fits, f"parts of {list(self.sizes)} are not axis {axis} of {x}")
        return tuple(
            TensorSpec((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
            for size in self.sizes
        )

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the parts of x."""
        ends = np.cumsum([int(n) for n in self.sizes])[:-1]
        parts: list[Any] = np.split(arrays[0], ends, self.axis)
        return tuple(parts)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """One compiled copy for each part."""
        shape, axis = specs[0].shape, _normalize_axis(self.axis, specs[0])
        if axis == 0 or 0 in self.sizes or 0 in shape[1:]:
            return super().build(specs, channel_last)
        inner, loops, first = math.prod(shape[axis + 1 :]), [], 0
        rows = [math.prod(shape[1:axis]), shape[axis] * inner]
        for index, size in enumerate(self.sizes):
            sizes, steps = [1, rows[0], int(size) * inner], [rows[0] * rows[1], rows[1], 1]
            loops.append(make_strided_copy(first * inner, sizes, steps, index))
            first += int(size)
        return tuple(loop for loop in loops if loop is not None)


@dataclass(frozen=True, eq=False)
class ArgMax(NumpyKernel):
    """The largest integer of a single row and its first position.

    X [1, .., n, .., 1] -> int32 [2, 1, .., 1].
    """

    axis: int

    @property
    def is_per_sample(self) -> bool:
        """Axis 0 of the result is no batch."""
        return False

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> (value, position)."""
        (x,) = specs
        require_signed_integer(x, "ArgMax")
        axis = _normalize_axis(self.axis, x)
        require(
            0 < x.shape[axis] == int(np.prod(x.shape)),
            f"ArgMax along axis {axis} takes a single row, not {x}",
        )
        return (TensorSpec((2, *[1] * (len(x.shape) - 1)), np.dtype(np.int32)),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the largest integer and its first position."""
        row = arrays[0].reshape(-1)
        place = int(row.argmax())
        return (np.array([row[place], place], np.int32).reshape(2, *[1] * (arrays[0].ndim - 1)),)
