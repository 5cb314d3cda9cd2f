"""Any elementwise function, as a lookup table with one entry per input integer.

    y = values[x + 2^(b-1)]      b: the width of x, 8 or 16

Must not know: the function; `simulator.piecewise` and the operators compute the entries.
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
    """Return all signed integers of `bits` bits, ascending, int64 [2^bits], as table inputs."""
    top = 1 << (bits - 1)
    return np.arange(-top, top, dtype=np.int64)


@jit
def _apply_table(x: Array, values: Array, top: int, out: Array) -> None:
    """Fill flat out with values[x + top], for flat int8 or int16 x.

    `values` [2 * top], of the type of out, has one entry per integer from -top on.
    """
    for i in range(out.size):
        out[i] = values[np.int64(x[i]) + top]


@dataclass(frozen=True, eq=False)
class Table(Kernel):
    """Elementwise function of int8 or int16 x.

    Parameters
    ----------
    values
        Integers [256] for int8 x, [65536] for int16 x; their dtype is that of y.
    """

    values: np.ndarray

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the table.

        Raises SimulatorError unless x is int8 or int16 and the table has one entry per value of
        that type.
        """
        (x,) = specs
        is_compatible = (
            x.dtype.kind == "i"
            and x.dtype.itemsize <= 2
            and self.values.shape == (1 << (8 * x.dtype.itemsize),)
        )
        require(is_compatible, f"a table of {list(self.values.shape)} entries does not match {x}")
        return (TensorSpec(x.shape, self.values.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the lookup loop over all elements.

        Every integer of x's type has an entry, so no index is invalid.
        """
        values = np.ascontiguousarray(self.values)
        top = len(values) // 2
        return NativeLoop(_apply_table, (FLAT_IN, values, top, FLAT_OUT))
