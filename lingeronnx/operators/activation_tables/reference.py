"""Activations computed with tables: iqSigmoid, iqTanh, GluInt, QGelu, QSwish, iqTable.

Sigmoid and tanh are piecewise linear, with 16 segments. The tables are the data of the simulator;
their evaluation is implemented here independently.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NotRequired, TypedDict

import numpy as np

from ...targets.arithmetic import Arithmetic, GluArithmetic, LutArithmetic, TableInputRule
from .._reference_arithmetic import (
    cast_to_width,
    exact_log2,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Gelu", "Glu", "Sigmoid", "Swish", "Table", "Tanh", "evaluate_curve"]


class _PiecewiseTable(TypedDict):
    """A piecewise linear function of inputs with `bits` bits, `fraction` of them fractional.

    Segment j covers |x| up to borders[j]; its line is
    ``(slopes[j] * x + offset[j] * 2^up[j]) >> down[j]``, where the offsets are `negative` or
    `positive` by the sign of x, and the slopes `slopes_negative` for x < 0 if there are any.
    """

    bits: int
    fraction: int
    borders: list[int]
    slopes: list[int]
    positive: list[int]
    negative: list[int]
    up: list[int]
    down: list[int]
    slopes_negative: NotRequired[list[int]]


@cache
def _load_tables() -> dict[str, dict[str, _PiecewiseTable]]:
    """Return the piecewise linear tables, chip -> function -> table, of the simulator's JSON file.

    It is read once.
    """
    path = files("simulator").joinpath("luts", "piecewise.json")
    tables: dict[str, dict[str, _PiecewiseTable]] = json.loads(path.read_text())["tables"]
    return tables


def _evaluate_line(function: str, chip: str, x: int) -> int:
    """Return the line of the first segment whose border is at least |x|, rounded down.

    `function` and `chip` select the table; the result has the table's fractional bits.
    """
    table = _load_tables()[chip][function]
    if function == "tanh":
        x = max(x, 1 - 2 ** (table["bits"] - 1))
    segment = next(j for j, border in enumerate(table["borders"]) if abs(x) <= border)
    offset = (table["negative"] if x < 0 else table["positive"])[segment]
    slope = (table.get("slopes_negative") or table["slopes"] if x < 0 else table["slopes"])[segment]
    scaled_offset = offset * 2 ** table["up"][segment]
    return int((slope * x + scaled_offset) // 2 ** table["down"][segment])


@cache
def evaluate_curve(function: str, chip: str, x: int, bits: int) -> int:
    """Return sigmoid or tanh of an integer `x`, by the chip's table of lines, as an integer.

    The segment is the first whose border is at least |x|. Its line is computed exactly and rounded
    down, then the result is rounded half up to bits - 1 fractional bits and saturated.

    Parameters
    ----------
    function
        "sigmoid" or "tanh".
    chip
        Name of the chip whose table is used.
    x
        Input, in Q11 (11 fractional bits) for venus and Q27 for the other chips.
    bits
        Bits of the result.
    """
    shift = _load_tables()[chip][function]["fraction"] - (bits - 1)
    return int(saturate(round_shift_half_up(_evaluate_line(function, chip, x), shift), bits))


def _evaluate_array(function: str, chip: str, x: np.ndarray, bits: int) -> np.ndarray:
    """Return sigmoid or tanh (`function`) of each element of `x`, as Python integers.

    `x` has the fractional bits of the table of `chip`; results have `bits` bits, all but one
    fractional.
    """

    def evaluate(value: int) -> int:
        """Return the function of one integer `value`."""
        return evaluate_curve(function, chip, int(value), bits)

    results: np.ndarray = np.vectorize(evaluate, otypes=[object])(x)
    return results


class Sigmoid(Integer):
    """Sigmoid with 7 fractional bits, whatever scale_o is.

    venus 3.0.4 never shifts left: a scale below 2^11 is treated as 2^11. venusA 3.0.4 treats every
    input as 0. Later executors of venusA round to Q31 first.
    """

    names: tuple[str, ...] = ("iqSigmoid", "QSigmoid")
    function = "sigmoid"

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the function of input 0 by the target's table: int8 with 7 fractional bits.

        The input is first rescaled to Q27 (27 fractional bits), on venus Q11, which some executors
        only do by right shifts. On targets with a faulty table it is replaced by 0.
        """
        q, arithmetic = exact_log2(a.scale("scale_x")), expect_arithmetic(arithmetic, LutArithmetic)
        chip = arithmetic.table.value
        fraction_bits = arithmetic.table.input_fraction_bits
        input_bits = 16 if fraction_bits == 11 else 32
        if arithmetic.input_rule is TableInputRule.RIGHT_SHIFT_ONLY:
            x = round_shift_half_up(to_python_ints(inputs[0]), max(q - 11, 0))
        else:
            shifted = round_shift_half_up(to_python_ints(inputs[0]), q - fraction_bits)
            x = saturate(shifted, input_bits)
        if arithmetic.input_rule is TableInputRule.ALWAYS_ZERO:
            x = x * 0
        if arithmetic.rounds_twice:
            q31 = _evaluate_array(self.function, chip, x, 32)
            return cast_to_width(saturate(round_shift_half_up(q31, 24), 8), 8)
        return cast_to_width(_evaluate_array(self.function, chip, x, 8), 8)


class Tanh(Sigmoid):
    """Tanh with 7 fractional bits, whatever scale_o is."""

    names: tuple[str, ...] = ("iqTanh", "QTanh")
    function = "tanh"


class Gelu(Integer):
    """GELU on venusA, by its table from Q27 to Q27."""

    names: tuple[str, ...] = ("QGelu",)
    function = "gelu"

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the function of input 0, shifted to Q27 and from there to scale_o and o_bits."""
        arithmetic = expect_arithmetic(arithmetic, LutArithmetic)
        shift = exact_log2(a.scale("scale_x")) - 27
        x = saturate(round_shift_half_up(to_python_ints(inputs[0]), shift), 32)
        chip = arithmetic.table.value
        table_bits = _load_tables()[chip][self.function]["fraction"]
        lines = np.vectorize(lambda v: _evaluate_line(self.function, chip, int(v)), [object])(x)
        y = saturate(round_shift_half_up(lines, table_bits - 27), 32)
        down = 27 - exact_log2(a.scale("scale_o"))
        return cast_to_width(saturate(round_shift_half_up(y, down), a.o_bits), a.o_bits)


class Swish(Gelu):
    """SiLU on venusA, by its table from Q27 to Q27."""

    names: tuple[str, ...] = ("QSwish",)
    function = "swish"


class Glu(Integer):
    """The first half of axis `dim` times the sigmoid of the second half."""

    names: tuple[str, ...] = ("GluInt", "QGLU")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Split x in two along `dim` (default -1), and return first half * sigmoid(second half).

        The sigmoid is evaluated from Q27 to Q31 (fractional bits), on venus from Q11 to Q15, and
        rounded to the width of the gate, usually Q15; the product is requantized once, to scale_o
        and o_bits.
        """
        arithmetic = expect_arithmetic(arithmetic, GluArithmetic)
        chip, gate_bits = arithmetic.table.value, arithmetic.gate_bits or 16
        fraction_bits = arithmetic.table.input_fraction_bits
        table_bits = 16 if fraction_bits == 11 else 32
        value, gate = np.split(inputs[0], 2, int(a.get("dim", -1)))
        shift = exact_log2(a.scale("scale_x")) - fraction_bits
        table_input = saturate(round_shift_half_up(to_python_ints(gate), shift), table_bits)
        gates = _evaluate_array("sigmoid", chip, table_input, table_bits)
        gates = round_shift_half_up(gates, table_bits - gate_bits)
        if gate_bits == 8:
            gates = saturate(gates, 8)
        acc = to_python_ints(value) * gates
        ratio = a.scale("scale_o") / (a.scale("scale_x") * 2.0 ** (gate_bits - 1))
        return requantize(acc, ratio, a.o_bits, arithmetic.requantize)


class Table(Integer):
    """Any function, as a table with one entry per input integer."""

    names: tuple[str, ...] = ("iqTable",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return, per element of input 0 (x), the entry of the table (input 1) at index x - min.

        There min is the smallest integer of the type of x.
        """
        x, table = inputs
        return table[x.astype(np.int64) - np.iinfo(x.dtype).min]


FAMILY: tuple[type[Integer], ...] = (Glu, Sigmoid, Tanh, Gelu, Swish, Table)
