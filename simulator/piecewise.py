"""Sigmoid, tanh, gelu and swish as the NPU computes them: 16 linear segments, selected by |x|.

    j = the first segment with |x| <= borders[j]
    y = (slope[j] * x + (bias[j] << up[j])) >> down[j]     slope and bias by the sign of x;
                                                           >> rounds down

One formula for all chips; the tables (`luts/piecewise.json`) differ:

========  ===========  =====================================
venus     Q11 -> Q15   int16 in
arcs      Q27 -> Q31   int32 in
venusA    Q27 -> Q58   int32 in; rounded once, to any width
gelu ...  Q27 -> Q54   int32 in; rounded once, to int32 Q27
========  ===========  =====================================

No x is beyond the last border, because the executor saturates its inputs to int16 or int32. The
training library passes 32-bit Q11 numbers to the table of venus without saturating them, and gets 0
from both functions beyond +-2^15 (16 in float), where sigmoid is 1 and tanh is 1 or -1:
`Piecewise.evaluate_unsaturated`. Elsewhere such an x is an error.

Owns: the tables and this formula. Must not know: the operators that use the values, or their number
formats.
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
    """A table in the form that kernels evaluate.

    Attributes
    ----------
    values
        For 16-bit x all results: [65537] for x = -2^15..2^15, in the narrowest type. Else empty.
    pieces
        For wider x a lower bound of the segment index, by |x| >> `piece_index_shift`; the shift is
        so small that at most one border is in each interval.
    piece_index_shift
        See `pieces`.
    rows
        int64 [80]: 16 borders, 16 slopes, 16 biases for x >= 0 and 16 for x < 0 in the format of
        the product, 16 right shifts.
    min_input
        x is clamped to at least this value.
    shift
        Rounded right shift from the table's format to the result.
    bits
        Width of the result, which is saturated.
    """

    values: np.ndarray
    pieces: np.ndarray
    piece_index_shift: int
    rows: np.ndarray
    min_input: int
    shift: int
    bits: int


@register_inline
def evaluate_curve(curve: Any, x: Any) -> Any:
    """Return the value of table `curve` at one integer x, rounded half up and saturated.

    For kernels; it equals the table's evaluation on arrays.
    """
    wide: Any = np.int64(x)
    if curve.values.size:
        clamped: Any = min(max(wide, -32768), 32768)
        return np.int64(curve.values[clamped + 32768])
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
    """One function on one chip, by 16 linear segments that |x| selects.

    All arrays int64 [16]. y = (slope * x + (bias << up)) >> down, in the first segment j with |x|
    <= borders[j].

    Parameters
    ----------
    borders, slopes, up, down
        Largest |x|, slope, and left and right shift of each segment.
    positive, negative
        Biases for x >= 0 and for x < 0.
    bits
        Width of x.
    fraction_bits
        Fractional bits of y.
    is_odd
        Whether the function is odd; x is then clamped to at least -(2^(bits-1) - 1).
    slopes_negative
        Slopes for x < 0, if they differ from `slopes`.
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
        """Evaluate the function for integers x of any shape; return y, int64, not rounded.

        Raises
        ------
        ValueError
            If an x is beyond the last border.
        """
        x = np.asarray(x, np.int64)
        if np.abs(x).max(initial=0) > self.borders[-1]:
            raise ValueError(
                f"|x| is up to {np.abs(x).max()}, beyond the last segment, which ends at "
                f"{self.borders[-1]}"
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
        """Return y, int64, for integers x of any width; 0 beyond the last border.

        This is the behaviour of the training library where it omits the saturation: its loop over
        the segments matches none there.
        """
        x = np.asarray(x, np.int64)
        is_outside = np.abs(x) > self.borders[-1]
        return np.where(is_outside, 0, self(np.where(is_outside, 0, x)))

    def evaluate_rounded(self, x: np.ndarray, bits: int) -> np.ndarray:
        """Return y for integers x, int64, with bits-1 fractional bits, saturated to `bits` bits.

        Rounded half up. Raises ValueError if an x is beyond the last border.
        """
        return self.evaluate_to_fraction(x, bits - 1, bits)

    def evaluate_to_fraction(self, x: np.ndarray, fraction: int, bits: int) -> np.ndarray:
        """Return y for integers x, int64, with `fraction` fractional bits, saturated to `bits`.

        Rounded half up. Raises ValueError if an x is beyond the last border.
        """
        return saturate_array(round_shift_right(self(x), self.fraction_bits - fraction), bits)

    def curve(self, bits: int) -> KernelCurve:
        """Return the table in the form for kernels.

        Results have `bits` bits, bits-1 of them fractional. Not for tables with separate slopes for
        x < 0.
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
        min_input = -(1 << (self.bits - 1)) + self.is_odd
        values, pieces, index_shift = np.zeros(0, np.int32), np.zeros(1, np.int8), 0
        if self.bits == 16:
            inputs = np.arange(-(1 << 15), (1 << 15) + 1)
            values = self.evaluate_rounded(inputs, bits).astype(integer_dtype(bits))
        else:
            index_shift = int(np.diff(self.borders).min()).bit_length() - 1
            starts = np.arange((int(self.borders[-2]) >> index_shift) + 2) << index_shift
            pieces = np.searchsorted(self.borders, starts).astype(np.int8)
        shift = self.fraction_bits - (bits - 1)
        return KernelCurve(values, pieces, index_shift, rows.reshape(-1), min_input, shift, bits)


@cache
def load_piecewise(function: str, chip: str) -> Piecewise:
    """Load the table of a function on a chip; the same object on each call.

    Parameters
    ----------
    function
        "sigmoid" or "tanh"; on venusA also "gelu" and "swish".
    chip
        "venus", "arcs" or "venusA". KeyError for a chip or function without a table.
    """
    table = json.loads(_TABLES.read_text())["tables"][chip][function]
    arrays = {
        key: np.array(value, np.int64) for key, value in table.items() if isinstance(value, list)
    }
    return Piecewise(
        **arrays, bits=table["bits"], fraction_bits=table["fraction"], is_odd=function == "tanh"
    )
