"""Operators that read integers in which another one than 0 stands for 0.

    y = kernel(x0 - zeros[0], x1 - zeros[1], ..)

The differences of 8-bit integers are held in 16 bits, which every kernel takes. Layers with weights
need no such copy: they fold the zero point into their bias (`conv.folded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.kernel import Kernel, RunFunction, TensorSpec, require

__all__ = ["ZeroPointKernel", "subtract_zero_points"]


@dataclass(frozen=True, eq=False)
class ZeroPointKernel(Kernel):
    """`kernel` on int8 inputs less their zero points.

    `zero_points` has one for each input, 0 where it is read as it is.
    """

    kernel: Kernel
    zero_points: tuple[int, ...]

    @property
    def layout(self) -> str:  # type: ignore[override]
        """That of the kernel."""
        return self.kernel.layout

    @property
    def is_per_sample(self) -> bool:
        """As the kernel."""
        return self.kernel.is_per_sample

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map the inputs as the kernel maps their differences."""
        return self.kernel.infer(*self._difference_specs(specs))

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Subtract, then run the kernel's loops."""
        built = self.kernel.build(self._difference_specs(specs), channel_last)
        loops, zeros = built if isinstance(built, tuple) else (built,), self.zero_points

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            moved = [
                x if z == 0 else np.subtract(x, z, dtype=np.int16)
                for x, z in zip(ins, zeros, strict=True)
            ]
            for loop in loops:
                loop(moved, outs)

        return run

    def fuse(self, consumer: Kernel) -> Kernel | None:
        """What the kernel absorbs, it absorbs here, too."""
        kernel = self.kernel.fuse(consumer)
        return None if kernel is None else replace(self, kernel=kernel)

    def _difference_specs(self, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
        require(
            len(specs) == len(self.zero_points),
            f"{len(self.zero_points)} zero points do not fit {len(specs)} inputs",
        )
        for spec, zero in zip(specs, self.zero_points, strict=True):
            require(
                zero == 0 or spec.dtype == np.int8, f"zero points are those of int8, not of {spec}"
            )
        return [
            s if z == 0 else TensorSpec(s.shape, np.dtype(np.int16))
            for s, z in zip(specs, self.zero_points, strict=True)
        ]


def subtract_zero_points(kernel: Kernel, *zeros: int) -> Kernel:
    """Return the kernel, on inputs less their zero points where there are any."""
    return ZeroPointKernel(kernel, zeros) if any(zeros) else kernel
