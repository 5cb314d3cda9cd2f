"""docs/reference/models.md: which models work on which chip, joined from what commands measured.

Accuracy is that of benchmarks/results/baseline.md, memory that of programs.md beside it, cycles
those of cycles.md. Nothing is measured here; what a table does not have is left empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import lingeronnx

from .markdown import MADE, table

__all__ = ["page", "rows"]

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_PREFIX = r"^(?:mlperf_tiny|fsdd|cifar)_"
_COLUMNS = ("top-1, %", "SQNR, dB")

_HEAD = f"""{MADE}

# Models that work

Each model on each target with the defaults, as commands of lingeronnx {lingeronnx.__version__} measured it. Accuracy is
what `make baseline` holds, on data that calibration did not see. RAM, flash and external memory (psram) are those of the
whole program, in bytes. Cycles are those of one call, at the upper end of their range, and known for arcs only. An empty
cell was not measured. Settings, machines and further figures are in `benchmarks/results/`: `baseline.md`, `programs.md`,
`cycles.md`, `real-models.md`, and `first-attempts.md` of networks with random weights.
"""


def page() -> str:
    """Return the page."""
    head = [
        "model",
        "target",
        "chip-ready",
        "top-1, %",
        "SQNR, dB",
        "integer MACs, %",
        "RAM",
        "flash",
        "psram",
        "cycles",
    ]
    return "\n".join([_HEAD, *table(head, rows())]).rstrip() + "\n"


def rows() -> Iterator[list[str]]:
    """Yield the cells of each model on each target, in the order of the promises."""
    memory = {(_short(r[0]), r[1]): r[6:9] for r in _table("programs.md", 17)}
    cycles = {_short(r[0]): r[4] for r in _table("cycles.md", 10)}
    promised: dict[tuple[str, str], dict[str, str]] = {}
    for model, target, settings, measure, value, *_ in _table("baseline.md", 7):
        if not settings or settings == "`--mode max-value`":
            promised.setdefault((model, target), {})[measure] = value
    for (model, target), found in promised.items():
        accuracy = [found.get(column, "") for column in _COLUMNS]
        used = memory.get((model, target), ["", "", ""])
        time = cycles.get(model, "") if target == "arcs" else ""
        ready = found.get("chip-ready", "")
        yield [model, target, ready, *accuracy, found.get("integer MACs, %", ""), *used, time]


def _short(model: str) -> str:
    return re.sub(_PREFIX, "", re.sub(r" \(.*", "", model))


def _table(name: str, columns: int) -> Iterator[list[str]]:
    """Yield the rows of a page's tables that have so many columns, without their heads."""
    for line in (_RESULTS / name).read_text(encoding="utf-8").splitlines():
        cells = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|")
            else []
        )
        if len(cells) == columns and not set(cells[0]) <= {"-", " "} and cells[0] != "model":
            yield cells
