"""Sigmoid and tanh of integers of any width, by the piecewise linear tables.

    v = sat(rsh(x, shift))          the format of the table, see `simulator.piecewise`
    y = sat(rsh(table(v), ...))     `bits` bits, all but one fractional

For inputs of 8 and 16 bits `lookup_table` is faster; here are no tables of all results. Must not
know: the operators that use the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import integer_dtype, round_shift_right, saturate
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec
from simulator.kernels.loops._common import require_signed_integer
from simulator.kernels.loops._copy import FLAT_IN, FLAT_OUT
from simulator.native import NativeLoop
from simulator.piecewise import evaluate_curve, load_piecewise

__all__ = ["PiecewiseCurve"]

#: A right shift beyond which every int32 gives 0, and a left shift beyond which all but 0 saturate.
_MAX_RIGHT_SHIFT, _MAX_LEFT_SHIFT = 40, 31


@jit
def _evaluate_curve_flat(
    x: Array, shift: int, input_bits: int, curve: Any, after: int, bits: int, out: Array
) -> None:
    """Fill flat `out` with the table `curve` of flat integers x.

    Every x is shifted right by `shift`, rounded half up, and saturated to `input_bits` bits. The
    value of the table is shifted right by `after`, rounded half up, and saturated to `bits` bits.
    """
    for i in range(out.size):
        value = saturate(round_shift_right(np.int64(x[i]), shift), input_bits)
        out[i] = saturate(round_shift_right(evaluate_curve(curve, value), after), bits)


@dataclass(frozen=True, eq=False)
class PiecewiseCurve(Kernel):
    """Elementwise sigmoid or tanh of integers of at most 32 bits.

    Parameters
    ----------
    function
        "sigmoid" or "tanh".
    table
        Chip whose tables are used.
    shift
        Right shift from the scale of x to the format of the table; negative: left.
    bits
        Width of y, which has one fractional bit less.
    rounds_twice
        Whether the value is rounded to 32 bits first, then to `bits`.
    """

    function: str
    table: str
    shift: int
    bits: int = 8
    rounds_twice: bool = False

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and `bits` bits.

        Raises SimulatorError unless x is a signed integer.
        """
        require_signed_integer(specs[0], type(self).__name__)
        return (TensorSpec(specs[0].shape, integer_dtype(self.bits)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop over all elements, with the table of the function."""
        function = load_piecewise(self.function, self.table)
        table_bits = 32 if self.rounds_twice else self.bits
        shift = min(max(self.shift, -_MAX_LEFT_SHIFT), _MAX_RIGHT_SHIFT)
        constants = shift, function.bits, function.curve(table_bits), table_bits - self.bits
        return NativeLoop(_evaluate_curve_flat, (FLAT_IN, *constants, self.bits, FLAT_OUT))
