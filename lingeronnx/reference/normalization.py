"""Operators on rows: SoftmaxInt, LogSoftmaxInt, LayerNormInt.

One row at a time, in Python's integers.
"""

from __future__ import annotations

import math

import numpy as np

from ..targets.arithmetic import Arithmetic, SoftmaxArithmetic, SoftmaxDivision, SoftmaxRowRule
from ._arithmetic import (
    exact_log2,
    fixed_point_multiplier,
    requantize,
    round_shift_half_up,
    saturate,
)
from ._base import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "LayerNorm", "LogSoftmax", "Softmax"]

#: 2^f for f in [-1, 0): a polynomial in Q23, the highest power first.
_EXP2_COEFFICIENTS = (57364, 446161, 2008107, 5813551, 8388575)
_LOG2_E = 774541002  # Q29
_LN_2 = 45426  # Q16


def _exponentials(row: list[int], how: SoftmaxArithmetic) -> tuple[list[int], list[int]]:
    """Return d (Q25) and e^d (Q23) for d = x - max.

    VenusA rounds the last step and the shift in one.
    """
    distances = [saturate(x - max(row), 32).item() for x in row]
    powers = []
    for d in distances:
        t = round_shift_half_up(d * _LOG2_E, 31)
        whole, f = t // 2**23 + 1, t % 2**23 - 2**23
        y = _EXP2_COEFFICIENTS[0]
        for c in _EXP2_COEFFICIENTS[1:-1]:
            y = round_shift_half_up(y * f, 23) + c
        if how.division is SoftmaxDivision.FUSED:
            shift = 30 - whole
            powers.append(
                round_shift_half_up(y * f * 2**7 + _EXP2_COEFFICIENTS[-1] * 2**30, shift)
                if shift < 64
                else 0
            )
        else:
            y = round_shift_half_up(y * f, 23) + _EXP2_COEFFICIENTS[-1]
            powers.append(_floor_shift(y, whole))
    return distances, powers


def _floor_shift(value: int, left: int) -> int:
    return value * 2**left if left >= 0 else value // 2**-left


def _normalize_exponentials(powers: list[int], how: SoftmaxArithmetic) -> list[int]:
    """Return e / sum of e in Q15.

    Venus finds the reciprocal by two Newton steps, the others divide.
    """
    total = int(saturate(sum(powers), 32))
    if how.division is not SoftmaxDivision.NEWTON:
        factor = 2 * (2**52 // total)
        return [round_shift_half_up(factor * e, 38) for e in powers]
    n = (32 - total.bit_length()) - 9
    x = _floor_shift(total, n)
    y = 0xBB5000 - x
    for _ in range(2):
        error = 2 * (0x400000 - round_shift_half_up(x * y, 23))
        y += round_shift_half_up(y * error, 23)
    y = _floor_shift(y, n + 1)
    return [int(saturate(round_shift_half_up(y * e, 31), 32)) for e in powers]


class Softmax(Integer):
    """Rows run from `axis` to the end; arcs takes a positive axis for 1."""

    names: tuple[str, ...] = ("SoftmaxInt", "QSoftmax")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """To Q25, one row after another, from Q15 to the output."""
        (x,), arithmetic = inputs, expect_arithmetic(arithmetic, SoftmaxArithmetic)
        axis = next((int(a[key]) for key in ("axis", "dim") if a.get(key) is not None), -1)
        if arithmetic.row is SoftmaxRowRule.FROM_FIRST and axis > 0:
            axis = 1
        rows = x.reshape(-1, math.prod(x.shape[axis % x.ndim :]))
        scale = a.scale("scale_x")
        if arithmetic.requantize.shifts:
            exact_log2(scale)
        m, s = fixed_point_multiplier(2.0**25 / scale)
        q25 = [
            [int(saturate(round_shift_half_up(v * m, s), 32)) for v in row] for row in rows.tolist()
        ]
        q15 = np.array([self.compute_row(row, arithmetic) for row in q25], object).reshape(x.shape)
        return requantize(q15, a.scale("scale_o") / 2**15, a.o_bits, arithmetic.requantize)

    @staticmethod
    def compute_row(row: list[int], how: SoftmaxArithmetic) -> list[int]:
        """Return a row in Q15."""
        return _normalize_exponentials(_exponentials(row, how)[1], how)


class LogSoftmax(Softmax):
    """The logarithm; ln of the sum comes from a table of 512 steps."""

    names: tuple[str, ...] = ("LogSoftmaxInt",)

    @staticmethod
    def compute_row(row: list[int], how: SoftmaxArithmetic) -> list[int]:
        """Return a row in Q15."""
        distances, powers = _exponentials(row, how)
        total = int(saturate(sum(powers), 32))
        bits = total.bit_length()
        step = _floor_shift(total, 10 - bits)
        logarithm = (bits - 24) * _LN_2 + math.floor(2**16 * math.log(step / 512) + 0.5)
        return [round_shift_half_up(d // 2**9 - logarithm, 1) for d in distances]


class LayerNorm(Integer):
    """A row has as many numbers as there are factors: the last axis, or more."""

    names: tuple[str, ...] = ("LayerNormInt", "QLayerNorm2d", "QLayerNorm")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Normalise every row to Q10, then a factor and a summand per element."""
        x, gamma = inputs[0], inputs[1].reshape(-1).tolist()
        beta = (
            inputs[2].reshape(-1).tolist()
            if len(inputs) > 2 and inputs[2] is not None
            else [0] * len(gamma)
        )
        scale, count = a.scale("scale_x"), len(gamma)
        epsilon = a.get("epsilon")
        floor = math.floor(
            (1e-5 if epsilon is None else float(epsilon)) * scale**2 * count**2 + 0.5
        )
        acc = [
            [n * g + b for n, g, b in zip(self.normalize_row(row, floor), gamma, beta, strict=True)]
            for row in x.reshape(-1, count).tolist()
        ]
        held = np.array(acc, object).reshape(x.shape)
        return requantize(
            held, a.scale("scale_o") / (2**10 * a.scale("scale_w")), a.o_bits, arithmetic.requantize
        )

    @staticmethod
    def normalize_row(row: list[int], floor: int) -> list[int]:
        """Return the row less its mean over its deviation, Q10 in 16 bits."""
        count, total = len(row), sum(row)
        spread = count * sum(v * v for v in row) - total**2 + floor
        if spread <= 0:
            return [0] * count
        k = -20
        while spread >= 4 ** (k + 5) if k + 5 >= 0 else True:
            k += 1
        t = _floor_shift(spread, -2 * k)
        root = min(32767, math.isqrt(2**38 // t))
        return [
            int(saturate(round_shift_half_up((count * v - total) * root, k + 9), 16)) for v in row
        ]


FAMILY: tuple[type[Integer], ...] = (Softmax, LogSoftmax, LayerNorm)
