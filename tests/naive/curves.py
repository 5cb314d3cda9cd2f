"""Sigmoid, tanh, gelu, swish by pieces and the unit they gate; softmax and layer normalisation of one row."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.naive.fixed import rescale, rsh, sat

TABLES = json.loads((Path(__file__).parents[2] / "simulator" / "luts" / "piecewise.json").read_text())["tables"]


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


def power(d, fused):
    """e^d, d in Q25, result in Q23."""
    t = rsh(d * math.floor(2**29 * Fraction(math.log2(math.e))), 31)
    whole, f = t // 2**23 + 1, t % 2**23 - 2**23
    y = 57364
    for c in (446161, 2008107, 5813551):
        y = rsh(y * f, 23) + c
    if fused:
        return rsh(y * f * 2**7 + 8388575 * 2**30, 30 - whole)
    y = rsh(y * f, 23) + 8388575
    return math.floor(Fraction(y) * Fraction(2) ** whole)


def newton(total):
    """2^31 / total by two steps."""
    n = 32 - total.bit_length() - 9

    def shifted(v, by):
        return math.floor(Fraction(v) * Fraction(2) ** by)

    x = shifted(total, n)
    y = 12275712 - x
    for _ in range(2):
        e = 2 * (2**22 - rsh(x * y, 23))
        y += rsh(y * e, 23)
    return shifted(y, n + 1)


def q25(x, ratio):
    """An integer brought to Q25."""
    return sat(math.floor(Fraction(x) * Fraction(ratio) + Fraction(1, 2)), 32)


def softmax(row, ratio, way, triple):
    """One row of integers; `ratio` = 2^25 / scale."""
    x = [q25(v, ratio) for v in row]
    e = [power(sat(v - max(x), 32), way == "fused") for v in x]
    total = sat(sum(e), 32)
    if way == "newton":
        return [rescale(sat(rsh(newton(total) * v, 31), 32), triple) for v in e]
    return [rescale(rsh(2 * (2**52 // total) * v, 38), triple) for v in e]


def log_softmax(row, ratio, way, triple):
    """One row of integers; `ratio` = 2^25 / scale."""
    x = [q25(v, ratio) for v in row]
    d = [sat(v - max(x), 32) for v in x]
    total = sat(sum(power(v, way == "fused") for v in d), 32)
    bits = total.bit_length()
    leading = math.floor(Fraction(total) / Fraction(2) ** (bits - 10))
    log = (bits - 24) * 45426 + math.floor(2**16 * math.log(leading / 512) + 0.5)
    return [rescale(rsh(v // 2**9 - log, 1), triple) for v in d]


def layer_norm(row, gamma, beta, epsilon, fraction, triple):
    """One row of integers."""
    count = len(row)
    spread = count * sum(v * v for v in row) - sum(row) ** 2 + epsilon
    k, t = 0, spread
    if spread:
        k = (spread.bit_length() - 1) // 2 - 4
        t = math.floor(Fraction(spread) / Fraction(4) ** k)
    root = min(32767, math.isqrt(2**38 // t)) if t else 0
    out = []
    for v, g, b in zip(row, gamma, beta, strict=True):
        n = rsh((count * v - sum(row)) * root, k + 19 - fraction)
        if fraction == 10:
            acc = sat(n, 16) * g + b
        else:
            acc = int(np.float32(sat(sat(n, 32) * g + b, 32)))  # 24 leading bits
        out.append(rescale(acc, triple))
    return out
