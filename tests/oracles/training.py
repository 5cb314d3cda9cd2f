"""What training libraries compute, by rational numbers and by the letter of the specification."""

import math
from fractions import Fraction

import numpy as np

from tests.oracles.curves import curve
from tests.oracles.fixed import rsh, sat
from tests.oracles.recurrent import product, steps

WORDS = (
    "floor_add",
    "floor",
    "ceil",
    "round",
    "away",
)  # as nodes have them but the last, by number


def word(rounding):
    """The word for a rounding."""
    return rounding if isinstance(rounding, str) else WORDS[rounding]


def rounded(value, rounding):
    """A rational number by name: half up, down, up, to the nearest with ties to even or away from
    0.
    """
    value, rounding = Fraction(value), word(rounding)
    if rounding == "floor":
        return math.floor(value)
    if rounding == "ceil":
        return math.ceil(value)
    if rounding == "away":
        return math.floor(abs(value) + Fraction(1, 2)) * (1 if value > 0 else -1)
    return round(value) if rounding == "round" else math.floor(value + Fraction(1, 2))


def shifted(acc, shift, bits, rounding):
    """sat(acc / 2^shift)."""
    return sat(rounded(Fraction(int(acc)) / Fraction(2) ** shift, rounding), bits)


def add(x, y, shift_x, shift_y, bits, rounding):
    """Each operand is rounded, only the sum is saturated."""
    one, other = (
        rounded(Fraction(int(v)) / Fraction(2) ** s, rounding)
        for v, s in ((x, shift_x), (y, shift_y))
    )
    return sat(one + other, bits)


def quant(x, scale, bits, rounding):
    """Every step in float32; nan gives 0."""
    with np.errstate(over="ignore"):
        v = np.float32(x) * np.float32(scale)
    if np.isnan(v):
        return 0
    if np.isinf(v):
        return sat(2**99 if v > 0 else -(2**99), bits)
    if word(rounding) == "floor_add":
        return sat(math.floor(np.float32(v + np.float32(0.5))), bits)
    return sat(rounded(Fraction(float(v)), rounding), bits)


def mean(x, kernel, strides, pads, shift, bits, rounding, ceil_mode, padded, divisor):
    """x [N, C, H, W]; every window divided by its own number of elements."""
    samples, channels, *sizes = x.shape
    starts = []
    for axis, size in enumerate(sizes):
        begin, end, found = -pads[axis], size + pads[axis + 2], []
        while True:
            hanging = (
                ceil_mode and found and begin < size and begin - strides[axis] + kernel[axis] < end
            )
            if begin + kernel[axis] > end and not hanging:
                break
            found.append((begin, min(begin + kernel[axis], end)))
            begin += strides[axis]
        starts.append(found)
    out = np.zeros((samples, channels, *map(len, starts)), object)
    for n, c, i, j in np.ndindex(*out.shape):
        (top, bottom), (left, right) = starts[0][i], starts[1][j]
        places = [(a, b) for a in range(top, bottom) for b in range(left, right)]
        inside = [(a, b) for a, b in places if 0 <= a < sizes[0] and 0 <= b < sizes[1]]
        count = divisor or (len(places) if padded else max(len(inside), 1))
        total = sum(int(x[n, c, a, b]) for a, b in inside)
        out[n, c, i, j] = sat(
            rounded(Fraction(total, count) * Fraction(2) ** shift, rounding), bits
        )
    return out


def quotient(x, y, scale_x, scale_y, scale_o, bits):
    """Real numbers in float32, half up; x / 0 saturates, 0 / 0 is 0."""
    if y == 0:
        return sat((x > 0) * 2**99 - (x < 0) * 2**99, bits)
    real = np.float32(np.float32(x) / np.float32(scale_x)) / np.float32(
        np.float32(y) / np.float32(scale_y)
    )
    return sat(math.floor(np.float32(real * np.float32(scale_o)) + np.float32(0.5)), bits)


# ---- recurrent layers: x [N][T][I], weights [G*H][I] and [G*H][H], gate by gate --------------------------------------


def bare(function, chip, x, bits):
    """A table of 16-bit numbers, 0 beyond it."""
    return curve(function, chip, x, bits) if abs(x) <= 2**15 else 0


def moved(acc, shift):
    """A sum in its new format."""
    return sat(rsh(acc, shift), 32)


def lstm(x, w, r, b, d, shifts, out, again, arithmetic, forward):
    """Return y, h, c; `out` and `again` are (right shift, bits)."""
    ys, hs, cs = [], [], []
    units = len(r[0])
    for sample in x:
        h, c, y = [0] * units, [0] * units, [None] * len(sample)
        for t in steps(len(sample), forward):
            read = [sat(rsh(v, again[0]), again[1]) for v in h] if arithmetic == "q7" else h
            s = [
                moved(product(w, sample[t], b, k), shifts[0])
                + moved(product(r, read, d, k), shifts[1])
                for k in range(4 * units)
            ]
            new = []
            for u in range(units):
                bits = 16 if arithmetic == "q15" else 8
                i, f, g, o = (
                    curve("tanh" if k == 2 else "sigmoid", "venus", sat(s[k * units + u], 16), bits)
                    for k in range(4)
                )
                if arithmetic == "q15":
                    cell = f * c[u] + i * g
                    c[u] = sat(rsh(cell, 15), 32)
                    inner = rsh(cell, 19)
                else:
                    i, f, o = (max(v, 0) for v in (i, f, o))
                    c[u] = f * rsh(c[u], 7) + i * g
                    inner = rsh(c[u], 3)
                new.append(
                    sat(rsh(o * curve("tanh", "venus", sat(inner, 16), bits), out[0]), out[1])
                )
            h = new
            y[t] = h
        ys.append(y)
        hs.append([h])
        cs.append([c])
    return ys, hs, cs


def gru(x, w, r, b, d, shifts, scale, bits, again, sums, arithmetic, chip, forward):
    """Return y, h; `scale` is log2 of the state's, `again` (right shift, bits)."""
    ys, hs = [], []
    units = len(r[0])
    for sample in x:
        h, y = [0] * units, [None] * len(sample)
        for t in steps(len(sample), forward):
            read = [sat(rsh(v, again[0]), again[1]) for v in h] if arithmetic == "q7" else h
            a = [moved(product(w, sample[t], b, k), shifts[0]) for k in range(3 * units)]
            e = [moved(product(r, read, d, k), shifts[1]) for k in range(2 * units)]
            look = {
                "q15": lambda f, v: bare(f, "venus", sat(v, 32), 16),
                "q7": lambda f, v: max(bare(f, "venus", v, 8), -128 if f == "tanh" else 0),
            }.get(arithmetic, lambda f, v: curve(f, chip, sat(rsh(v, sums - 27), 32), 32))
            deep = {"q15": 15, "q7": 7}.get(arithmetic, 31)
            reset, z = (
                [look("sigmoid", a[k * units + u] + e[k * units + u]) for u in range(units)]
                for k in (0, 1)
            )
            if arithmetic == "before":
                read = [rsh(reset[u] * h[u], 31) for u in range(units)]
            m = [moved(product(r, read, d, 2 * units + u), shifts[1]) for u in range(units)]
            if arithmetic != "before":
                m = [rsh(reset[u] * m[u], deep) for u in range(units)]
            n = [look("tanh", a[2 * units + u] + m[u]) for u in range(units)]
            if arithmetic == "q7":
                q14 = [n[u] * 128 + z[u] * (rsh(h[u], scale - 7) - n[u]) for u in range(units)]
                h = [sat(rsh(v, 14 - scale), bits) for v in q14]
            else:
                n = [rsh(v, deep - scale) for v in n]
                if arithmetic == "q15":
                    h = [
                        sat(h[u] + rsh(z[u] * sat(n[u] - h[u], 16), 15), bits) for u in range(units)
                    ]
                else:
                    h = [sat(n[u] + rsh(z[u] * (h[u] - n[u]), 31), bits) for u in range(units)]
            y[t] = h
        ys.append(y)
        hs.append([h])
    return ys, hs
