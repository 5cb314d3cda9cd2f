"""Quotient of two computed tensors, as the NPU divides: `fixed.luna_div` of int32 numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed import INT32_MAX, INT32_MIN, luna_div
from simulator.kernel import Array, Kernel, Run, Spec, require
from simulator.kernels._common import broadcast, stretched

__all__ = ["Div"]


@jit
def _div(x: Array, y: Array, shift: int, by_sign: bool, out: Array) -> None:
    for i in range(out.size):
        if y[i] == 0 and by_sign:
            out[i] = INT32_MIN if x[i] > 0 else (INT32_MAX if x[i] < 0 else 0)
        else:
            out[i] = luna_div(np.int64(x[i]), np.int64(y[i]), shift)


@dataclass(frozen=True, eq=False)
class Div(Kernel):
    """int32 x * 2^shift / y.

    Parameters
    ----------
    shift
        Left shift of the numerator; a negative one gives the most negative integer everywhere.
    by_sign
        Whether x / 0 is the most negative integer for x > 0, the largest for x < 0 and 0 for 0; otherwise it is always
        the most negative one.
    """

    shift: int = 0
    by_sign: bool = False

    layout: ClassVar[str] = "any"

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Broadcast."""
        require(all(spec.dtype == np.int32 for spec in specs), f"Div takes int32, not {specs[0]} and {specs[1]}")
        return (Spec(broadcast(specs), np.dtype(np.int32)),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Flatten."""
        if self.shift < 0:
            return lambda ins, outs: outs[0].fill(INT32_MIN)

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            x, y = (stretched(array, outs[0].shape) for array in ins)
            _div(x, y, self.shift, self.by_sign, outs[0].reshape(-1))

        return run
