"""Operators that move integers without computing.

Concat (each input may be rescaled), Reshape, Transpose, Constant.
Must not know: rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, narrow_to_int32
from simulator.kernel import Array, Kernel, RunFunction, SimulatorError, TensorSpec, require
from simulator.kernels.loops._common import max_magnitude, require_signed_integer
from simulator.kernels.loops._copy import make_copy, make_strided_copy, physical_shape
from simulator.kernels.per_sample import PerSampleKernel
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["Concat", "Constant", "Reshape", "Transpose"]


@jit
def _copy_columns(x: Array, rescale: RescaleForm | None, first: int, out: Array) -> None:
    """Put rows x [A, S] into columns `first` and after of out [N, T].

    Where A is less than N, again and again.
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
    """Place an empty tensor."""


@dataclass(frozen=True, eq=False)
class Concat(Kernel):
    """Join integer tensors along `axis` (not the batch), each brought to the output's scale by its own rescale."""

    axis: int
    rescales: tuple[Rescale, ...]

    layout: ClassVar[str] = "any"

    @property
    def is_per_sample(self) -> bool:
        """Joining along axis 0 mixes samples."""
        return self.axis != 0

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Join the rows of each sample."""
        return PerSampleKernel(replace(self, axis=self.axis % rank + 1))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map inputs -> out; all other axes equal, except that a batch axis of 1 follows the others."""
        require(
            len(specs) == len(self.rescales),
            f"{len(self.rescales)} rescales do not fit {len(specs)} inputs",
        )
        rank, axis = len(specs[0].shape), self._axis(specs[0])
        dtypes = {rescale.dtype for rescale in self.rescales}
        require(len(dtypes) == 1, "the inputs of Concat are rescaled to different widths")
        for spec in specs:
            require_signed_integer(spec, "Concat")
            require(len(spec.shape) == rank, f"ranks differ: {', '.join(map(str, specs))}")
        shape = [max(spec.shape[a] for spec in specs) for a in range(rank)]
        for spec in specs:
            same = all(
                spec.shape[a] in ((shape[a], 1) if a == 0 else (shape[a],))
                for a in range(rank)
                if a != axis
            )
            require(same, f"shapes differ: {', '.join(map(str, specs))}")
        shape[axis] = sum(spec.shape[axis] for spec in specs)
        return (TensorSpec(tuple(shape), dtypes.pop()),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> tuple[RunFunction, ...]:
        """Plain copies where the rescale changes nothing."""
        axis = self._axis(specs[0])
        if channel_last and axis > 0:
            axis = len(specs[0].shape) - 1 if axis == 1 else axis - 1
        total = math.prod(physical_shape(self.infer(*specs)[0], channel_last)[axis:])
        parts, first = [], 0
        for index, (spec, rescale) in enumerate(zip(specs, self.rescales, strict=True)):
            size = math.prod(physical_shape(spec, channel_last)[axis:])
            same = rescale.pow2_shift == 0 and rescale.bits >= 8 * spec.dtype.itemsize
            bound = max_magnitude(spec.dtype)
            form = None if same else narrow_to_int32(rescale.compile_for_bound(bound), bound)
            parts.append(
                NativeLoop(
                    _copy_columns,
                    (InputRef(index, (-1, size)), form, first, OutputRef(0, (-1, total))),
                )
                if size
                else _do_nothing
            )
            first += size
        return tuple(parts)

    def _axis(self, spec: TensorSpec) -> int:
        rank = len(spec.shape)
        require(-rank <= self.axis < rank, f"axis {self.axis} does not exist in {spec}")
        return self.axis % rank


@dataclass(frozen=True, eq=False)
class Reshape(Kernel):
    """Another shape for the same numbers: 0 copies the axis, one -1 is inferred.

    With `is_per_sample` axis 0 of the input and of the target is the batch: the target is read for
    a batch of one and its first axis then follows the batch. Otherwise the target is taken as it
    is. Any dtype.
    """

    shape: Sequence[int]
    is_per_sample: bool = True

    is_view: ClassVar[bool] = True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y."""
        (x,) = specs
        batched = self.is_per_sample and len(x.shape) > 0
        source = (1, *x.shape[1:]) if batched else x.shape
        target = [int(n) for n in self.shape]
        for axis, size in enumerate(target):
            if size == 0:
                require(axis < len(source), f"no axis {axis} to copy in {x} for the shape {target}")
                target[axis] = source[axis]
        count, known = int(np.prod(source)), int(np.prod([n for n in target if n != -1]))
        if target.count(-1) == 1 and known > 0:
            target[target.index(-1)] = count // known
        fits = min(target, default=1) >= 0 and int(np.prod(target)) == count
        require(fits, f"{x} cannot take the shape {list(self.shape)}")
        if batched:
            require(
                target[:1] == [1],
                f"the shape {list(self.shape)} does not keep the samples of {x} apart",
            )
            target[0] = x.shape[0]
        return (TensorSpec(tuple(target), x.dtype),)

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether neither shape is a scalar's.

        Numbers keep their order, and samples stay apart whatever their rows.
        """
        (x,) = specs
        if self.is_per_sample:
            return super().supports_batch(specs, batched)
        return bool(x.shape) and bool(self.infer(x)[0].shape)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a copy in the same order."""
        return make_copy()


@dataclass(frozen=True, eq=False)
class Transpose(Kernel):
    """Permute the axes. Any dtype."""

    perm: Sequence[int]

    @property
    def is_per_sample(self) -> bool:
        """Samples stay apart while axis 0 stays first."""
        return tuple(self.perm[:1]) == (0,)

    def make_per_sample(self, rank: int) -> PerSampleKernel:
        """Let the samples stay in their order."""
        return PerSampleKernel(Transpose((0, *(axis + 1 for axis in self.perm))))

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y."""
        (x,) = specs
        require(
            sorted(self.perm) == list(range(len(x.shape))),
            f"{list(self.perm)} does not permute the axes of {x}",
        )
        return (TensorSpec(tuple(x.shape[axis] for axis in self.perm), x.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a copy in the order of the new axes."""
        perm = tuple(self.perm)
        shape = specs[0].shape
        steps = [math.prod(shape[axis + 1 :]) for axis in perm]
        loop = (
            make_strided_copy(0, [shape[axis] for axis in perm], steps)
            if self.is_per_sample
            else None
        )
        return loop or (lambda ins, outs: np.copyto(outs[0], ins[0].transpose(perm)))


@dataclass(frozen=True, eq=False)
class Constant(Kernel):
    """A tensor without inputs.

    A first axis of 1 broadcasts against the batch in the operators that broadcast.
    """

    array: np.ndarray

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map nothing -> the constant."""
        if specs:
            raise SimulatorError("a constant has no inputs")
        return (TensorSpec(self.array.shape, self.array.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a copy of the array."""
        return lambda ins, outs: np.copyto(outs[0], self.array)
