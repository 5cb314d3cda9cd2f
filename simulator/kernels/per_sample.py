"""Kernels that move what lies along axis 0 within a sample, in a batch: each sample for itself.

A graph made for one sample may see it as a matrix and turn that. In a batch such matrices lie one
behind the other along axis 0, each with its rows; seen with one axis more in front, the samples are
apart again.

Owns: `PerSampleKernel`. Must not know: any particular operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.kernel import Kernel, RunFunction, TensorSpec
from simulator.native import NativeLoop

__all__ = ["PerSampleKernel"]


@dataclass(frozen=True, eq=False)
class PerSampleKernel(Kernel):
    """`kernel` on each sample.

    Tensors have the rows of one sample after those of another, `kernel` an axis for them.
    It is built for the specs of a single sample, and takes any number of them.
    """

    kernel: Kernel

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map the tensors of one sample."""
        return tuple(
            TensorSpec(spec.shape[1:], spec.dtype)
            for spec in self.kernel.infer(*_prepend_sample_axis(specs))
        )

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether the kernel works sample by sample."""
        return self.kernel.supports_batch(_prepend_sample_axis(specs), batched)

    def build(
        self, specs: Sequence[TensorSpec], channel_last: bool
    ) -> RunFunction | tuple[RunFunction, ...]:
        """As the kernel: compiled steps give arrays the shapes that they want by themselves."""
        built = self.kernel.build(_prepend_sample_axis(specs), False)
        inner, outer = [spec.shape for spec in specs], [spec.shape for spec in self.infer(*specs)]
        runs = built if isinstance(built, tuple) else (built,)
        return tuple(
            run if isinstance(run, NativeLoop) else _wrap_with_sample_axis(run, inner, outer)
            for run in runs
        )


def _prepend_sample_axis(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [TensorSpec((1, *spec.shape), spec.dtype) for spec in specs]


def _wrap_with_sample_axis(
    run: RunFunction, inner: Sequence[tuple[int, ...]], outer: Sequence[tuple[int, ...]]
) -> RunFunction:
    """Return `run` on arrays that are seen with the axis in front."""

    def viewed(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        run(
            [array.reshape(-1, *shape) for array, shape in zip(ins, inner, strict=True)],
            [array.reshape(-1, *shape) for array, shape in zip(outs, outer, strict=True)],
        )

    return viewed
