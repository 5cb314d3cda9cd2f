"""Sigmoid, tanh, gelu, swish by pieces and the unit they gate; softmax and layer normalisation of
one row.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np

from lingeronnx.operators.normalization.reference import LogSoftmax, Softmax
from lingeronnx.targets.arithmetic import SoftmaxArithmetic, SoftmaxDivision
from tests.oracles.fixed import rescale, rsh, sat

TABLES = json.loads(
    (Path(__file__).parents[2] / "simulator" / "luts" / "piecewise.json").read_text()
)["tables"]


def piece(function, chip, x):
    """One integer through the pieces, before any rounding but that of the table itself."""
    row = TABLES[chip][function]
    if function == "tanh":
        x = max(x, 1 - 2 ** (row["bits"] - 1))
    j = 0
    while abs(x) > row["borders"][j]:
        j += 1
    slope = row.get("slopes_negative", row["slopes"])[j] if x < 0 else row["slopes"][j]
    bias = row["negative"][j] if x < 0 else row["positive"][j]
    return (slope * x + bias * 2 ** row["up"][j]) // 2 ** row["down"][j]


def curve(function, chip, x, bits):
    """The same, rounded half up to bits - 1 fractional bits and saturated."""
    return sat(rsh(piece(function, chip, x), TABLES[chip][function]["fraction"] - (bits - 1)), bits)


def glu(row, q, triple):
    """The first half of a row at scale 2^q times the sigmoid of the second half, on venusA."""
    half, out = len(row) // 2, []
    for a, b in zip(row[:half], row[half:], strict=True):
        gate = rsh(curve("sigmoid", "venusA", sat(rsh(b, q - 27), 32), 32), 16)
        out.append(rescale(a * gate, triple))
    return out


def q25(x, ratio):
    """An integer brought to Q25."""
    return sat(math.floor(Fraction(x) * Fraction(ratio) + Fraction(1, 2)), 32)


def softmax(row, ratio, way, triple):
    """One row of integers; `ratio` = 2^25 / scale. From Q25 to Q15 as the plain class does it."""
    return [
        rescale(v, triple)
        for v in Softmax.compute_row(
            [q25(v, ratio) for v in row], SoftmaxArithmetic(division=SoftmaxDivision(way))
        )
    ]


def log_softmax(row, ratio, way, triple):
    """One row of integers; `ratio` = 2^25 / scale."""
    how = SoftmaxArithmetic(division=SoftmaxDivision(way))
    return [rescale(v, triple) for v in LogSoftmax.compute_row([q25(v, ratio) for v in row], how)]


def layer_norm(row, gamma, beta, epsilon, fraction, triple):
    """One row of integers."""
    count, total = len(row), sum(row)
    spread = count * sum(v * v for v in row) - total**2 + epsilon
    k, t = 0, spread
    if spread:
        k = (spread.bit_length() - 1) // 2 - 4
        t = math.floor(Fraction(spread) / Fraction(4) ** k)
    root = min(32767, math.isqrt(2**38 // t)) if t else 0
    out = []
    for v, g, b in zip(row, gamma, beta, strict=True):
        n = rsh((count * v - total) * root, k + 19 - fraction)
        if fraction == 10:
            acc = sat(n, 16) * g + b
        else:
            acc = int(np.float32(sat(sat(n, 32) * g + b, 32)))  # 24 leading bits
        out.append(rescale(acc, triple))
    return out
