"""The figures of runs as sections: a page, a file for the next run, and what became slower.

A section is what one part of the benchmark measured, with the machine and the date. A run replaces the
sections that it measured and keeps the others. The simulator's section of another processor or
instruction set moves to the earlier ones. Absolute times of two runs say little, those of two
machines nothing: compared are ratios to onnxruntime, of one processor with one set of instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .timing import Ratio

__all__ = [
    "COST_HEAD",
    "FIRST_HEAD",
    "KERNEL_HEAD",
    "SPEED_HEAD",
    "ColdStartRow",
    "Figures",
    "KernelRow",
    "QuantizeCostRow",
    "SpeedRow",
    "TileRow",
    "cost_cells",
    "find_regressions",
    "first_cells",
    "format_page",
    "format_table_row",
    "kernel_cells",
    "merge_sections",
    "speed_cells",
]

#: A ratio that grew by more than this factor is reported.
REGRESSION_FACTOR = 1.1

Sections = Mapping[str, Any]


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
    utilization
        The simulator's products in a second over the peak of the dot instruction; None without one.
    """

    title: str
    platform: str
    batch: int
    threads: int
    times: Mapping[str, float]
    ratios: Mapping[str, Ratio | str]
    bound: float
    gain: Ratio | None = None
    utilization: float | None = None

    @property
    def key(self) -> str:
        """What it is found by in another run."""
        return f"{self.title}, {self.platform}, batch {self.batch}, {self.threads} thread(s)"


@dataclass(frozen=True)
class KernelRow:
    """All steps of a model that one kernel computes, each measured alone.

    macs : multiply-accumulates of a sample. micros : microseconds for a sample.
    """

    title: str
    platform: str
    batch: int
    kernel: str
    steps: int
    macs: int
    micros: float
    utilization: float | None


@dataclass(frozen=True)
class TileRow:
    """Products in a second of tiles with one number of rows.

    macs : by number of vectors; None where the tile's sums alone exceed the registers. chosen : for
    which vectors some layer width of `tiles.WIDTHS` takes this tile.
    """

    rows: int
    macs: Sequence[float | None]
    chosen: Sequence[bool]


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
    """What one run measured; sections that it did not measure are None."""

    machine: Mapping[str, str]
    speed: Sequence[SpeedRow] | None = None
    peaks: Sequence[str] = ()
    why_not: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[str] | None = None  # table lines of the other sets of dot instructions
    tiles: Sequence[TileRow] = ()
    kernels: Sequence[KernelRow] | None = None
    cost: Sequence[QuantizeCostRow] | None = None
    first: Sequence[ColdStartRow] | None = None

    def to_sections(self) -> dict[str, Any]:
        """Return the measured sections, of plain types."""
        contents: dict[str, dict[str, Any]] = {}
        if self.speed is not None:
            contents["simulator"] = {
                "rows": [asdict(row) for row in self.speed],
                "peaks": list(self.peaks),
                "why_not": dict(self.why_not),
            }
        if self.rows:
            contents["other_sets"] = {"rows": list(self.rows)}
        if self.kernels is not None:
            contents["kernels"] = {
                "rows": [asdict(row) for row in self.kernels],
                "tiles": [asdict(row) for row in self.tiles],
                "peaks": list(self.peaks),
            }
        if self.cost is not None:
            contents["quantize"] = {"rows": [asdict(row) for row in self.cost]}
        if self.first is not None:
            contents["first"] = {"rows": [asdict(row) for row in self.first]}
        return {
            name: {"machine": dict(self.machine), **content} for name, content in contents.items()
        }


def merge_sections(kept: Sections | None, new: Sections) -> dict[str, Any]:
    """Return the sections of an earlier run with those of a new one in their place.

    The simulator's section of another machine moves to "earlier", where one of each machine stays.
    """
    merged = {**(kept or {}), **new}
    before, now = (kept or {}).get("simulator"), merged.get("simulator")
    earlier = list((kept or {}).get("earlier", ()))
    if before is not None and now is not None:
        earlier.insert(0, before)
    seen = {_get_machine_key(now)} if now is not None else set()
    merged["earlier"] = []
    for section in earlier:
        key = _get_machine_key(section)
        if key not in seen:
            seen.add(key)
            merged["earlier"].append(section)
    return merged


def _get_machine_key(section: Sections) -> tuple[str, str]:
    """Return processor and set of instructions of a section."""
    return section["machine"]["cpu"], section["machine"]["row"]


def find_regressions(before: Sections | None, now: Sections) -> list[str]:
    """Return in lines what of the sections `now` takes longer than in `before` by over a tenth."""
    if before is None:
        return ["nothing to compare with: the last commit has no figures"]
    old, new = {}, {}
    for name, read in (("simulator", _get_speed_ratios), ("quantize", _get_cost_ratios)):
        if name not in now:
            continue
        candidates = [before.get(name), *(before.get("earlier", ()) if name == "simulator" else ())]
        machine = _get_machine_key(now[name])
        same = [s for s in candidates if s is not None and _get_machine_key(s) == machine]
        if same:
            old.update(read(same[0]))
            new.update(read(now[name]))
    if not new:
        return ["not compared with the last commit: it has no figures of this machine"]
    both = [key for key in new if key in old]
    found = [
        f"slower than at the last commit: {key}: {new[key]:.2f}, was {old[key]:.2f}"
        for key in both
        if new[key] > REGRESSION_FACTOR * old[key]
    ]
    return found or [
        f"none of {len(both)} ratios is worse than at the last commit by more than a tenth"
    ]


def _get_speed_ratios(section: Sections) -> dict[str, float]:
    """Return the ratios to onnxruntime's float32 by model, batch and threads."""
    rows = [_make_speed_row(row) for row in section["rows"]]
    return {
        row.key: ratio.median
        for row in rows
        if isinstance(ratio := row.ratios.get("float32"), Ratio)
    }


def _get_cost_ratios(section: Sections) -> dict[str, float]:
    """Return the ratios of `quantize` to the first method of onnxruntime."""
    rows = [QuantizeCostRow(**row) for row in section["rows"]]
    return {row.key: row.ratio for row in rows if row.engine == "lingeronnx"}


def _make_speed_row(row: Mapping[str, Any]) -> SpeedRow:
    """Return the row that `asdict` made `row` of."""
    ratios = {name: _make_ratio(value) for name, value in row["ratios"].items()}
    gain = row.get("gain")
    return SpeedRow(**{**row, "ratios": ratios, "gain": gain and Ratio(**gain)})


def _make_ratio(value: Mapping[str, float] | str) -> Ratio | str:
    """Return the ratio that `asdict` made `value` of; a reason as it is."""
    return value if isinstance(value, str) else Ratio(**value)


# ---- tables -----------------------------------------------------------------------------------------------------


def format_table_row(cells: Iterable[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def _head(*names: str) -> tuple[str, str]:
    return format_table_row(names), "|" + "---|" * len(names)


_ENGINES = ("float32", "u8s8", "s8s8", "OpenVINO")
_SPEED = (
    "model",
    "platform",
    "batch",
    "threads",
    "simulator, us",
    *(f"{engine}, us" for engine in _ENGINES),
    "bound, us",
    "of the peak",
    "simulator / float32",
    *(f"/ {engine}" for engine in _ENGINES[1:]),
    "1 thread / threads",
)
SPEED_HEAD = _head(*_SPEED)
_ROW_HEAD = _head("row", *_SPEED)
COST_HEAD = _head(
    "model", "samples", "engine", "wall, s", "CPU, s", "peak memory, MB", "CPU / MinMax"
)
FIRST_HEAD = _head("command", "process", "wall, s", "CPU, s", "compiled loops", "tiles")
KERNEL_HEAD = _head(
    "model", "platform", "batch", "kernel", "steps", "M MAC", "us", "G MAC/s", "of the peak"
)


def speed_cells(speed: SpeedRow) -> list[str]:
    """Return the cells of one line of the table of speeds."""

    def took(engine: str) -> str:
        return _short(speed.times[engine]) if engine in speed.times else "-"

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
        *(took(engine) for engine in ("simulator", *_ENGINES)),
        _short(speed.bound),
        _percent(speed.utilization),
        *(spread(speed.ratios.get(engine)) for engine in _ENGINES),
        spread(speed.gain),
    ]


def kernel_cells(row: KernelRow) -> list[str]:
    """Return the cells of one line of the table of kernels."""
    return [
        row.title,
        row.platform,
        str(row.batch),
        row.kernel,
        str(row.steps),
        f"{row.macs / 1e6:.2f}",
        _short(row.micros),
        f"{row.macs / row.micros / 1e3:.1f}",
        _percent(row.utilization),
    ]


def _format_tile_speed(macs: float | None, chosen: bool) -> str:
    """Format the speed of a tile in G products/s, bold if it is the chosen one; "-" for None."""
    if macs is None:
        return "-"
    text = f"{macs / 1e9:.1f}"
    return f"**{text}**" if chosen else text


def _tile_table(rows: Sequence[TileRow]) -> list[str]:
    """Return the table of tiles: a line for each number of rows, a column for each of vectors."""
    head = _head("rows", *(f"{i + 1} vector{'s' if i else ''}" for i in range(len(rows[0].macs))))
    lines = []
    for row in rows:
        cells = [
            _format_tile_speed(macs, chosen)
            for macs, chosen in zip(row.macs, row.chosen, strict=True)
        ]
        lines.append(format_table_row([str(row.rows), *cells]))
    return [*head, *lines]


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


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    return "\n".join([*head, *(format_table_row(one) for one in cells)])


# ---- page -------------------------------------------------------------------------------------------------------

_INTRODUCTION = """# Benchmarks

Each section names its command, date and machine; `benchmarks/results/speed.json` keeps the figures. Engines run in turn,
round by round, in one process; figures are medians of the rounds. Ratios below 1 mean that lingeronnx is faster. Each
engine begins when the threads of the one before it are asleep: onnxruntime's look for work some 40 ms after a run. The
next run prints which ratio to onnxruntime became worse by more than a tenth; only runs on the same processor with the
same instruction set are compared.
"""

_SIMULATOR = """
## The simulator

{machine}

Microseconds for a sample. float32 is onnxruntime with the float model; u8s8 and s8s8 are its own int8 graphs, made by
`quantize_static`: activations unsigned or signed, QuantizeLinear and DequantizeLinear, scales per tensor. OpenVINO runs
the QDQ file that `convert` writes of the same integer graph, compiled for the batch. Ratios have the least and the
largest round in brackets. The bound is the longer of two times: the multiply-accumulates at the peak of the set's dot
instruction, and inputs, outputs and weights at the speed of memory. Measured here: {peaks}. "Of the peak" is the
share of that peak that the simulator's multiply-accumulates reach, everything else included. Models are quantized with
little effort; the time does not depend on it. The last column is the simulator alone: its time with one thread over
that with as many as the line says, measured in turn.

{table}
{why_not}"""

_EARLIER = """
### Earlier: {cpu}, {row}

{machine} Measured then: {peaks}.

{table}
"""

_OTHER_SETS = """
### The other sets of dot instructions that this processor has

{machine}

The simulator is held to the set, and its other code to a processor that has no more than that. onnxruntime and
OpenVINO are not: they use all that the processor has, as above. One thread.

{table}
"""

_KERNELS = """
## Kernels and tiles

{machine}

The steps of a model that multiply and accumulate, each compiled and run alone, one thread, and summed by kernel:
operands of one sample are in the caches more often than in the whole model. The peak is that of the set's dot
instruction alone, in registers ({peaks}); a kernel that reaches the sums by other instructions, too, may exceed it.

{table}

Products of a register tile in G MAC/s, its operands in the nearest cache: rows by vectors of outputs. Bold are tiles
that some number of outputs takes; "-" has more sums than there are registers.

{tiles}
"""

_QUANTIZE = """
## Quantizing

{machine}

`lingeronnx quantize` with its defaults beside onnxruntime's `quantize_static` on the same samples, each in a process of
its own, imports included, kernels compiled before. Samples repeat where the data has fewer.

{table}
"""

_FIRST = """
## First runs

{machine}

Whole commands, start of Python and imports included. The first process finds nothing compiled, the second what the
first has left. A loop is compiled by Numba, a tile or a trampoline by LLVM alone. All are kept as machine code that is
linked without Numba: importing that takes longer than a small model runs.

{table}

Nothing is shipped compiled. What is fast depends on the processor: code for all of them would be slow code, and a wheel
for each of them is more than one compilation costs. `lingeronnx warmup` compiles the usual kernels at a time of your
choice, for an image of a container for example; `LINGERONNX_CACHE_DIR` says where they are kept.
"""


def format_page(sections: Sections) -> str:
    """Return the page of all sections that there are."""
    page = [_INTRODUCTION]
    if (section := sections.get("simulator")) is not None:
        reasons = "".join(f"- {what}: {why}\n" for what, why in section["why_not"].items())
        page.append(
            _SIMULATOR.format(
                machine=_describe_machine(section),
                peaks="; ".join(section["peaks"]),
                table=_speed_table(section),
                why_not=f"\nNot run, and why:\n\n{reasons}" if reasons else "",
            )
        )
    for section in sections.get("earlier", ()):
        page.append(
            _EARLIER.format(
                cpu=section["machine"]["cpu"],
                row=section["machine"]["row"],
                machine=_describe_machine(section),
                peaks="; ".join(section["peaks"]),
                table=_speed_table(section),
            )
        )
    if (section := sections.get("other_sets")) is not None:
        table = "\n".join([*_ROW_HEAD, *section["rows"]])
        page.append(_OTHER_SETS.format(machine=_describe_machine(section), table=table))
    if (section := sections.get("kernels")) is not None:
        page.append(
            _KERNELS.format(
                machine=_describe_machine(section),
                peaks="; ".join(section["peaks"]),
                table=_table(KERNEL_HEAD, (kernel_cells(KernelRow(**r)) for r in section["rows"])),
                tiles="\n".join(_tile_table([TileRow(**row) for row in section["tiles"]])),
            )
        )
    for name, text, head, make, cells in (
        ("quantize", _QUANTIZE, COST_HEAD, QuantizeCostRow, cost_cells),
        ("first", _FIRST, FIRST_HEAD, ColdStartRow, first_cells),
    ):
        if (section := sections.get(name)) is not None:
            table = _table(head, (cells(make(**row)) for row in section["rows"]))
            page.append(text.format(machine=_describe_machine(section), table=table))
    return "".join(page)


def _speed_table(section: Sections) -> str:
    return _table(SPEED_HEAD, (speed_cells(_make_speed_row(row)) for row in section["rows"]))


def _describe_machine(section: Sections) -> str:
    """Return the sentences on command, date, processor and versions of a section."""
    machine = section["machine"]
    threads = f", {machine['threads']}" if "threads" in machine else ""
    return (
        f"Written by `{machine['command']}` on {machine['date']}: {machine['cpu']}, instruction set "
        f"{machine['row']}{threads}.\n{machine['versions']}."
    )
