"""Error of every integer activation against the real function, as Markdown.

python benchmarks/activation_error.py > docs/activations.md

Tables are measured on every input they can have (or 2^16 evenly spaced ones of 32 bits), rows on seeded random ones.
One LSB is one count of the output's format.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulator.fixed import Rescale, rsh, sat_array
from simulator.kernels import LayerNorm, LogSoftmax, Softmax, softmax_entry
from simulator.lut import piecewise
from simulator.machine import Call, Spec, compile

HEAD = """# Activations: how far the integers are from the real functions

Written by `python benchmarks/activation_error.py > docs/activations.md`. One LSB is one count of the format named.
Rounding alone would give at most 0.50 and on average 0.25 LSB; the largest value saturates by one count where the
function reaches 1.0 (not counted here).
"""

Row = tuple[str, str, str, float, float]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x * Phi(x)."""
    return np.asarray(0.5 * x * (1 + np.array([math.erf(v) for v in x / math.sqrt(2)])))


REAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": sigmoid, "tanh": np.tanh, "gelu": gelu, "swish": lambda x: x * sigmoid(x),
}  # fmt: skip


def measured(name: str, where: str, form: str, got: np.ndarray, real: np.ndarray, lsb: float, bits: int) -> Row:
    """Return one row of the page; `real` is cut to what the format can hold."""
    top = 1 << (bits - 1)
    error = np.abs(got - np.clip(real * lsb, -top, top - 1))
    return name, where, form, float(error.max()), float(error.mean())


def pieces() -> Iterator[Row]:
    """Yield the tables of straight pieces."""
    for chip, fraction, bits in (("venus", 11, 16), ("arcs", 27, 32), ("venusA", 27, 32)):
        x = np.linspace(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 1 << 16).astype(np.int64)
        for name in ("sigmoid", "tanh"):
            real = REAL[name](x / 2.0**fraction)
            for width in (16, 8):
                got = piecewise(name, chip).rounded(x, width)
                yield measured(name, chip, f"Q{fraction} -> Q{width - 1}", got, real, 2.0 ** (width - 1), width)
    x = np.linspace(-(2**30), 2**30, 1 << 16).astype(np.int64)
    for name in ("gelu", "swish"):
        got = piecewise(name, "venusA").to(x, 15, 32)
        yield measured(name, "venusA (training)", "Q27 -> Q15", got, REAL[name](x / 2.0**27), 2.0**15, 32)


def composed() -> Iterator[Row]:
    """Yield SiLU and GELU as the chips make them: 8 bits in and out at the same scale."""
    x = np.arange(-128, 128)
    for name, function, factor in (("SiLU", REAL["swish"], 64), ("GELU", gelu, 109)):
        for q in (3, 4, 5):
            gate_q = min(q, math.floor(math.log2(128 / min(5.0, factor / 64 * 128 / 2**q))))
            inner = x if factor == 64 else sat_array(rsh(x * factor, 6 + q - gate_q), 8)
            scale = q if factor == 64 else gate_q
            gate = piecewise("sigmoid", "arcs").rounded(sat_array(inner << (27 - scale), 32), 8)
            got = sat_array(rsh(x * gate, 7), 8)
            yield measured(name, "venus, arcs", f"int8 Q{q} -> Q{q}", got, function(x / 2.0**q), 2.0**q, 8)
            pair = sat_array(rsh(x * 64, 6 + q - gate_q), 8), sat_array(rsh(x * factor, 6 + q - gate_q), 8)
            wide = rsh(piecewise("sigmoid", "venusA").rounded(sat_array(pair[1] << (27 - gate_q), 32), 32), 16)
            got = sat_array(rsh(pair[0] * wide, 15 + gate_q - q), 8)
            yield measured(name, "venusA", f"int8 Q{q} -> Q{q}", got, function(x / 2.0**q), 2.0**q, 8)


def run(kernel: object, x: np.ndarray) -> np.ndarray:
    """Return what one kernel computes from `x`."""
    program = compile([Call(kernel, ("x",), ("y",))], {"x": Spec(x.shape, x.dtype)}, keep=["y"])  # type: ignore[arg-type]
    return next(array for _, array in program.run({"x": x}))


def rows() -> Iterator[Row]:
    """Yield what works row by row."""
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2000, 32), dtype=np.int8)
    exponents = x / 16.0 - x.max(axis=1, keepdims=True) / 16.0
    real = np.exp(exponents) / np.exp(exponents).sum(axis=1, keepdims=True)
    entry, q15 = softmax_entry(2.0**21, 8), Rescale.from_shift(0, 32)
    for where, way in (("venus (stand-in)", "newton"), ("arcs, generic", "divide"), ("venusA", "fused")):
        yield measured("softmax", where, "Q25 -> Q15", run(Softmax(entry, q15, way=way), x), real, 2.0**15, 32)
    for where, way in (("generic", "divide"), ("venusA", "fused")):
        got = run(LogSoftmax(entry, q15, way=way), x)
        yield measured("log-softmax", where, "Q25 -> Q15", got, np.log(real), 2.0**15, 32)
    for count in (16, 64, 256):
        x = rng.integers(-128, 128, (500, count), dtype=np.int8)
        ones, zeros = np.ones(count, np.int64), np.zeros(count, np.int64)
        got = run(LayerNorm(ones, zeros, LayerNorm.epsilon_of(1e-5, 16.0, count), Rescale.from_shift(0, 16)), x)
        real_x = x / 16.0
        centred = real_x - real_x.mean(axis=1, keepdims=True)
        real = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        yield measured(f"layer norm of {count}", "all", "int8 -> Q10", got, real, 2.0**10, 16)


def page() -> str:
    """Return the page."""
    lines = [HEAD, "| function | platform | format | largest, LSB | mean, LSB |", "|---|---|---|---:|---:|"]
    lines += [f"| {name} | {where} | {form} | {most:.2f} | {mean:.3f} |"
              for part in (pieces(), composed(), rows()) for name, where, form, most, mean in part]  # fmt: skip
    lines.append(
        """
* `generic` has no row for functions of one number: its tables (`iqTable`) hold the real function rounded half up, so
  the error is at most 0.50 LSB by construction.
* GELU on chips is x * sigmoid(1.702 x). The approximation itself is off by 0.021 at most (|x| about 2.2), which is 0.16
  LSB at Q3 and 0.65 LSB at Q5. For ranges where that matters, leave the node in float with `--skip`.
* The gate of SiLU and GELU has seven bits on venus and arcs: its largest value is 127/128, so large x lose 1/128.
* log-softmax takes ln S from 512 steps without interpolation, always below the true value; that is the error's bias.
* Layer normalisation: the reciprocal root comes from a table of 768 entries of 15 bits; its relative error grows with
  the size of the normalised number.
""".rstrip()
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
