"""Matrix product of two computed tensors.

    y = rescale(x @ y)      [.., N, M] x [.., M, P] -> [.., N, P], NumPy's rules

Must not know: rounding. The accumulator is int32 where M products provably fit, else int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed import Form, Rescale, apply
from simulator.kernel import Array, Run, Spec, require
from simulator.kernels._common import Clipped, broadcast, integer, magnitude
from simulator.native import In, Loop, Out

__all__ = ["MatMul"]


@jit
def _matmul(x: Array, y: Array, zero: Array, rescale: Form, out: Array) -> None:
    acc = np.empty(y.shape[2], zero.dtype)
    for b in range(out.shape[0]):
        for n in range(x.shape[1]):
            acc[:] = 0
            for m in range(x.shape[2]):
                value, row = np.int64(x[b % len(x), n, m]), y[b % len(y), m]
                for p in range(acc.size):
                    acc[p] += value * row[p]
            target = out[b, n]
            for p in range(acc.size):
                target[p] = apply(rescale, acc[p])


@dataclass(frozen=True, eq=False)
class MatMul(Clipped):
    """Product of two integer tensors of rank 2 and more; leading axes broadcast."""

    rescale: Rescale
    clip: tuple[int, int] | None = None

    layout: ClassVar[str] = "plain"

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x, y -> x @ y."""
        x, y = specs
        integer(x, "MatMul")
        integer(y, "MatMul")
        fits = min(len(x.shape), len(y.shape)) >= 2 and x.shape[-1] == y.shape[-2]
        require(fits, f"{x} and {y} cannot be multiplied as matrices")
        batch = broadcast([Spec(s.shape[:-2], s.dtype) for s in specs])
        return (Spec((*batch, x.shape[-2], y.shape[-1]), self.rescale.dtype),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Bound the accumulator by the length of the rows."""
        bound = specs[0].shape[-1] * magnitude(specs[0].dtype) * magnitude(specs[1].dtype)
        require(bound < 1 << 62, f"accumulators up to {bound} do not fit 62 bits")
        form = self.rescale.within(bound, self.clip)
        zero = np.zeros(1, np.int32 if bound < 1 << 31 else np.int64)  # its dtype is the accumulator's
        (y,) = self.infer(*specs)
        if all(spec.shape[1:-2] == y.shape[1:-2] and len(spec.shape) > 2 for spec in specs):
            sides = (In(i, (-1, *spec.shape[-2:])) for i, spec in enumerate(specs))
            return Loop(_matmul, (*sides, zero, form, Out(0, (-1, *y.shape[-2:]))))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            x, y = (_matrices(array, outs[0].shape[:-2]) for array in ins)
            _matmul(x, y, zero, form, outs[0].reshape(-1, *outs[0].shape[-2:]))

        return run


def _matrices(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """Return `x` with its leading axes broadcast to `batch` and joined into one."""
    wide = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    return np.ascontiguousarray(wide).reshape(-1, *x.shape[-2:])
