"""Gated linear unit: the first half of an axis times the sigmoid of the second half.

y = rescale(a * gate[b])      gate: sigmoid of every int8 b in Q15
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import (
    Rescale,
    RescaleForm,
    apply_rescale,
    round_shift_right,
    saturate_array,
)
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.native import InputRef, NativeLoop, OutputRef
from simulator.piecewise import load_piecewise

__all__ = ["Glu"]


@jit
def _glu(x: Array, gate: Array, rescale: RescaleForm, out: Array) -> None:
    for row in range(x.shape[0]):
        a, b, target = x[row, 0], x[row, 1], out[row]
        for i in range(target.size):
            target[i] = apply_rescale(rescale, np.int32(a[i]) * gate[np.int64(b[i]) + 128])


@dataclass(frozen=True, eq=False)
class Glu(Kernel):
    """Map int8 x [.., 2K, ..] -> [.., K, ..].

    Parameters
    ----------
    gate
        int64 [256], Q15, for b = -128..127; see `gates`.
    rescale
        Product at the scale of x times 2^15 -> output.
    axis
        The axis that is halved.
    """

    sigmoid_table: np.ndarray
    rescale: Rescale
    axis: int = -1

    @property
    def is_per_sample(self) -> bool:
        """Halving axis 0 mixes samples."""
        return self.axis != 0

    @classmethod
    def gates(cls, q: int, chip: str = "venusA") -> np.ndarray:
        """Return the chip's sigmoid of -128..127 at scale 2^q in Q15, int64.

        By way of Q27 and Q31, each rounded half up; venus has Q15 from Q11, and 0 where x leaves
        the table.
        """
        table = load_piecewise("sigmoid", chip)
        if table.bits == 16:
            return table.evaluate_unsaturated(round_shift_right(np.arange(-128, 128), q - 11))
        return np.asarray(
            round_shift_right(
                table.evaluate_rounded(
                    saturate_array(round_shift_right(np.arange(-128, 128), q - 27), 32), 32
                ),
                16,
            )
        )

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y with half as many elements along the axis."""
        (x,) = specs
        rank = len(x.shape)
        require(-rank <= self.axis < rank, f"axis {self.axis} is not one of {x}")
        shape, axis = list(x.shape), self.axis % rank
        require(x.dtype == np.int8 and shape[axis] % 2 == 0, f"Glu takes int8 [.., 2K], not {x}")
        shape[axis] //= 2
        return (TensorSpec(tuple(shape), self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Choose the rescaling for the largest product, 128 * 2^15."""
        form, shape = self.rescale.compile_for_bound(128 << 15), specs[0].shape
        half = math.prod(shape[self.axis % len(shape) :]) // 2
        gate = np.ascontiguousarray(self.sigmoid_table, np.int32)
        return NativeLoop(_glu, (InputRef(0, (-1, 2, half)), gate, form, OutputRef(0, (-1, half))))
