"""The figures as values, as a page, as a file for the next run, and what became slower since the last one.

Absolute times of two runs say little, those of two machines nothing. Compared are ratios to
onnxruntime, of one processor with one row of instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .timing import Ratio

__all__ = [
    "COST_HEAD",
    "FIRST_HEAD",
    "SPEED_HEAD",
    "QuantizeCostRow",
    "Figures",
    "ColdStartRow",
    "SpeedRow",
    "cost_cells",
    "first_cells",
    "format_table_row",
    "format_page",
    "find_regressions",
    "speed_cells",
]

#: A ratio that grew by more than this factor is told.
REGRESSION_FACTOR = 1.1


@dataclass(frozen=True)
class SpeedRow:
    """A model in a batch with some threads.

    Parameters
    ----------
    title, platform, batch, threads
        What was run.
    times
        Engine -> microseconds for a sample, "simulator" among them.
    ratios
        Other engine -> the simulator's time over its, or why it could not run.
    bound
        Microseconds that a sample takes at least.
    gain
        How many times as fast the simulator is as with one thread; None with one.
    """

    title: str
    platform: str
    batch: int
    threads: int
    times: Mapping[str, float]
    ratios: Mapping[str, Ratio | str]
    bound: float
    gain: Ratio | None = None

    @property
    def key(self) -> str:
        """What it is found by in another run."""
        return f"{self.title}, {self.platform}, batch {self.batch}, {self.threads} thread(s)"


@dataclass(frozen=True)
class QuantizeCostRow:
    """What one engine's quantization of some samples costs.

    `ratio` is that of the processor time to MinMax.
    """

    title: str
    samples: int
    engine: str
    wall: float  # seconds
    cpu: float  # seconds
    peak: float  # MB
    ratio: float

    @property
    def key(self) -> str:
        """What it is found by in another run."""
        return f"{self.title}, {self.engine}, {self.samples} samples"


@dataclass(frozen=True)
class ColdStartRow:
    """A process, the first one with an empty cache or the second; and what is compiled after it."""

    title: str
    process: str
    wall: float  # seconds
    cpu: float  # seconds
    loops: int
    tiles: int


@dataclass(frozen=True)
class Figures:
    """All of a run."""

    machine: Mapping[str, str]
    speed: Sequence[SpeedRow] = ()
    cost: Sequence[QuantizeCostRow] = ()
    first: Sequence[ColdStartRow] = ()
    peaks: Sequence[str] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[str] = ()  # lines of the table of the other rows of dot instructions

    def to_dict(self) -> dict[str, Any]:
        """Return what is kept for the next run, of plain types."""
        ratios = {speed.key: speed.ratios["float32"] for speed in self.speed}
        return {
            "machine": dict(self.machine),
            "ratios": {
                **{
                    key: round(found.median, 3)
                    for key, found in ratios.items()
                    if isinstance(found, Ratio)
                },
                **{
                    cost.key: round(cost.ratio, 3)
                    for cost in self.cost
                    if cost.engine == "lingeronnx"
                },
            },
            "speed": [asdict(speed) for speed in self.speed],
            "cost": [asdict(cost) for cost in self.cost],
            "first": [asdict(first) for first in self.first],
            "rows": list(self.rows),
        }


def find_regressions(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return in lines what of `now` takes longer than `before` by more than a tenth, both as `Figures.to_dict`."""
    if before is None:
        return ["nothing to compare with: the last commit has no figures"]
    for what in ("cpu", "row"):
        old, new = before["machine"].get(what), now["machine"].get(what)
        if old != new:
            return [
                f"not compared with the last commit: its {what} was '{old}', here it is '{new}'"
            ]
    both = [key for key in now["ratios"] if key in before["ratios"]]
    found = [
        (
            f"slower than at the last commit: {key}: {now['ratios'][key]:.2f}, was "
            f"{before['ratios'][key]:.2f}"
        )
        for key in both
        if now["ratios"][key] > REGRESSION_FACTOR * before["ratios"][key]
    ]
    return found or [
        f"none of {len(both)} ratios is worse than at the last commit by more than a tenth"
    ]


# ---- tables -----------------------------------------------------------------------------------------------------


def format_table_row(cells: Iterable[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def _head(*names: str) -> tuple[str, str]:
    return format_table_row(names), "|" + "---|" * len(names)


_SPEED = (
    "model",
    "platform",
    "batch",
    "threads",
    "simulator, us",
    "float32, us",
    "u8s8, us",
    "s8s8, us",
    "bound, us",
    "simulator / float32",
    "/ u8s8",
    "/ s8s8",
    "1 thread / threads",
)
SPEED_HEAD = _head(*_SPEED)
_ROW_HEAD = _head("row", *_SPEED)
COST_HEAD = _head(
    "model", "samples", "engine", "wall, s", "CPU, s", "peak memory, MB", "CPU / MinMax"
)
FIRST_HEAD = _head("command", "process", "wall, s", "CPU, s", "compiled loops", "tiles")


def speed_cells(speed: SpeedRow) -> list[str]:
    """Return the cells of one line of the table of speeds."""

    def took(engine: str) -> str:
        return _short(speed.times[engine]) if engine in speed.times else "-"

    def beside(engine: str) -> str:
        return spread(speed.ratios[engine])

    def spread(found: Ratio | str | None) -> str:
        return (
            f"{found.median:.2f} ({found.least:.2f}-{found.largest:.2f})"
            if isinstance(found, Ratio)
            else "-"
        )

    return [
        speed.title,
        speed.platform,
        str(speed.batch),
        str(speed.threads),
        *(took(engine) for engine in ("simulator", "float32", "u8s8", "s8s8")),
        _short(speed.bound),
        *(beside(engine) for engine in ("float32", "u8s8", "s8s8")),
        spread(speed.gain),
    ]


def cost_cells(cost: QuantizeCostRow) -> list[str]:
    """Return the cells of one line of the table of costs."""
    figures = (f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.peak:.0f}", f"{cost.ratio:.1f}")
    return [cost.title, str(cost.samples), cost.engine, *figures]


def first_cells(first: ColdStartRow) -> list[str]:
    """Return the cells of one line of the table of first runs."""
    return [
        first.title,
        first.process,
        f"{first.wall:.2f}",
        f"{first.cpu:.2f}",
        str(first.loops),
        str(first.tiles),
    ]


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


_PAGE = """# Benchmarks

Written by `{command}` on {date}: {cpu}, instruction row {row}.
{versions}.

Engines run in turn, round by round, in one process; figures are medians. Ratios below 1 mean that lingeronnx is faster.
Each begins when the threads of the one before it are asleep: onnxruntime's look for work some 40 ms after a run.
`benchmarks/results/speed.json` keeps the figures. The next run prints which ratio to onnxruntime became worse by more than a
tenth; only runs on the same processor with the same instruction row are compared.

## The simulator

Microseconds for a sample. float32 is onnxruntime with the float model; u8s8 and s8s8 are its own int8 graphs, made by
`quantize_static`: activations unsigned or signed, QuantizeLinear and DequantizeLinear, scales per tensor. Ratios have
the least and the largest round in brackets. The bound is the longer of two times: the multiply-accumulates at the peak
of the row's dot instruction, and inputs, outputs and weights at the speed of memory. Measured here: {peaks}.
Models are quantized with little effort; the time does not depend on it. The last column is the simulator alone: its
time with one thread over that with as many as the line says, measured in turn.

{speed}
{why_not}{rows}
## Quantizing

`lingeronnx quantize` with its defaults beside onnxruntime's `quantize_static` on the same samples, each in a process of
its own, imports included, kernels compiled before. Samples repeat where the data has fewer.

{cost}

## First runs

Whole commands, start of Python and imports included. The first process finds nothing compiled, the second what the
first has left. A loop is compiled by Numba, a tile or a trampoline by LLVM alone. All are kept as machine code that is
linked without Numba: importing that takes longer than a small model runs.

{first}

Nothing is shipped compiled. What is fast depends on the processor: code for all of them would be slow code, and a wheel
for each of them is more than one compilation costs. `lingeronnx warmup` compiles the usual kernels at a time of your
choice, for an image of a container for example; `LINGERONNX_CACHE_DIR` says where they are kept.
"""


_ROWS = """
### The other rows of dot instructions that this processor has

The simulator is held to the row, and its other code to a processor that has no more than that. onnxruntime is not: it
uses all that the processor has, as above. One thread.

"""


def format_page(figures: Figures) -> str:
    """Return the page."""

    def table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
        return "\n".join([*head, *(format_table_row(one) for one in cells)])

    why_not = "".join(f"- {what}: {why}\n" for what, why in figures.why_not.items())
    return _PAGE.format(
        **figures.machine,
        peaks="; ".join(figures.peaks),
        speed=table(SPEED_HEAD, map(speed_cells, figures.speed)),
        rows="\n".join([_ROWS + _ROW_HEAD[0], _ROW_HEAD[1], *figures.rows, ""])
        if figures.rows
        else "",
        why_not=f"\nNot run, and why:\n\n{why_not}" if why_not else "",
        cost=table(COST_HEAD, map(cost_cells, figures.cost)),
        first=table(FIRST_HEAD, map(first_cells, figures.first)),
    )
