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
    wide, bits = {"q27": (32, 32), "q11": (16, 8)}.get(arithmetic, (16, 16))
    gates = []
    for gate, function in enumerate(("sigmoid", "sigmoid", "tanh", "sigmoid")):
        k = gate * units + u
        gates.append(curve(function, chip, sat(a[k] + e[k], wide), bits))
    if arithmetic == "q27":
        i, f, g, o = (rsh(gate, 16) for gate in gates)
        cell = rsh(sat(c[u] * f, 32) + i * g, 3)
        return rescale(o * rsh(curve("tanh", chip, cell, 32), 16), out), rsh(cell, 12)
    i, f, g, o = gates
    if arithmetic in ("q15", "q15_wide"):
        cell = sat(sat(c[u] * f, 32) + sat(i * g, 32), 32)
        h = rescale(o * curve("tanh", chip, sat(rsh(cell, 19), 16), 16), out)
        return h, sat(rsh(cell, 15), 16 if arithmetic == "q15" else 32)
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


def gru_of_later_executors(chip, x, w, r, b, d, sums, q_h, q_o, forward, start=None):
    """Return y, h of the unit that the later executor of a chip has.

    `sums` are log2 of the scales of both gate sums, `q_h` and `q_o` those of state and output.
    """
    unit = {"venus": _weighted_candidate, "arcs": _reset_before, "venusA": _reset_after}[chip]
    ys, hs = [], []
    units = len(r[0])

    def state_sums(h):
        return [sat(product(r, h, d, k), 32) for k in range(3 * units)]

    for sample, h, length in begin(x, units, start, None):
        y = [[0] * units for _ in sample]
        for t in steps(length, forward):
            a = [sat(product(w, sample[t], b, k), 32) for k in range(3 * units)]
            h = [sat(v, 8) for v in unit(a, state_sums, h, *sums, q_h, q_o)]
            y[t] = h
        ys.append(y)
        hs.append([h])
    return ys, hs


def _weighted_candidate(a, state_sums, h, q_ib, q_hb, q_h, q_o):
    """venus: h + z * (n - h), sums in Q11, gates in Q15."""
    units, new = len(h), []
    a, e = [rsh(v, q_ib - 11) for v in a], [rsh(v, q_hb - 11) for v in state_sums(h)]
    for u, state in enumerate(h):
        r, z = (curve("sigmoid", "venus", sat(a[k] + e[k], 16), 16) for k in (u, u + units))
        k = u + 2 * units
        inner = sat(sat(a[k], 16) + rsh(r * sat(e[k], 16), 15), 16)
        n = rsh(curve("tanh", "venus", inner, 16), 15 - q_h)
        new.append(state + rsh(z * (n - state), 15 + q_h - q_o))
    return new


def _reset_before(a, state_sums, h, q_ib, q_hb, q_h, q_o):
    """arcs: n + z * (h - n), the product of r * h; sums in Q27, gates in Q31."""
    units, new = len(h), []
    a, e = (
        [sat(rsh(v, q - 27), 32) for v in sums] for sums, q in ((a, q_ib), (state_sums(h), q_hb))
    )
    gates = [curve("sigmoid", "arcs", sat(a[k] + e[k], 32), 32) for k in range(2 * units)]
    gated = [sat(rsh(r * state, 31), 8) for r, state in zip(gates, h, strict=False)]
    m = [sat(rsh(v, q_hb - 27), 32) for v in state_sums(gated)]
    for u, state in enumerate(h):
        k = u + 2 * units
        n = rsh(curve("tanh", "arcs", sat(a[k] + m[k], 32), 32), 31 - q_h)
        new.append(n + rsh(gates[u + units] * (state - n), 31))
    return new


def _reset_after(a, state_sums, h, q_ib, q_hb, q_h, q_o):
    """venusA: n + z * (h - n), r times the product; sums at the finer scale, gates in Q31."""
    units, new, m = len(h), [], max(q_ib, q_hb)
    a, e = (
        [sat(v * 2 ** (m - q), 32) for v in sums] for sums, q in ((a, q_ib), (state_sums(h), q_hb))
    )

    def value(function, acc):
        return curve(function, "venusA", sat(rsh(sat(acc, 32), m - 27), 32), 32)

    for u, state in enumerate(h):
        r, z = (value("sigmoid", a[k] + e[k]) for k in (u, u + units))
        k = u + 2 * units
        n = rsh(value("tanh", sat(rsh(r * e[k], 31), 32) + a[k]), 31 - q_h)
        new.append(n + rsh(z * (state - n), 31))
    return new
