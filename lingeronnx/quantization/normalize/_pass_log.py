"""A log of all passes, optionally written to a folder while they run.

passes.txt          every pass with its number of changes and its skip reasons
NN_<pass>.onnx      the graph after each pass that changed something
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...common.escaping import join_lines
from ...common.files import created_folder, write_text
from ...ir import ir
from ._pass import PassRun, SkipReason

__all__ = ["PassLog"]


class PassLog:
    """A `PassObserver` that collects every `PassRun`.

    Parameters
    ----------
    folder
        Where the log and the graphs are written; created at the first pass. None writes nothing.

    Raises
    ------
    ConfigError
        The folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Start an empty log; with `folder`, models and texts are written there."""
        self.steps: list[PassRun] = []
        self._folder = None if folder is None else Path(folder)

    def __call__(self, step: PassRun, graph: ir.Model) -> None:
        """Append `step` to the log; with a folder, also write files there.

        ``passes.txt`` is rewritten after each pass; `graph` is saved as ``NN_NAME.onnx`` if the
        pass changed something.
        """
        self.steps.append(step)
        if self._folder is None:
            return
        with created_folder(self._folder):
            if step.changes:
                ir.save(graph, self._folder / f"{len(self.steps) - 1:02}_{step.name}.onnx")
            write_text(self._folder / "passes.txt", join_lines(self._format_lines()) + "\n")

    def _format_lines(self) -> Iterator[str]:
        """Yield a numbered line per step, each followed by its indented reasons."""
        for index, step in enumerate(self.steps):
            summary, *reasons = step.lines()
            yield f"{index:02} {summary}"
            yield from (f"   {line}" for line in reasons)

    def format_skip_reasons(self) -> list[str]:
        """Return lines "PASS: OPERATOR NAME stays: reason" of each pass's last run only."""
        lines: list[str] = []
        for step in self._last_runs():
            lines += [f"{step.name}: {reason}" for reason in step.skip_reasons]
        return lines

    def get_skip_reasons(self) -> list[SkipReason]:
        """List the reasons why passes left nodes unchanged, of the last run of each pass."""
        reasons: list[SkipReason] = []
        for step in self._last_runs():
            reasons += step.skip_reasons
        return reasons

    def _last_runs(self) -> Iterable[PassRun]:
        """Return the last run of each pass, whose skip reasons replace those of earlier runs."""
        return {step.name: step for step in self.steps}.values()
