"""Sigmoid and tanh of 16 straight pieces, and what is one lookup away from them.

IqSigmoid, iqTanh, GluInt, iqTable.
The pieces' tables are the simulator's data; how to read them is written here again.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TypedDict

import numpy as np

from ..targets.arithmetic import Arithmetic, LutArithmetic, TableInputRule
from ._arithmetic import (
    cast_to_width,
    exact_log2,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from ._base import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Glu", "Sigmoid", "Table", "Tanh", "evaluate_curve"]


class _PiecewiseTable(TypedDict):
    """A curve of `bits` bits with `fraction` of them behind the point, in pieces up to each of `borders`."""

    bits: int
    fraction: int
    borders: list[int]
    slopes: list[int]
    positive: list[int]
    negative: list[int]
    up: list[int]
    down: list[int]


@cache
def _load_tables() -> dict[str, dict[str, _PiecewiseTable]]:
    return json.loads(files("simulator").joinpath("luts", "piecewise.json").read_text())["tables"]


@cache
def evaluate_curve(function: str, chip: str, x: int, bits: int) -> int:
    """Return `function` of the integer `x`, Q11 on venus and Q27 on the others, with bits - 1 fractional bits.

    The piece is the first whose border is not below |x|; its line is computed exactly and rounded
    down, then the result is rounded half up and saturated.
    """
    t = _load_tables()[chip][function]
    if function == "tanh":
        x = max(x, 1 - 2 ** (t["bits"] - 1))
    piece = next(j for j, border in enumerate(t["borders"]) if abs(x) <= border)
    offset = (t["negative"] if x < 0 else t["positive"])[piece]
    line = (t["slopes"][piece] * x + offset * 2 ** t["up"][piece]) // 2 ** t["down"][piece]
    return int(saturate(round_shift_half_up(line, t["fraction"] - (bits - 1)), bits))


class Sigmoid(Integer):
    """A curve of every integer, with 7 fractional bits whatever scale_o says.

    venus never shifts left: a scale below 2^11 counts as 2^11. venusA reads every input as 0.
    """

    names: tuple[str, ...] = ("iqSigmoid", "QSigmoid")
    function = "sigmoid"

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """To the table's format, along the curve."""
        q, arithmetic = exact_log2(a.scale("scale_x")), expect_arithmetic(arithmetic, LutArithmetic)
        chip = arithmetic.table.value
        if arithmetic.input_rule is TableInputRule.RIGHT_SHIFT_ONLY:
            x = round_shift_half_up(to_python_ints(inputs[0]), max(q - 11, 0))
        else:
            x = saturate(round_shift_half_up(to_python_ints(inputs[0]), q - 27), 32)
        if arithmetic.input_rule is TableInputRule.ALWAYS_ZERO:
            x = x * 0
        return cast_to_width(
            np.vectorize(lambda v: evaluate_curve(self.function, chip, int(v), 8), otypes=[object])(
                x
            ),
            8,
        )


class Tanh(Sigmoid):
    """The same of tanh."""

    names: tuple[str, ...] = ("iqTanh", "QTanh")
    function = "tanh"


class Glu(Integer):
    """The first half of the last axis times the sigmoid of the second, as venusA computes it."""

    names: tuple[str, ...] = ("GluInt", "QGLU")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Gate in Q27, sigmoid in Q31, then Q15; one rounding of the product."""
        value, gate = np.split(inputs[0], 2, int(a.get("dim", -1)))
        q27 = saturate(
            round_shift_half_up(to_python_ints(gate), exact_log2(a.scale("scale_x")) - 27), 32
        )
        q31 = np.vectorize(
            lambda v: evaluate_curve("sigmoid", "venusA", int(v), 32), otypes=[object]
        )(q27)
        acc = to_python_ints(value) * round_shift_half_up(q31, 16)
        return requantize(
            acc, a.scale("scale_o") / (a.scale("scale_x") * 2**15), a.o_bits, arithmetic.requantize
        )


class Table(Integer):
    """Any function: the entry of every integer is an input."""

    names: tuple[str, ...] = ("iqTable",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Entry x - lowest x."""
        x, table = inputs
        return table[x.astype(np.int64) - np.iinfo(x.dtype).min]


FAMILY: tuple[type[Integer], ...] = (Glu, Sigmoid, Tanh, Table)
