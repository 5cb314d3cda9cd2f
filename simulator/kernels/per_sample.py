"""Apply a kernel that rearranges axis 0 of a sample to each sample of a batch.

A graph made for one sample may treat it as a matrix and, for example, transpose it. In a batch
these matrices are stacked along axis 0; reshaped with one more leading axis, the samples are
separate again.

Owns: `PerSampleKernel`. Must not know: any particular operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.kernel import Kernel, RunFunction, TensorSpec
from simulator.native import NativeLoop

__all__ = ["PerSampleKernel"]


@dataclass(frozen=True, eq=False)
class PerSampleKernel(Kernel):
    """Applies `kernel` to each sample of tensors whose samples are stacked along axis 0.

    `kernel` works on tensors with a leading axis for the samples. It is built for the specs of a
    single sample, and accepts any number of samples.
    """

    kernel: Kernel

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the outputs of the inner kernel for one sample, without the axis of samples."""
        return tuple(
            TensorSpec(spec.shape[1:], spec.dtype)
            for spec in self.kernel.infer(*_prepend_sample_axis(specs))
        )

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether the inner kernel computes samples along the added leading axis independently."""
        return self.kernel.supports_batch(_prepend_sample_axis(specs), batched)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """Build the inner kernel for specs with a sample axis in front, in the plain layout.

        Compiled loops reshape their arrays themselves, other functions are wrapped. `channel_last`
        is not used.
        """
        built = self.kernel.build(_prepend_sample_axis(specs), False)
        inner, outer = [spec.shape for spec in specs], [spec.shape for spec in self.infer(*specs)]
        runs = built if isinstance(built, tuple) else (built,)
        return tuple(
            run if isinstance(run, NativeLoop) else _wrap_with_sample_axis(run, inner, outer)
            for run in runs
        )


def _prepend_sample_axis(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return `specs` with an additional leading axis of size 1."""
    return [TensorSpec((1, *spec.shape), spec.dtype) for spec in specs]


def _wrap_with_sample_axis(
    run: RunFunction,
    input_shapes: Sequence[tuple[int, ...]],
    output_shapes: Sequence[tuple[int, ...]],
) -> RunFunction:
    """Return `run` as a function of arrays without the leading axis of samples that it expects.

    `input_shapes` and `output_shapes` are those of one sample.
    """
    shapes = (*input_shapes, *output_shapes)
    sample_sizes = [math.prod(shape) for shape in shapes]

    def run_on_views(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Run on views of the arrays with axis 0 split into samples and their own axis 0.

        Arrays without elements do not tell the number of samples; if none tells it, it is 0.
        """
        arrays = (*ins, *outs)
        counts = [a.size // size for a, size in zip(arrays, sample_sizes, strict=True) if size]
        samples = max(counts, default=0)
        views = [
            array.reshape(samples, *shape) for array, shape in zip(arrays, shapes, strict=True)
        ]
        run(views[: len(ins)], views[len(ins) :])

    return run_on_views
