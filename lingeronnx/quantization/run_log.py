"""The log of one quantization: its steps with their time, what they changed, and all verdicts.

The logger `lingeronnx.verdicts` gets a DEBUG record in JSON for each verdict of a trial, so that
`benchmarks/compare_versions.py` also finds changed decisions that do not change any file.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..runtime.data import Progress

__all__ = ["LOGGER", "RunLog", "StepRecord", "VerdictRecord", "format_steps"]

LOGGER = logging.getLogger("lingeronnx.verdicts")

_DIGITS = 9  # significant digits of a figure


@dataclass(frozen=True)
class VerdictRecord:
    """The decision on one proposal of a trial.

    Attributes
    ----------
    trial, label
        Name of the trial, and which of its proposals.
    accepted
        Whether the proposal was kept.
    criterion, measured
        Thresholds and figures by name, in dB or standard errors.
    """

    trial: str
    label: str
    accepted: bool
    criterion: Mapping[str, float]
    measured: Mapping[str, float]

    def log(self) -> None:
        """Send the verdict to `LOGGER` as one JSON object."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            LOGGER.debug("%s", json.dumps(self.to_dict()))

    def to_dict(self) -> dict[str, object]:
        """Return the verdict for a JSON file, its figures rounded to `_DIGITS` digits."""
        return {
            "trial": self.trial,
            "label": self.label,
            "accepted": bool(self.accepted),
            "criterion": _round_figures(self.criterion),
            "measured": _round_figures(self.measured),
        }

    def __str__(self) -> str:
        """Format the verdict on one line: label, decision, figures and thresholds."""
        decision = "kept" if self.accepted else "rejected"
        measured = ", ".join(f"{name} {value:.2f}" for name, value in self.measured.items())
        criterion = ", ".join(f"{name} {value:g}" for name, value in self.criterion.items())
        return f"{self.label or 'proposal'}: {decision}; {measured} (criterion: {criterion})"


@dataclass
class StepRecord:
    """One step of a quantization.

    Attributes
    ----------
    name
        Name of the step or trial.
    depth
        Number of steps that it runs inside of.
    seconds
        Wall time, with the steps inside of it.
    changes
        What it changed, one text per change; empty if it changed nothing.
    verdicts
        Verdicts of a trial, in order.
    """

    name: str
    depth: int = 0
    seconds: float = 0.0
    changes: list[str] = field(default_factory=list)
    verdicts: list[VerdictRecord] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Return the record for a JSON file; its verdicts as the logger has them."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {**vars(self), "verdicts": verdicts}


@dataclass(eq=False)
class RunLog:
    """Records the steps of one quantization, and reports progress.

    Attributes
    ----------
    progress
        Callback for progress messages, or None.
    steps
        Steps in the order of their start.
    """

    progress: Progress | None = None
    steps: list[StepRecord] = field(default_factory=list)
    _depth: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[StepRecord]:
        """Record a step: its time, and what the body adds to the yielded record."""
        record = StepRecord(name, self._depth)
        self.steps.append(record)
        self._depth += 1
        start = time.perf_counter()
        try:
            yield record
        finally:
            record.seconds = time.perf_counter() - start
            self._depth -= 1

    def report_progress(self, description: str) -> None:
        """Report the start of a part of the work whose length is unknown."""
        if self.progress is not None:
            self.progress(description, 0, None)


def format_steps(steps: Sequence[StepRecord]) -> str:
    """Format steps as text: one line per step with its time, below it its changes and verdicts."""
    lines = []
    for step in steps:
        indent = "  " * step.depth
        lines.append(f"{step.seconds:8.2f} s  {indent}{step.name}")
        details = [*step.changes, *map(str, step.verdicts)]
        lines += [f"{'':12}{indent}{detail}" for detail in details]
    return "\n".join(lines)


def _round_figures(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Round figures to `_DIGITS` significant digits; infinity and NaN become strings for JSON."""
    rounded = {name: float(f"{float(value):.{_DIGITS}g}") for name, value in figures.items()}
    return {name: value if math.isfinite(value) else str(value) for name, value in rounded.items()}
