"""Any function of one number: a table with one entry per input integer.

    y = values[x + 2^(b-1)]      b: the width of x, 8 or 16

Must not know: which function; `simulator.piecewise` and the operators work the entries out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._copy import FLAT_IN, FLAT_OUT
from simulator.native import NativeLoop

__all__ = ["Table", "all_integers"]


def all_integers(bits: int) -> np.ndarray:
    """Return every integer of `bits` bits, ascending, int64 [2^bits].

    The inputs that a table is made for.
    """
    top = 1 << (bits - 1)
    return np.arange(-top, top, dtype=np.int64)


@jit
def _apply_table(x: Array, values: Array, top: int, out: Array) -> None:
    for i in range(out.size):
        out[i] = values[np.int64(x[i]) + top]


@dataclass(frozen=True, eq=False)
class Table(Kernel):
    """Map int8 or int16 x -> y of the same shape.

    Parameters
    ----------
    values
        Integers [256] for int8 x, [65536] for int16 x; their dtype is that of y.
    """

    values: np.ndarray

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the same shape."""
        (x,) = specs
        fits = (
            x.dtype.kind == "i"
            and x.dtype.itemsize <= 2
            and self.values.shape == (1 << (8 * x.dtype.itemsize),)
        )
        require(fits, f"a table of {list(self.values.shape)} entries does not fit {x}")
        return (TensorSpec(x.shape, self.values.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Flatten; every integer of the input's type has an entry, so no index is out of range."""
        values = np.ascontiguousarray(self.values)
        top = len(values) // 2
        return NativeLoop(_apply_table, (FLAT_IN, values, top, FLAT_OUT))
