"""Evaluate piecewise linear functions of 16 segments on vectors of 16-bit lanes.

Twice as many lanes as in `_vector_curve`, and tables of 8 words that one instruction permutes. For
tables of 16 bits whose values have few bits:

    y = sat(bias + (slope * x >> down) + 2^(total-1)) >> total

The product is the upper half of (x * factor) * slope, where factor * slope is the table's slope
times 2^(16-down), and x * factor fits 16 bits within the segment. A slope of 16 bits without sign
takes an addition of x * factor; segments with down > 16, the last ones, a shift.

`pack_short_curve` compares this for all x with the table. Must not know: layers, gates.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from simulator.kernels.loops._register_tile import TileIrWriter
from simulator.piecewise import Piecewise

__all__ = ["ShortCurveEmitter", "ShortCurveKind", "pack_short_curve"]

_PIECES, _HALF = 16, 8
_WORD = ir.IntType(16)
#: Index of each table of 16 words in memory: borders of the last two levels of the search, slopes,
#: factors, biases for x >= 0 and for x < 0. The scalars follow.
_SECOND_BORDERS, _FIRST_BORDERS, _SLOPES, _FACTORS, _BIASES, _NEGATIVE_BIASES = range(6)
_SCALARS = 6 * _PIECES
_MIDDLE, _LOWER, _UPPER, _MIN_INPUT, _SHIFTED = range(_SCALARS, _SCALARS + 5)


class ShortCurveKind(NamedTuple):
    """What the code of a function is compiled for.

    total : rounded right shift of the values. has_wide_slopes : whether slopes have 16 bits without
    sign. shifted : right shift of the products of the last segments, 0 if there are none.
    """

    total: int
    has_wide_slopes: bool
    shifted: int


@cache
def pack_short_curve(
    table: Piecewise, bits: int, output_shift: int = 0
) -> tuple[ShortCurveKind, np.ndarray] | None:
    """Return kind and table (int16, viewed as int64) of a function with values of `bits` bits.

    None if the code cannot compute all its values exactly, or shifts them (`output_shift`).
    """
    total = table.fraction_bits - (bits - 1)
    if table.bits != 16 or output_shift or table.slopes_negative is not None or total < 1:
        return None
    limits = np.minimum(table.borders, (1 << 15) - 1)
    # factors are powers of two; the slopes take the rest of 2^(16-down)
    room = np.log2(((1 << 15) - 1) // limits).astype(np.int64)
    left = np.maximum(16 - table.down, 0)
    factors = 1 << np.minimum(left, room)
    slopes = (table.slopes << left) // factors
    shifts = np.maximum(table.down - 16, 0)
    shifted = int(shifts[-1])
    first_shifted = int(np.argmax(shifts > 0)) if shifted else _PIECES
    is_supported = (
        np.array_equal(table.up, table.down)
        and 0 <= slopes.min() <= slopes.max() < 1 << 16
        and np.array_equal(shifts, np.where(np.arange(_PIECES) < first_shifted, 0, shifted))
        and first_shifted > 0
    )
    if not is_supported:
        return None
    kind = ShortCurveKind(total, bool(slopes.max() >= 1 << 15), shifted)
    borders = -limits
    words = np.zeros(_SCALARS + 8, np.int64)
    tables = words[:_SCALARS].reshape(6, _PIECES)
    tables[_SECOND_BORDERS, :-1] = borders[1:]
    tables[_FIRST_BORDERS], tables[_SLOPES], tables[_FACTORS] = borders, slopes, factors
    tables[_BIASES], tables[_NEGATIVE_BIASES] = table.positive, table.negative
    words[_MIDDLE], words[_LOWER], words[_UPPER] = borders[[7, 3, 11]]
    words[_MIN_INPUT] = -(1 << 15) + table.is_odd
    words[_SHIFTED] = borders[first_shifted - 1]
    x = np.arange(-1 << 15, 1 << 15)
    if not np.array_equal(_evaluate(kind, words, x), table.evaluate_rounded(x, bits)):
        return None
    return kind, words.astype(np.int16).view(np.int64)


def _evaluate(kind: ShortCurveKind, words: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the values that the code computes for int64 x of 16 bits; see `ShortCurveEmitter`."""
    tables = words[:_SCALARS].reshape(6, _PIECES)
    x = np.maximum(x, words[_MIN_INPUT])
    negated = -np.abs(x)
    index = (negated[:, None] < tables[_FIRST_BORDERS][:-1]).sum(axis=1)
    scaled = (x * tables[_FACTORS][index]).astype(np.int16).astype(np.int64)
    product = (scaled * tables[_SLOPES][index]) >> 16
    product = np.where(negated < words[_SHIFTED], product >> kind.shifted, product)
    bias = np.where(x < 0, tables[_NEGATIVE_BIASES][index], tables[_BIASES][index])
    value = (product + bias).astype(np.int16).astype(np.int64)
    return np.minimum(value + (1 << (kind.total - 1)), (1 << 15) - 1) >> kind.total


class ShortCurveEmitter:
    """Emits the evaluation of a function on vectors of 16-bit lanes, two for each 32-bit lane."""

    def __init__(self, writer: TileIrWriter, table: Any, kind: ShortCurveKind) -> None:
        """Emit the loads of the parameters from the table of `pack_short_curve` at `table`."""
        self._writer, self._kind, self._table = writer, kind, table
        self._count = 2 * writer.target.lanes
        halves = [self._load_table(_HALF * index) for index in range(_SCALARS // _HALF)]
        self._tables = list(zip(halves[::2], halves[1::2], strict=True))
        self._middle, self._lower, self._upper, self._min_input, self._shifted = (
            self._load_splat(index) for index in (_MIDDLE, _LOWER, _UPPER, _MIN_INPUT, _SHIFTED)
        )

    def __call__(self, x: Any) -> Any:
        """Emit the function's values for 16-bit vectors x; return them."""
        writer, kind, b = self._writer, self._kind, self._writer.b
        zero = self._constant(0)
        x = b.select(b.icmp_signed(">", x, self._min_input), x, self._min_input)
        opposite = b.sub(zero, x)
        negated = b.select(b.icmp_signed("<", x, opposite), x, opposite)
        is_upper = b.icmp_signed("<", negated, self._middle)
        border = b.select(is_upper, self._upper, self._lower)
        control = self._constant(1 << 8)  # the bytes of word 0
        for step, table in ((4, _SECOND_BORDERS), (2, _FIRST_BORDERS), (1, None)):
            is_beyond = b.icmp_signed("<", negated, border)
            control = b.add(control, b.select(is_beyond, self._constant(step * 0x0202), zero))
            if table is not None:
                border = self._look_up(table, control, is_upper)
        scaled = b.mul(x, self._look_up(_FACTORS, control, is_upper))
        slope = self._look_up(_SLOPES, control, is_upper)
        product = writer.multiply_upper_words(scaled, slope)
        if kind.has_wide_slopes:
            is_wide = b.icmp_signed("<", slope, zero)
            product = b.add(product, b.select(is_wide, scaled, zero))
        if kind.shifted:
            is_shifted = b.icmp_signed("<", negated, self._shifted)
            shifted = b.ashr(product, self._constant(kind.shifted))
            product = b.select(is_shifted, shifted, product)
        biases = [self._look_up(name, control, is_upper) for name in (_NEGATIVE_BIASES, _BIASES)]
        value = b.add(product, b.select(b.icmp_signed("<", x, zero), *biases))
        value = writer.add_saturated(value, self._constant(1 << (kind.total - 1)))
        return b.ashr(value, self._constant(kind.total))

    def _look_up(self, table: int, control: Any, is_upper: Any) -> Any:
        """Emit the words of a table at the bytes `control` of its lower or upper half."""
        permute = self._writer.permute_bytes
        lower, upper = (permute(half, control) for half in self._tables[table])
        return self._writer.b.select(is_upper, upper, lower)

    def _load_table(self, first: int) -> Any:
        """Emit the load of 8 words from word `first` on, repeated in a vector."""
        address = self._writer.add_offset(self._table, 2 * first)
        words = self._writer.load(address, ir.VectorType(_WORD, _HALF))
        return self._repeat(words, [lane % _HALF for lane in range(self._count)])

    def _load_splat(self, index: int) -> Any:
        """Emit the load of word `index` into all lanes."""
        address = self._writer.add_offset(self._table, 2 * index)
        return self._repeat(self._writer.load(address, ir.VectorType(_WORD, 1)), [0] * self._count)

    def _repeat(self, words: Any, lanes: list[int]) -> Any:
        """Emit the vector whose lanes are those of `words` at the given indices."""
        order = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self._writer.b.shuffle_vector(words, words, order)

    def _constant(self, value: int) -> Any:
        """Return a vector constant with `value` in every lane."""
        return ir.Constant(ir.VectorType(_WORD, self._count), [value] * self._count)
