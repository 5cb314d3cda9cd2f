"""Support for input zero points in kernels that have none.

    y = kernel(x0 - zeros[0], x1 - zeros[1], ..)

The differences of 8-bit integers are stored in 16 bits, which every kernel accepts. Layers with
weights need no such copy: they fold the zero point into their bias
(`conv.fold_zero_point_into_bias`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.kernel import Kernel, RunFunction, TensorSpec, require

__all__ = ["ZeroPointKernel", "subtract_zero_points"]


@dataclass(frozen=True, eq=False)
class ZeroPointKernel(Kernel):
    """Applies `kernel` to int8 inputs minus their zero points.

    `zero_points` has one entry per input; an input with 0 is passed unchanged, of any type.
    """

    kernel: Kernel
    zero_points: tuple[int, ...]

    @property
    def layout(self) -> str:  # type: ignore[override]
        """Layout of the arrays that the inner kernel computes on."""
        return self.kernel.layout

    @property
    def is_per_sample(self) -> bool:
        """Whether axis 0 is only a batch axis for the inner kernel."""
        return self.kernel.is_per_sample

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the outputs of the inner kernel for the inputs minus their zero points.

        Raises SimulatorError if an input with a zero point other than 0 is not int8.
        """
        return self.kernel.infer(*self._difference_specs(specs))

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a function that subtracts the zero points, then runs the inner kernel's loops.

        Inputs with a zero point other than 0 become int16; the kernel is built for that type.
        """
        built = self.kernel.build(self._difference_specs(specs), channel_last)
        loops, zeros = built if isinstance(built, tuple) else (built,), self.zero_points

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Subtract zero points other than 0, giving int16, and run all loops of the kernel."""
            centered = [
                x if z == 0 else np.subtract(x, z, dtype=np.int16)
                for x, z in zip(ins, zeros, strict=True)
            ]
            for loop in loops:
                loop(centered, outs)

        return run

    def fuse(self, consumer: Kernel, specs: Sequence[TensorSpec]) -> Kernel | None:
        """Return this kernel with `consumer` fused into the inner one.

        None if that cannot do it. `specs` are those of the inputs.
        """
        kernel = self.kernel.fuse(consumer, self._difference_specs(specs))
        return None if kernel is None else replace(self, kernel=kernel)

    def _difference_specs(self, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Return the specs of the inputs minus their zero points: int16 unless the zero point is 0.

        Raises SimulatorError if an input with another zero point is not int8, or their number
        differs.
        """
        require(
            len(specs) == len(self.zero_points),
            f"{len(self.zero_points)} zero points for {len(specs)} inputs",
        )
        for spec, zero in zip(specs, self.zero_points, strict=True):
            require(
                zero == 0 or spec.dtype == np.int8, f"zero points require int8 inputs, not {spec}"
            )
        return [
            spec if zero == 0 else TensorSpec(spec.shape, np.dtype(np.int16))
            for spec, zero in zip(specs, self.zero_points, strict=True)
        ]


def subtract_zero_points(kernel: Kernel, *zeros: int) -> Kernel:
    """Return a kernel that subtracts `zeros`, one per input, and then applies `kernel`.

    `kernel` itself if all are 0.
    """
    return ZeroPointKernel(kernel, zeros) if any(zeros) else kernel
