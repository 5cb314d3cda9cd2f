"""Recurrent layers step by step on Python integers. x [N][T][I]; weights [G*H][I] and [G*H][H],
gate by gate.
"""

from .curves import curve
from .fixed import rescale, rsh, sat


def product(weight, x, bias, row):
    """One output of a matrix product with bias."""
    return sum(int(w) * int(v) for w, v in zip(weight[row], x, strict=True)) + int(bias[row])


def moved(acc, how):
    """A sum in its new format: `how` is a right shift of 32 bits (an integer), or a requantization
    (a triple).
    """
    return rescale(acc, how) if isinstance(how, tuple) else sat(rsh(sat(acc, 32), how), 32)


def steps(times, forward):
    """The order of time."""
    return range(times) if forward else reversed(range(times))


def begin(x, units, states, lengths):
    """Every sample with the state it starts from and the number of its steps."""
    states = [[[0] * units]] * len(x) if states is None else states.tolist()
    lengths = [len(sample) for sample in x] if lengths is None else lengths.tolist()
    return [
        (sample, state[0], length) for sample, state, length in zip(x, states, lengths, strict=True)
    ]


def lstm(
    x,
    w,
    r,
    b,
    d,
    how_x,
    how_h,
    out,
    arithmetic,
    chip,
    forward,
    start=None,
    cells=None,
    lengths=None,
):
    """Return y, h, c as lists; `out` is the requantization of o * tanh(c); steps from a sample's
    length on give 0.
    """
    ys, hs, cs = [], [], []
    units = len(r[0])
    first = [row for _, row, _ in begin(x, units, cells, lengths)]
    for (sample, h, length), c in zip(begin(x, units, start, lengths), first, strict=True):
        y = [[0] * units for _ in sample]
        for t in steps(length, forward):
            a = [moved(product(w, sample[t], b, k), how_x) for k in range(4 * units)]
            e = [moved(product(r, h, d, k), how_h) for k in range(4 * units)]
            h, c = map(
                list,
                zip(
                    *(_unit(a, e, c, u, units, out, arithmetic, chip) for u in range(units)),
                    strict=True,
                ),
            )
            y[t] = h
        ys.append(y)
        hs.append([h])
        cs.append([c])
    return ys, hs, cs


def _unit(a, e, c, u, units, out, arithmetic, chip):
    wide, bits = (32, 32) if arithmetic == "q27" else (16, 8)
    gates = []
    for gate, function in enumerate(("sigmoid", "sigmoid", "tanh", "sigmoid")):
        k = gate * units + u
        gates.append(curve(function, chip, sat(a[k] + e[k], wide), bits))
    if arithmetic == "q27":
        i, f, g, o = (rsh(gate, 16) for gate in gates)
        cell = rsh(sat(c[u] * f, 32) + i * g, 3)
        return rescale(o * rsh(curve("tanh", chip, cell, 32), 16), out), rsh(cell, 12)
    i, f, g, o = gates
    cell = sat(c[u] * f + i * g, 32)
    return rescale(o * curve("tanh", chip, sat(rsh(cell, 3), 16), 8), out), sat(rsh(cell, 7), 16)


def gru_executor(x, w, r, b, d, how_x, how_h, out, chip, joined):
    """Return y, h of the executor's unit with all its faults."""
    ys, hs = [], []
    units = len(r[0])
    for sample in x:
        h, y = [0] * units, []
        for step in sample:
            a = [moved(product(w, step, b, k), how_x) for k in range(3 * units)]
            e = [moved(product(r, h, d, k), how_h) for k in range(3 * units)]
            new = []
            for u in range(units):
                reset = curve("sigmoid", chip, sat(a[u] + (e[u] if joined else 0), 16), 8)
                z = curve(
                    "sigmoid", chip, sat(a[units + u] + (e[units + u] if joined else 0), 16), 8
                )
                n = curve(
                    "tanh", chip, sat(a[2 * units + u] + rsh(reset * e[2 * units + u], 7), 16), 8
                )
                new.append(rescale(z * rsh(h[u], 1) + (128 - z) * n, out))
            h = new
            y.append(h)
        ys.append(y)
        hs.append([h])
    return ys, hs


def gru(
    x,
    w,
    r,
    b,
    d,
    how_x,
    how_h,
    out,
    bits,
    gate_bits,
    reset_after,
    forward,
    start=None,
    lengths=None,
):
    """Return y, h of the unit as it is defined; `out` takes n from Q31 to the state of `bits`
    bits.
    """
    ys, hs = [], []
    units = len(r[0])
    for sample, h, length in begin(x, units, start, lengths):
        y = [[0] * units for _ in sample]
        for t in steps(length, forward):
            a = [moved(product(w, sample[t], b, k), how_x) for k in range(3 * units)]
            e = [moved(product(r, h, d, k), how_h) for k in range(2 * units)]
            reset, z = (
                [
                    curve(
                        "sigmoid", "arcs", sat(a[k * units + u] + e[k * units + u], 32), gate_bits
                    )
                    for u in range(units)
                ]
                for k in (0, 1)
            )
            down = gate_bits - 1
            read = h if reset_after else [rsh(reset[u] * h[u], down) for u in range(units)]
            inner = [moved(product(r, read, d, 2 * units + u), how_h) for u in range(units)]
            if reset_after:
                inner = [rsh(reset[u] * inner[u], down) for u in range(units)]
            n = [
                rescale(curve("tanh", "arcs", sat(a[2 * units + u] + inner[u], 32), 32), out)
                for u in range(units)
            ]
            h = [sat(n[u] + rsh(z[u] * (h[u] - n[u]), down), bits) for u in range(units)]
            y[t] = h
        ys.append(y)
        hs.append([h])
    return ys, hs
