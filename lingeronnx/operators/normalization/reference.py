"""Operators that normalize rows: SoftmaxInt, LogSoftmaxInt, LayerNormInt, InstanceNormInt.

Rows are computed one by one in Python integers.
"""

from __future__ import annotations

import math

import numpy as np

from ...targets.arithmetic import (
    Arithmetic,
    LayerNormArithmetic,
    SoftmaxArithmetic,
    SoftmaxDivision,
    SoftmaxRowRule,
)
from .._reference_arithmetic import (
    exact_log2,
    fixed_point_multiplier,
    requantize,
    round_shift_half_up,
    saturate,
)
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "InstanceNorm", "LayerNorm", "LogSoftmax", "Softmax"]

#: Polynomial of 2^f for f in [-1, 0), in Q23, highest power first.
_EXP2_COEFFICIENTS = (57364, 446161, 2008107, 5813551, 8388575)
_LOG2_E = 774541002  # Q29
_LN_2 = 45426  # Q16


def _compute_exponentials(
    row: list[int], arithmetic: SoftmaxArithmetic
) -> tuple[list[int], list[int]]:
    """Return the lists d = x - max(row) in Q25 and e^d in Q23, for each x of `row`, in Q25.

    Qn has n fractional bits. e^d is computed by a polynomial of 2^f; venusA rounds its last step
    and the shift together (`arithmetic`).
    """
    distances = [saturate(x - max(row), 32).item() for x in row]
    powers = []
    for d in distances:
        t = round_shift_half_up(d * _LOG2_E, 31)
        exponent, f = t // 2**23 + 1, t % 2**23 - 2**23
        y = _EXP2_COEFFICIENTS[0]
        for c in _EXP2_COEFFICIENTS[1:-1]:
            y = round_shift_half_up(y * f, 23) + c
        if arithmetic.division is SoftmaxDivision.FUSED:
            shift = 30 - exponent
            y = y * f * 2**7 + _EXP2_COEFFICIENTS[-1] * 2**30
            powers.append(round_shift_half_up(y, shift) if shift < 64 else 0)
        else:
            y = round_shift_half_up(y * f, 23) + _EXP2_COEFFICIENTS[-1]
            powers.append(_floor_shift(y, exponent))
    return distances, powers


def _floor_shift(value: int, shift: int) -> int:
    """Return `value` shifted left by `shift`, or right with rounding down if it is negative."""
    return int(value * 2**shift if shift >= 0 else value // 2**-shift)


def _normalize_exponentials(powers: list[int], arithmetic: SoftmaxArithmetic) -> list[int]:
    """Return each of `powers` (23 fractional bits) divided by their sum, with 15 fractional bits.

    venus computes the reciprocal with two Newton iterations; the other targets divide
    (`arithmetic`).
    """
    total = int(saturate(sum(powers), 32))
    if arithmetic.division is not SoftmaxDivision.NEWTON:
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
    """Softmax of rows from `axis` to the last axis; arcs treats a positive axis as 1."""

    names: tuple[str, ...] = ("SoftmaxInt", "QSoftmax")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Rescale x to Q25, apply `compute_row` to each row, and requantize its result from Q15.

        Qn has n fractional bits. A row has all elements from `axis` (or `dim`, default -1) to the
        last axis; some targets take any positive axis for 1.
        """
        (x,), arithmetic = inputs, expect_arithmetic(arithmetic, SoftmaxArithmetic)
        axis = next((int(a[key]) for key in ("axis", "dim") if a.get(key) is not None), -1)
        if arithmetic.row is SoftmaxRowRule.FROM_FIRST and axis > 0:
            axis = 1
        rows = x.reshape(-1, math.prod(x.shape[axis % x.ndim :]))
        scale = a.scale("scale_x")
        if arithmetic.requantize.shifts:
            exact_log2(scale)
        m, s = fixed_point_multiplier(2.0**25 / scale)
        rows_q15 = []
        for row in rows.tolist():
            row_q25 = [int(saturate(round_shift_half_up(v * m, s), 32)) for v in row]
            rows_q15.append(self.compute_row(row_q25, arithmetic))
        q15 = np.array(rows_q15, object).reshape(x.shape)
        return requantize(q15, a.scale("scale_o") / 2**15, a.o_bits, arithmetic.requantize)

    @staticmethod
    def compute_row(row: list[int], arithmetic: SoftmaxArithmetic) -> list[int]:
        """Return the softmax of `row` (25 fractional bits), with 15 fractional bits.

        `arithmetic` is that of the target.
        """
        _, powers = _compute_exponentials(row, arithmetic)
        return _normalize_exponentials(powers, arithmetic)


class LogSoftmax(Softmax):
    """Logarithm of Softmax; the logarithm of the sum is that of a table with 512 entries."""

    names: tuple[str, ...] = ("LogSoftmaxInt",)

    @staticmethod
    def compute_row(row: list[int], arithmetic: SoftmaxArithmetic) -> list[int]:
        """Return the logarithm of the softmax of `row` (25 fractional bits), with 15 of them.

        It is x - max less the logarithm of the sum of powers, of which only the upper 10 bits are
        used.
        """
        distances, powers = _compute_exponentials(row, arithmetic)
        total = int(saturate(sum(powers), 32))
        bits = total.bit_length()
        step = _floor_shift(total, 10 - bits)
        logarithm = (bits - 24) * _LN_2 + math.floor(2**16 * math.log(step / 512) + 0.5)
        return [round_shift_half_up(d // 2**9 - logarithm, 1) for d in distances]


class LayerNorm(Integer):
    """Layer normalization of rows with as many elements as gamma: one or more of the last axes."""

    names: tuple[str, ...] = ("LayerNormInt", "QLayerNorm2d", "QLayerNorm")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Normalize each row of ``len(gamma)`` elements, times gamma plus beta, and requantize.

        Inputs: x, gamma, and beta (default 0). Normalized values have 10 fractional bits, or 15 in
        later executors. Epsilon (default 1e-5) is rounded to the scale of the sums.
        """
        x, gamma = inputs[0], inputs[1].reshape(-1).tolist()
        beta = (
            inputs[2].reshape(-1).tolist()
            if len(inputs) > 2 and inputs[2] is not None
            else [0] * len(gamma)
        )
        scale, count = a.scale("scale_x"), len(gamma)
        epsilon = a.get("epsilon")
        float_epsilon = 1e-5 if epsilon is None else float(epsilon)
        scaled_epsilon = math.floor(float_epsilon * scale**2 * count**2 + 0.5)
        fraction_bits = expect_arithmetic(arithmetic, LayerNormArithmetic).fraction_bits or 10
        rows = []
        for row in x.reshape(-1, count).tolist():
            normalized = self.normalize_row(row, scaled_epsilon, fraction_bits)
            rows.append([n * g + b for n, g, b in zip(normalized, gamma, beta, strict=True)])
        acc = np.array(rows, object).reshape(x.shape)
        ratio = a.scale("scale_o") / (2**fraction_bits * a.scale("scale_w"))
        return requantize(acc, ratio, a.o_bits, arithmetic.requantize)

    @staticmethod
    def normalize_row(row: list[int], scaled_epsilon: int, fraction_bits: int) -> list[int]:
        """Return (x - mean) / standard deviation of each x of `row` with `fraction_bits`.

        They have 16 bits with 10 fractional ones, else 32; they are 0 if the variance with epsilon
        is 0.

        Parameters
        ----------
        row
            Integers, count of them.
        scaled_epsilon
            epsilon * scale_x^2 * count^2, rounded.
        fraction_bits
            10 or 15.
        """
        count, total = len(row), sum(row)
        # The variance of the integers times count^2.
        scaled_variance = count * sum(v * v for v in row) - total**2 + scaled_epsilon
        if scaled_variance <= 0:
            return [0] * count
        k = -20
        while k + 5 < 0 or scaled_variance >= 4 ** (k + 5):
            k += 1
        t = _floor_shift(scaled_variance, -2 * k)
        root = min(32767, math.isqrt(2**38 // t))
        bits, shift = 16 if fraction_bits == 10 else 32, k + 19 - fraction_bits
        return [
            int(saturate(round_shift_half_up((count * v - total) * root, shift), bits)) for v in row
        ]


class InstanceNorm(Integer):
    """Normalization of each channel of each sample, with one factor and one offset per channel."""

    names: tuple[str, ...] = ("InstanceNormInt",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Normalize each channel of x [N, C, ...], times gamma plus beta, and requantize.

        Inputs: x, gamma, beta. Normalized values have 15 fractional bits. Epsilon (default 1e-5) is
        rounded to the scale of the sums.
        """
        x, gamma, beta = inputs[0], inputs[1].tolist(), inputs[2].tolist()
        count, scale = math.prod(x.shape[2:]), a.scale("scale_x")
        epsilon = a.get("epsilon")
        float_epsilon = 1e-5 if epsilon is None else float(epsilon)
        scaled_epsilon = math.floor(float_epsilon * scale**2 * count**2 + 0.5)
        rows = []
        for index, row in enumerate(x.reshape(-1, count).tolist()):
            channel = index % len(gamma)
            normalized = LayerNorm.normalize_row(row, scaled_epsilon, 15)
            rows.append([n * gamma[channel] + beta[channel] for n in normalized])
        acc = np.array(rows, object).reshape(x.shape)
        ratio = a.scale("scale_o") / (2**15 * a.scale("scale_w"))
        return requantize(acc, ratio, a.o_bits, arithmetic.requantize)


FAMILY: tuple[type[Integer], ...] = (Softmax, LogSoftmax, LayerNorm, InstanceNorm)
