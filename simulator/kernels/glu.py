"""Gated linear unit: the first half of an axis times the sigmoid of the second half.

y = rescale(a * gate[b])      gate: sigmoid of every int8 b, in Q15 or another width
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
    """Fill out [R, K] with rescale(x[:, 0] * gate[x[:, 1] + 128]) for int8 x [R, 2, K].

    `gate` is int32 or int64 [256], the sigmoid of each integer from -128 on; `rescale` is the form
    of the product, of the same type -> out.
    """
    for row in range(x.shape[0]):
        a, b, target = x[row, 0], x[row, 1], out[row]
        for i in range(target.size):
            target[i] = apply_rescale(rescale, a[i] * gate[np.int64(b[i]) + 128])


@dataclass(frozen=True, eq=False)
class Glu(Kernel):
    """Gated linear unit of int8 x [.., 2K, ..] with output [.., K, ..].

    Parameters
    ----------
    sigmoid_table
        int64 [256], for b = -128..127; see `gates`.
    rescale
        Product at the scale of x times 2^(gate_bits - 1) -> output.
    axis
        Axis that is split into two halves.
    gate_bits
        Width of the sigmoid, 8, 16 or 32, all but one fractional.
    """

    sigmoid_table: np.ndarray
    rescale: Rescale
    axis: int = -1
    gate_bits: int = 16

    @property
    def is_per_sample(self) -> bool:
        """Whether the gated unit keeps samples separate: True unless it splits axis 0."""
        return self.axis != 0

    @classmethod
    def gates(
        cls, q: int, chip: str = "venusA", bits: int = 16, saturates: bool = False
    ) -> np.ndarray:
        """Return the chip's sigmoid of the integers -128..127 at scale 2^q, int64 [256].

        It has `bits` bits, all but one fractional, and is computed from Q27 to Q31 and then
        rounded half up; only 8 bits are saturated. On venus it is computed from Q11 to Q15; where x
        is beyond the table, it is 0 unless the input `saturates`.
        """
        table = load_piecewise("sigmoid", chip)
        inputs = round_shift_right(np.arange(-128, 128), q - (11 if table.bits == 16 else 27))
        if table.bits == 16 and not saturates:
            gates = table.evaluate_unsaturated(inputs)
        else:
            gates = table.evaluate_rounded(saturate_array(inputs, table.bits), table.bits)
        gates = round_shift_right(gates, table.bits - bits)
        return saturate_array(gates, 8) if bits == 8 else np.asarray(gates)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the type of the rescale, with half as many elements along the axis as int8 x.

        Raises SimulatorError unless x is int8 and has an even number of elements there.
        """
        (x,) = specs
        rank = len(x.shape)
        require(-rank <= self.axis < rank, f"axis {self.axis} does not exist in {x}")
        shape, axis = list(x.shape), self.axis % rank
        require(x.dtype == np.int8 and shape[axis] % 2 == 0, f"Glu requires int8 [.., 2K], not {x}")
        shape[axis] //= 2
        return (TensorSpec(tuple(shape), self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of the gated unit, with a rescale form for products up to 128 times 1."""
        form, shape = self.rescale.compile_for_bound(128 << (self.gate_bits - 1)), specs[0].shape
        half = math.prod(shape[self.axis % len(shape) :]) // 2
        kind = np.int32 if self.gate_bits <= 16 else np.int64
        gate = np.ascontiguousarray(self.sigmoid_table, kind)
        return NativeLoop(_glu, (InputRef(0, (-1, 2, half)), gate, form, OutputRef(0, (-1, half))))
