"""Sigmoid, tanh, gelu and swish as the NPU computes them: 16 straight pieces, told apart by |x|.

    j = the first piece with |x| <= borders[j]
    y = (slope[j] * x + (bias[j] << up[j])) >> down[j]     slope and bias by the sign of x; >>
    rounds down

One formula for all chips; the tables (`luts/piecewise.json`) differ:

========  ===========  =====================================
venus     Q11 -> Q15   int16 in
arcs      Q27 -> Q31   int32 in
venusA    Q27 -> Q58   int32 in; rounded once, to any width
gelu ...  Q27 -> Q54   the same; rounded once, to int32 Q27
========  ===========  =====================================

No x lies beyond the last border: the executor hands over what its int16 or int32 holds, saturated.
The training library hands venus' table Q11 numbers of 32 bits without saturating them, and beyond
+-2^15 (a real 16) gets 0 from both functions, where sigmoid is 1 and tanh is 1 or -1:
`Piecewise.evaluate_unsaturated`. To all others such an x is an error.

Owns: the tables and this formula. Must not know: who needs the values, or in which format he has
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator._jit import register_inline
from simulator.fixed_point import integer_dtype, round_shift_right, saturate, saturate_array

__all__ = ["KernelCurve", "Piecewise", "evaluate_curve", "load_piecewise"]

_TABLES = Path(__file__).parent / "luts" / "piecewise.json"


class KernelCurve(NamedTuple):
    """A table in the form kernels take.

    Functions of 16 bits are written down: `values` [65537] for x = -2^15..2^15, in the narrowest
    type, for the cache. For wider ones a first guess of the piece is written down: `pieces` [n] by
    |x| >> `piece_index_shift`, of which no two borders share a value.
    """

    values: np.ndarray
    pieces: np.ndarray
    piece_index_shift: int
    rows: (
        np.ndarray
    )  # 16 borders, slopes, biases of x >= 0 and of x < 0 in the format of the product, downs
    min_input: int
    shift: int
    bits: int


@register_inline
def evaluate_curve(curve: Any, x: Any) -> Any:
    """Return the value of `curve` at one integer x, rounded half up and saturated.

    `Piecewise.evaluate_rounded` in kernels.
    """
    wide: Any = np.int64(x)
    if curve.values.size:
        place: Any = min(max(wide, -32768), 32768)
        return np.int64(curve.values[place + 32768])
    rows = curve.rows
    x = max(wide, curve.min_input)
    size: Any = abs(x)
    piece: Any = np.int64(curve.pieces[min(size >> curve.piece_index_shift, curve.pieces.size - 1)])
    piece += size > rows[piece]
    bias = rows[32 + 16 * (x < 0) + piece]
    return saturate(
        round_shift_right((rows[16 + piece] * x + bias) >> rows[64 + piece], curve.shift),
        curve.bits,
    )


@dataclass(frozen=True, eq=False)
class Piecewise:
    """One function on one chip; all arrays int64 [16].

    Parameters
    ----------
    borders, slopes, up, down
        See the formula. Where `slopes_negative` is given, it holds the slopes for x < 0.
    positive, negative
        The bias for x >= 0 and for x < 0.
    bits
        Width of x; values are saturated to +-(2^(bits-1) - 1) where the function is odd, which
        `is_odd` says.
    fraction
        Fractional bits of y.
    """

    borders: np.ndarray
    slopes: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    up: np.ndarray
    down: np.ndarray
    bits: int
    fraction_bits: int
    is_odd: bool
    slopes_negative: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return y, int64, for integers x in any shape.

        ValueError where one lies beyond the last border.
        """
        x = np.asarray(x, np.int64)
        if np.abs(x).max(initial=0) > self.borders[-1]:
            raise ValueError(
                f"x reaches {np.abs(x).max()}; the last piece ends at {self.borders[-1]}"
            )
        if self.is_odd:
            x = np.maximum(x, 1 - (1 << (self.bits - 1)))
        j = np.searchsorted(self.borders, np.abs(x))
        bias = np.where(x < 0, self.negative[j], self.positive[j])
        slope = self.slopes[j]
        if self.slopes_negative is not None:
            slope = np.where(x < 0, self.slopes_negative[j], slope)
        return (slope * x + (bias << self.up[j])) >> self.down[j]

    def evaluate_unsaturated(self, x: np.ndarray) -> np.ndarray:
        """Return y, int64, for integers x of any width, 0 beyond the last border.

        So does the training library where it leaves the saturation out: its loop over the pieces
        finds none there.
        """
        x = np.asarray(x, np.int64)
        outside = np.abs(x) > self.borders[-1]
        return np.where(outside, 0, self(np.where(outside, 0, x)))

    def evaluate_rounded(self, x: np.ndarray, bits: int) -> np.ndarray:
        """Return y with bits-1 fractional bits, rounded half up and saturated to `bits` bits.

        Int64.
        """
        return self.evaluate_to_fraction(x, bits - 1, bits)

    def evaluate_to_fraction(self, x: np.ndarray, fraction: int, bits: int) -> np.ndarray:
        """Return y with `fraction` fractional bits, rounded half up and saturated to `bits` bits.

        Int64.
        """
        return saturate_array(round_shift_right(self(x), self.fraction_bits - fraction), bits)

    def curve(self, bits: int) -> KernelCurve:
        """Return the form for kernels whose results have `bits` bits.

        Not for tables with slopes of both signs.
        """
        rows = np.stack(
            [
                self.borders,
                self.slopes,
                self.positive << self.up,
                self.negative << self.up,
                self.down,
            ]
        )
        least = -(1 << (self.bits - 1)) + self.is_odd
        values, pieces, grain = np.zeros(0, np.int32), np.zeros(1, np.int8), 0
        if self.bits == 16:
            values = self.evaluate_rounded(np.arange(-(1 << 15), (1 << 15) + 1), bits).astype(
                integer_dtype(bits)
            )
        else:
            grain = int(np.diff(self.borders).min()).bit_length() - 1
            starts = np.arange((int(self.borders[-2]) >> grain) + 2) << grain
            pieces = np.searchsorted(self.borders, starts).astype(np.int8)
        return KernelCurve(
            values, pieces, grain, rows.reshape(-1), least, self.fraction_bits - (bits - 1), bits
        )


@cache
def load_piecewise(function: str, chip: str) -> Piecewise:
    """Return the table of `function` ("sigmoid", "tanh", venusA "gelu", "swish") on "venus", "arcs" or "venusA"."""
    row = json.loads(_TABLES.read_text())["tables"][chip][function]
    arrays = {
        key: np.array(value, np.int64) for key, value in row.items() if isinstance(value, list)
    }
    return Piecewise(
        **arrays, bits=row["bits"], fraction_bits=row["fraction"], is_odd=function == "tanh"
    )
