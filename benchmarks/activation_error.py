"""Error of every integer activation against the real function.

Writes benchmarks/results/activations.md, and tables and pictures of docs/reference/numerics.md.

python benchmarks/activation_error.py             # print the page of results
python benchmarks/activation_error.py --write     # write it, and the part of numerics.md between marks
python benchmarks/activation_error.py --plots     # draw the pictures; needs the extra [report]

Tables are measured on every input they can have (2^16 evenly spaced ones of 32 bits), operators on
every int8 at every scale, as the quantizer writes them for the platform, rows on seeded random
integers. Integers and real values are compared in counts (LSB) of the output's format, the real
value cut to what the format holds.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lingeronnx.common.files import write_text
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine, Plan
from lingeronnx.quantization.lower import lower
from lingeronnx.quantization.partition import Partition
from lingeronnx.runtime.session import Session
from lingeronnx.targets import get_target
from simulator.fixed_point import Rescale
from simulator.kernels import LayerNorm, LogSoftmax, Softmax, make_input_table
from simulator.piecewise import load_piecewise
from simulator.program import Step, TensorSpec, compile_program

ROOT = Path(__file__).resolve().parents[1]
NUMERICS = ROOT / "docs" / "reference" / "numerics.md"
RESULTS = ROOT / "benchmarks" / "results" / "activations.md"

Function = Callable[[np.ndarray], np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x * Phi(x)."""
    return np.asarray(0.5 * x * (1 + np.array([math.erf(v) for v in x / math.sqrt(2)])))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x), also called swish."""
    return np.asarray(x * sigmoid(x))


class Error(NamedTuple):
    """One measurement: the largest and the mean |error| in counts."""

    largest: float
    mean: float

    def __str__(self) -> str:
        return f"{self.largest:.2f} / {self.mean:.2f}"


class Row(NamedTuple):
    """One line of a table."""

    name: str
    where: str
    form: str
    error: Error


def errors(got: np.ndarray, real: np.ndarray, scale: float, bits: int) -> np.ndarray:
    """Return integers less `real` * `scale`, cut to `bits` bits."""
    top = 1 << (bits - 1)
    return np.asarray(got - np.clip(real * scale, -top, top - 1))


def measured(*args: np.ndarray | float) -> Error:
    """Return the size of `errors`."""
    found = np.abs(errors(*args))  # type: ignore[arg-type]
    return Error(float(found.max()), float(found.mean()))


# ---- tables of straight pieces ---------------------------------------------------------------------------------------

PIECES: dict[str, Function] = {"sigmoid": sigmoid, "tanh": np.tanh}
VALLEYS: dict[str, Function] = {"gelu": gelu, "swish": silu}
CHIPS = (("venus", 11, 16), ("arcs", 27, 32), ("venusA", 27, 32))


def tables() -> Iterator[Row]:
    """Yield the tables, over all of their input."""
    for chip, fraction, bits in CHIPS:
        x = np.linspace(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 1 << 16).astype(np.int64)
        for name, function in PIECES.items():
            for width in (16, 8):
                got = load_piecewise(name, chip).evaluate_rounded(x, width)
                real = function(x / 2.0**fraction)
                yield Row(
                    name,
                    chip,
                    f"Q{fraction} -> Q{width - 1}",
                    measured(got, real, 2.0 ** (width - 1), width),
                )
    x = np.linspace(-(2**31), 2**31 - 1, 1 << 16).astype(np.int64)
    for name, function in VALLEYS.items():
        got = load_piecewise(name, "venusA").evaluate_to_fraction(x, 15, 32)
        yield Row(
            name,
            "venusA, training side",
            "Q27 -> Q15",
            measured(got, function(x / 2.0**27), 2.0**15, 32),
        )


# ---- operators -------------------------------------------------------------------------------------------------------

EXPONENTS = range(8)
EVERYWHERE = ("generic", "venus", "arcs", "venusA")


class Operator(NamedTuple):
    """A float operator: ONNX's name and opset, the real function, log2 of the output's scale (None: the input's)."""

    op_type: str
    opset: int
    function: Function
    out: int | None
    platforms: tuple[str, ...]

    def scale(self, q: int) -> float:
        """Return the output's scale for an input at 2^q."""
        return 2.0 ** (q if self.out is None else self.out)


OPERATORS = {
    "Sigmoid": Operator("Sigmoid", 13, sigmoid, 7, EVERYWHERE),
    "Tanh": Operator("Tanh", 13, np.tanh, 7, ("generic", "venus")),
    "SiLU": Operator("Swish", 24, silu, None, EVERYWHERE),
    "GELU": Operator("Gelu", 20, gelu, None, EVERYWHERE),
}
INT8 = np.arange(-128, 128, dtype=np.int8)


@cache
def operator(name: str, where: str, q: int) -> tuple[str, np.ndarray]:
    """Return how the quantizer writes a float operator for a platform, and its result for every int8 at scale 2^q."""
    it, target = OPERATORS[name], get_target(where)
    node = helper.make_node(it.op_type, ["x"], ["y"], name="it")
    ends = [helper.make_tensor_value_info(end, 1, ["N", 4]) for end in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", it.opset)], ir_version=10)
    )
    scales = {"x": Affine(2.0**q), "y": Affine(it.scale(q))}
    plan = Plan(platform=target.name, executor=target.executor, mode="q-value", tensors=scales)
    lowered = lower(Partition.build(model, {}, target), plan, target).graph
    steps = [
        n.op_type
        for n in lowered.graph
        if n.op_type not in ("Quant", "Dequant", "Reshape", "Requant")
    ]
    feed = {"x": INT8.reshape(64, 4)}
    got = next(array for tensor, array, _ in Session(lowered).taps(feed) if tensor == "y_q")
    return " + ".join(steps), got.reshape(-1).astype(np.int64)


def operator_error(name: str, where: str, q: int) -> np.ndarray:
    """Return the signed errors of an operator for every int8."""
    it = OPERATORS[name]
    return errors(operator(name, where, q)[1], it.function(INT8 / 2.0**q), it.scale(q), 8)


def by_scale() -> Iterator[tuple[str, str, str, list[Error]]]:
    """Yield (operator, platform, how it is written, the error at every exponent)."""
    for name, it in OPERATORS.items():
        for where in it.platforms:
            found = [np.abs(operator_error(name, where, q)) for q in EXPONENTS]
            yield (
                name,
                where,
                operator(name, where, 4)[0],
                [Error(float(e.max()), float(e.mean())) for e in found],
            )


# ---- rows ------------------------------------------------------------------------------------------------------------

Q15 = Rescale.from_shift(0, 32)
WAYS = {
    "softmax": (("venus (stand-in)", "newton"), ("arcs, generic", "divide"), ("venusA", "fused")),
    "log-softmax": (("generic", "divide"), ("venusA", "fused")),
}
ROW_EXPONENTS = (2, 4, 6)
LENGTHS = {10: 1000, 100: 200, 1000: 50}  # how many rows of each


def run(kernel: object, x: np.ndarray) -> np.ndarray:
    """Return what one kernel computes from `x`."""
    program = compile_program(
        [Step(kernel, ("x",), ("y",))], {"x": TensorSpec(x.shape, x.dtype)}, keep=["y"]
    )  # type: ignore[arg-type]
    return next(array for _, array in program.run({"x": x}))


@cache
def shares(name: str, way: str, q: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (integers, real values) of random int8 rows at scale 2^q in Q15."""
    x = np.random.default_rng(length).integers(-128, 128, (LENGTHS[length], length), dtype=np.int8)
    exponents = x / 2.0**q - x.max(axis=1, keepdims=True) / 2.0**q
    real = exponents - np.log(np.exp(exponents).sum(axis=1, keepdims=True))
    kernel = (Softmax if name == "softmax" else LogSoftmax)(
        make_input_table(2.0 ** (25 - q), 8), Q15, division_mode=way
    )
    return run(kernel, x), np.exp(real) if name == "softmax" else real


@cache
def normal(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (integers, real values) of normalised random int8 rows at scale 2^4, in Q10."""
    x = np.random.default_rng(length).integers(-128, 128, (500, length), dtype=np.int8)
    ones, zeros = np.ones(length, np.int64), np.zeros(length, np.int64)
    got = run(
        LayerNorm(
            ones, zeros, LayerNorm.scale_epsilon(1e-5, 16.0, length), Rescale.from_shift(0, 16)
        ),
        x,
    )
    centred = x / 16.0 - (x / 16.0).mean(axis=1, keepdims=True)
    return got, centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)


def by_length() -> Iterator[tuple[str, str, int, list[Error]]]:
    """Yield (function, platforms, length of the rows, the error at every exponent)."""
    for name, places in WAYS.items():
        for where, way in places:
            for length in LENGTHS:
                found = [
                    measured(*shares(name, way, q, length), 2.0**15, 32) for q in ROW_EXPONENTS
                ]
                yield name, where, length, found


def rows() -> Iterator[Row]:
    """Yield what works row by row: the worst over lengths and scales."""
    for name, places in WAYS.items():
        for where, way in places:
            found = [
                measured(*shares(name, way, q, n), 2.0**15, 32)
                for q in ROW_EXPONENTS
                for n in LENGTHS
            ]
            yield Row(name, where, "Q25 -> Q15", worst(found))
    for length in (16, 64, 256):
        yield Row(
            f"layer norm of {length}", "all", "int8 -> Q10", measured(*normal(length), 2.0**10, 16)
        )


def worst(found: list[Error]) -> Error:
    """Return the largest of both figures."""
    return Error(max(e.largest for e in found), max(e.mean for e in found))


# ---- pages -----------------------------------------------------------------------------------------------------------

PICTURES = {
    "activations_tables.svg": "Error of the tables over their input, in counts of Q15",
    "activations_operators.svg": "Error of SiLU and GELU in eight bits at scale 2^4",
    "activations_rows.svg": "Error of softmax, log-softmax and layer normalisation",
}
START, END = "<!-- written by benchmarks/activation_error.py -->", "<!-- up to here -->"


def summary() -> str:
    """Return the table that both pages have."""
    lines = [
        "| function | platform | from -> to | largest, LSB | mean, LSB |",
        "|---|---|---|---:|---:|",
    ]
    found = [*tables(), *rows()]
    for name, where, how, each in by_scale():
        out = OPERATORS[name].out
        form = f"int8 Q0..Q7 -> {'the same' if out is None else f'Q{out}'}"
        found.append(Row(f"{name} by {how}", where, form, worst(each)))
    lines += [
        (
            f"| {row.name} | {row.where} | {row.form} | "
            f"{row.error.largest:.2f} | {row.error.mean:.3f} |"
        )
        for row in found
    ]
    return "\n".join(lines) + "\n"


def grid() -> str:
    """Return the operators scale by scale."""
    lines = [
        "| | | " + " | ".join(f"Q{q}" for q in EXPONENTS) + " |",
        "|---|---|" + "---:|" * len(EXPONENTS),
    ]
    lines += [
        f"| {name} | {where} | " + " | ".join(map(str, each)) + " |"
        for name, where, _, each in by_scale()
    ]
    return "\n".join(lines) + "\n"


def lengths() -> str:
    """Return softmax and log-softmax length by length."""
    lines = [
        "| | | length | " + " | ".join(f"Q{q}" for q in ROW_EXPONENTS) + " |",
        "|---|---|---:|" + "---:|" * len(ROW_EXPONENTS),
    ]
    lines += [
        f"| {name} | {at} | {n} | " + " | ".join(map(str, each)) + " |"
        for name, at, n, each in by_length()
    ]
    return "\n".join(lines) + "\n"


def images(folder: str = "") -> str:
    """Return the pictures as Markdown; folder : the path to them, with its slash."""
    return "\n\n".join(f"![{title}]({folder}{name})" for name, title in PICTURES.items()) + "\n"


def page() -> str:
    """Return benchmarks/results/activations.md."""
    return f"""# Activations: how far the integers are from the real functions

Written by `python benchmarks/activation_error.py --write --plots`.

One LSB is one count of the output's format. Rounding alone gives at most 0.50 LSB, and 0.25 LSB on average. A real
value beyond the largest integer counts as the largest integer. [numerics.md](../../docs/reference/numerics.md) has the formulas.

## All functions

Tables are measured over their whole input. Rows (softmax and the like) and operators are measured at several scales and
lengths; each figure is that of the worst one.

{summary()}
{images("../../docs/reference/")}
* `generic` has a table entry for each input (`iqTable`): the real function, rounded half up. So the error is 0.50 LSB
  at most.
* The tables of straight pieces are worst where two pieces meet. In eight bits hardly anything of that is left.
* iqSigmoid of venusA reads every input as 0. GluInt is used instead, with 1 as its first half. Its gate has 15 bits.
* GELU on chips is x * sigmoid(1.702 x). This approximation is itself wrong by 0.021 at most (at |x| of about 2.2). That
  is 0.16 LSB at Q3, 0.65 LSB at Q5 and 1.3 LSB at Q6. Where this matters, leave the node in float with `--skip`.
* The gate of SiLU and GELU has seven bits on venus and arcs. Its largest value is 127/128, so a large x loses 1/128.
* gelu and swish by tables of their own belong to the training library's arithmetic of venusA. No executor runs them,
  and the quantizer never writes them.
* The sum S of a softmax saturates at 2^31, which is 256 times the largest exponential. In rows of a thousand nearly
  equal numbers (Q6 below) the results are then too large. The largest figures come from such rows.
* log-softmax takes ln S from a table of 512 steps, without interpolation. The result is below the true value by up to
  64 LSB, never above. This makes a bias.
* Layer normalization takes the reciprocal root from a table of 768 entries of 15 bits. Its relative error grows with
  the size of the normalized number. It does not depend on the input's scale, except through epsilon.

## Operators, scale by scale

The input is every int8 at scale 2^q. Each cell has the largest and the mean error in LSB. The output of sigmoid and
tanh is Q7; that of SiLU and GELU has the scale of the input. Tanh stays in float on arcs and venusA.

{grid()}
## Rows, scale by scale

The rows are random int8. Each cell has the largest and the mean error in LSB of Q15, before the last rounding to the
output's scale. For venus this is the training library's algorithm: the executor's could not be measured, and softmax
stays in float there.

{lengths()}"""


def part() -> str:
    """Return the part of docs/reference/numerics.md, marks included."""
    return f"""{START}

{summary()}
{images()}
{END}"""


def inserted(text: str) -> str:
    """Return the text of docs/reference/numerics.md with its part replaced.

    ValueError where the marks are not there.
    """
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"docs/reference/numerics.md has no part between '{START}' and '{END}'")
    return before + part() + after


# ---- pictures --------------------------------------------------------------------------------------------------------


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#000000")
DASHES = ("-", "--", "-.", ":")


class Panel(NamedTuple):
    """One diagram: lines of (label, x, y)."""

    title: str
    across: str
    up: str
    lines: list[tuple[str, np.ndarray, np.ndarray]]


@cache
def panels(name: str) -> list[Panel]:
    """Return the diagrams of one picture."""
    return {
        "activations_tables.svg": table_panels,
        "activations_operators.svg": operator_panels,
        "activations_rows.svg": row_panels,
    }[name]()


def table_panels() -> list[Panel]:
    """Return sigmoid, tanh, gelu and swish over x, 640 points each."""
    x = np.linspace(-8, 8, 641)
    found = []
    for name, function in PIECES.items():
        lines = []
        for chip, fraction, _ in CHIPS[:2]:
            inputs = np.floor(x * 2.0**fraction).astype(np.int64)
            got = load_piecewise(name, chip).evaluate_rounded(inputs, 16)
            label = chip if chip == "venus" else "arcs, venusA"
            lines.append((label, x, errors(got, function(inputs / 2.0**fraction), 2.0**15, 16)))
        found.append(Panel(name, "x", "LSB of Q15", lines))
    inputs = (x * 2.0**27).astype(np.int64)
    lines = [
        (
            name,
            x,
            errors(
                load_piecewise(name, "venusA").evaluate_to_fraction(inputs, 15, 32),
                function(x),
                2.0**15,
                32,
            ),
        )
        for name, function in VALLEYS.items()
    ]
    return [*found, Panel("gelu, swish (venusA, training side)", "x", "LSB of Q15", lines)]


def operator_panels() -> list[Panel]:
    """Return SiLU and GELU over x at scale 2^4; platforms that compute the same share a line."""
    found = []
    for name in ("SiLU", "GELU"):
        lines: dict[bytes, tuple[list[str], np.ndarray]] = {}
        for where in EVERYWHERE:
            error = operator_error(name, where, 4)
            lines.setdefault(error.tobytes(), ([], error))[0].append(where)
        curves = [(", ".join(places), INT8 / 16.0, error) for places, error in lines.values()]
        found.append(Panel(name, "x", "LSB of Q4", curves))
    return found


def row_panels() -> list[Panel]:
    """Return the largest errors of rows over the real value, in 48 classes."""
    found = []
    for name, across in (("softmax", "share"), ("log-softmax", "logarithm")):
        lines = []
        for where, way in WAYS[name]:
            pairs = [
                shares(name, way, q, n) for q in ROW_EXPONENTS for n in LENGTHS if n <= 100
            ]  # no sum is cut
            got, real = (np.concatenate([p[i].reshape(-1) for p in pairs]) for i in (0, 1))
            least = 0.0 if name == "softmax" else -12.0
            lines.append((where, *classes(real, np.abs(errors(got, real, 2.0**15, 32)), least)))
        found.append(Panel(name, across, "largest LSB of Q15", lines))
    lines = []
    for length in (16, 64, 256):
        got, real = (part.reshape(-1) for part in normal(length))
        lines.append(
            (f"rows of {length}", *classes(real, np.abs(errors(got, real, 2.0**10, 16)), -np.inf))
        )
    return [*found, Panel("layer norm", "normalised number", "largest LSB of Q10", lines)]


def classes(real: np.ndarray, size: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the middles of 48 even classes of `real` from `least` on, without empty ones, and their largest `size`."""
    edges = np.linspace(max(float(real.min()), least), float(real.max()), 49)
    index = np.clip(np.searchsorted(edges, real, side="right") - 1, -1, 47)
    most = np.array([size[index == k].max(initial=-1.0) for k in range(48)])
    middles = (edges[:-1] + edges[1:]) / 2
    return middles[most >= 0], most[most >= 0]


def digest(name: str) -> str:
    """Return what tells whether a picture shows today's figures.

    A hash of its lines, to a hundredth of a count.
    """
    known = hashlib.sha256()
    for panel in panels(name):
        known.update("|".join(panel[:3]).encode())
        for label, x, y in panel.lines:
            known.update(label.encode())
            known.update((np.round(x, 3) + 0.0).tobytes() + (np.round(y, 2) + 0.0).tobytes())
    return known.hexdigest()[:16]


def draw(name: str, folder: Path) -> None:
    """Write one picture into `folder`, its digest in the description."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    found = panels(name)
    look = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "path.simplify_threshold": 0.5,
    }
    with mpl.rc_context(look):
        figure, axes = plt.subplots(
            1, len(found), figsize=(3.3 * len(found), 2.8), layout="constrained"
        )
        for panel, axis in zip(found, axes, strict=True):
            for (label, x, y), colour, dashes in zip(panel.lines, COLOURS, DASHES, strict=False):
                axis.plot(x, y, label=label, color=colour, linestyle=dashes, linewidth=0.9)
            axis.set(title=panel.title, xlabel=panel.across, ylabel=panel.up)
            axis.grid(linewidth=0.3)
            if panel.up.startswith("largest"):
                axis.set_ylim(bottom=0)
            axis.legend(
                frameon=False,
                fontsize=7,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.22),
                ncols=3,
                columnspacing=1.2,
            )
        figure.savefig(
            folder / name,
            metadata={"Date": None, "Title": PICTURES[name], "Description": digest(name)},
        )
        plt.close(figure)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--write",
        action="store_true",
        help="write benchmarks/results/activations.md and the part of docs/reference/numerics.md",
    )
    parser.add_argument("--plots", action="store_true", help="draw the pictures of numerics.md")
    given = parser.parse_args()
    if given.plots:
        for name in PICTURES:
            draw(name, NUMERICS.parent)
    if given.write:
        write_text(NUMERICS, inserted(NUMERICS.read_text()))
        write_text(RESULTS, page())
    if not given.plots and not given.write:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
