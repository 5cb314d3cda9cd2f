"""Data movement: Concat (each input may be rescaled), Reshape, Transpose, Constant.

Must not know: rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator._transpose import transpose_matrices
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, narrow_to_int32
from simulator.kernel import Array, Kernel, RunFunction, SimulatorError, TensorSpec, require
from simulator.kernels.loops._common import max_magnitude, require_signed_integer
from simulator.kernels.loops._copy import (
    make_copy,
    make_strided_copy,
    merge_axes,
    physical_shape,
)
from simulator.kernels.per_sample import PerSampleKernel
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["Concat", "Constant", "Reshape", "Transpose"]


@jit
def _copy_columns(x: Array, rescale: RescaleForm | None, first: int, out: Array) -> None:
    """Copy x [A, S] to the S columns of out [N, T] from `first` on.

    If A < N, the rows of x repeat. x and out are integers. The elements are rescaled unless
    `rescale` is None.
    """
    size = x.shape[1]
    for row in range(out.shape[0]):
        source, target = x[row % x.shape[0]], out[row, first : first + size]
        for i in range(size):
            if rescale is None:
                target[i] = source[i]
            else:
                target[i] = apply_rescale(rescale, source[i])


def _do_nothing(ins: Sequence[Array], outs: Sequence[Array]) -> None:
    """Do nothing: the copy of an empty input of a concatenation."""


@dataclass(frozen=True, eq=False)
class Concat(Kernel):
    """Concatenate integer tensors along `axis`, each with its own rescale to the output's scale."""

    axis: int
    rescales: tuple[Rescale, ...]

    layout: ClassVar[str] = "any"

    @property
    def is_per_sample(self) -> bool:
        """Whether the concatenation keeps samples separate: True unless it is along axis 0."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Return a kernel that concatenates along this axis within each sample.

        `rank` is that of a sample.
        """
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def is_nonnegative(self, inputs: Sequence[bool]) -> bool:
        """Whether no input has negative elements."""
        return all(inputs)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the concatenation.

        Other axes must be equal, except that axis 0 of size 1 broadcasts. Raises SimulatorError if
        ranks or shapes differ, inputs are not signed integers, or there is not one rescale of the
        same width per input.
        """
        require(
            len(specs) == len(self.rescales),
            f"{len(self.rescales)} rescales for {len(specs)} inputs",
        )
        rank, axis = len(specs[0].shape), self._axis(specs[0])
        dtypes = {rescale.dtype for rescale in self.rescales}
        require(len(dtypes) == 1, "Concat requires rescales of the same width for all inputs")
        for spec in specs:
            require_signed_integer(spec, "Concat")
            require(len(spec.shape) == rank, f"ranks differ: {', '.join(map(str, specs))}")
        shape = []
        for index, sizes in enumerate(zip(*(spec.shape for spec in specs), strict=True)):
            if index == axis:
                shape.append(sum(sizes))
                continue
            allowed = {max(sizes), 1} if index == 0 else {max(sizes)}
            require(set(sizes) <= allowed, f"shapes differ: {', '.join(map(str, specs))}")
            shape.append(max(sizes))
        return (TensorSpec(tuple(shape), dtypes.pop()),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> tuple[RunFunction, ...]:
        """Return one loop per input of the concatenation.

        A plain copy if its rescale is the identity. An empty input has a function that does
        nothing.
        """
        axis = self._axis(specs[0])
        if channel_last and axis > 0:
            axis = len(specs[0].shape) - 1 if axis == 1 else axis - 1
        total = math.prod(physical_shape(self.infer(*specs)[0], channel_last)[axis:])
        loops: list[RunFunction] = []
        first = 0
        for index, (spec, rescale) in enumerate(zip(specs, self.rescales, strict=True)):
            size = math.prod(physical_shape(spec, channel_last)[axis:])
            if not size:
                loops.append(_do_nothing)
                continue
            is_identity = rescale.pow2_shift == 0 and rescale.bits >= 8 * spec.dtype.itemsize
            bound = max_magnitude(spec.dtype)
            form = None if is_identity else narrow_to_int32(rescale.compile_for_bound(bound), bound)
            source, target = InputRef(index, (-1, size)), OutputRef(0, (-1, total))
            loops.append(NativeLoop(_copy_columns, (source, form, first, target)))
            first += size
        return tuple(loops)

    def _axis(self, spec: TensorSpec) -> int:
        """Return the axis of the concatenation, counted from 0.

        Raises SimulatorError if a tensor of `spec` does not have it.
        """
        rank = len(spec.shape)
        require(-rank <= self.axis < rank, f"axis {self.axis} does not exist in {spec}")
        return self.axis % rank


@dataclass(frozen=True, eq=False)
class Reshape(Kernel):
    """Reshape a tensor of any dtype: 0 copies the axis of the input, one -1 is inferred.

    With `is_per_sample`, axis 0 of the input and of `shape` is the batch: `shape` is that of one
    sample, and its first axis then follows the batch. Otherwise `shape` is used unchanged.
    """

    shape: Sequence[int]
    is_per_sample: bool = True

    is_view: ClassVar[bool] = True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the type of x, with 0 and -1 in the shape replaced.

        If `is_per_sample`, the shape is that of one sample (axis 0 is 1) and y keeps the batch.
        Raises SimulatorError if the shape would mix samples or has another number of elements.
        """
        (x,) = specs
        if not self.is_per_sample or not x.shape:
            return (TensorSpec(self._resolve_shape(x, x.shape), x.dtype),)
        target = self._resolve_shape(x, (1, *x.shape[1:]))
        require(target[:1] == (1,), f"the shape {list(self.shape)} would mix the samples of {x}")
        return (TensorSpec((x.shape[0], *target[1:]), x.dtype),)

    def _resolve_shape(self, x: TensorSpec, source: tuple[int, ...]) -> tuple[int, ...]:
        """Return the target shape for an input of shape `source`, with 0 and -1 replaced.

        0 copies the size of the same axis of `source`; one -1 takes the remaining elements. Raises
        SimulatorError if the number of elements differs; `x` is for the message.
        """
        target = [int(n) for n in self.shape]
        for axis, size in enumerate(target):
            if size == 0:
                require(axis < len(source), f"no axis {axis} to copy in {x} for the shape {target}")
                target[axis] = source[axis]
        count = int(np.prod(source))
        explicit_count = int(np.prod([n for n in target if n != -1]))
        if target.count(-1) == 1 and explicit_count > 0:
            target[target.index(-1)] = count // explicit_count
        is_valid = min(target, default=1) >= 0 and int(np.prod(target)) == count
        require(is_valid, f"{x} cannot be reshaped to {list(self.shape)}")
        return tuple(target)

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples may be stacked along axis 0.

        Without `is_per_sample` always, except scalars. Elements keep their order, so samples stay
        separate whatever their number of rows.
        """
        (x,) = specs
        if self.is_per_sample:
            return super().supports_batch(specs, batched)
        return bool(x.shape) and bool(self.infer(x)[0].shape)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a loop that copies all elements in the same order."""
        return make_copy()


@dataclass(frozen=True, eq=False)
class Transpose(Kernel):
    """Permute the axes of a tensor of any dtype."""

    perm: Sequence[int]

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 stays first in the permutation, which keeps samples separate."""
        return tuple(self.perm[:1]) == (0,)

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Return a kernel that permutes the axes of each sample; `rank` is not used."""
        return PerSampleKernel(Transpose((0, *(axis + 1 for axis in self.perm))))

    def is_nonnegative(self, inputs: Sequence[bool]) -> bool:
        """Whether the input has no negative elements."""
        return all(inputs)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the type of x: axis i of y is axis perm[i] of x.

        Raises SimulatorError if perm is no permutation of the axes.
        """
        (x,) = specs
        require(
            sorted(self.perm) == list(range(len(x.shape))),
            f"{list(self.perm)} is not a permutation of the axes of {x}",
        )
        return (TensorSpec(tuple(x.shape[axis] for axis in self.perm), x.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a function that copies the elements in the order of the new axes.

        It is compiled if the batch axis stays first, else NumPy's. Matrices are transposed in
        blocks.
        """
        (x,), perm = specs, tuple(self.perm)
        shape = x.shape
        if self.is_per_sample:
            sizes = [shape[axis] for axis in perm]
            steps = [math.prod(shape[axis + 1 :]) for axis in perm]
            axes = merge_axes(sizes, steps)[1:]
            if len(axes) == 2 and axes[0][1] == 1 and x.dtype.kind in "if":
                (columns, _), (rows, _) = axes
                matrices = InputRef(0, (-1, rows, columns)), OutputRef(0, (-1, columns, rows))
                return NativeLoop(transpose_matrices, matrices)
            loop = make_strided_copy(0, sizes, steps)
            if loop is not None:
                return loop
        return lambda ins, outs: np.copyto(outs[0], ins[0].transpose(perm))


@dataclass(frozen=True, eq=False)
class Constant(Kernel):
    """A constant tensor.

    A first axis of 1 broadcasts against the batch in operators that broadcast.
    """

    array: np.ndarray

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the constant.

        Raises SimulatorError if there are inputs.
        """
        if specs:
            raise SimulatorError(f"a constant has no inputs, got {len(specs)}")
        return (TensorSpec(self.array.shape, self.array.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a function that copies the constant to the output."""
        return lambda ins, outs: np.copyto(outs[0], self.array)
