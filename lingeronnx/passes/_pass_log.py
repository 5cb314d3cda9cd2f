"""What the passes did, kept in their order and, where a folder is given, written there as they run.

passes.txt          every pass: how many changes, and why it did not act where it might have
NN_<pass>.onnx      the graph after each pass that changed something
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..files import created_folder, write_text
from ..graph import ir
from ._pass import PassRun, SkipReason

__all__ = ["PassLog"]


class PassLog:
    """A `PassObserver` that keeps every `PassRun`.

    folder : where text and graphs go, made at the first step where it is missing; None writes
    nothing. ConfigError where it cannot be.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.steps: list[PassRun] = []
        self._folder = None if folder is None else Path(folder)

    def __call__(self, step: PassRun, graph: ir.Model) -> None:
        """Note what a pass did to `graph`."""
        self.steps.append(step)
        if self._folder is None:
            return
        with created_folder(self._folder):
            if step.changes:
                ir.save(graph, self._folder / f"{len(self.steps) - 1:02}_{step.name}.onnx")
            write_text(self._folder / "passes.txt", "\n".join(self._format_lines()) + "\n")

    def _format_lines(self) -> Iterator[str]:
        for number, step in enumerate(self.steps):
            first, *more = step.lines()
            yield f"{number:02} {first}"
            yield from (f"   {line}" for line in more)

    def format_skip_reasons(self) -> list[str]:
        """Return, for every pass, why it finally did not act where it might have: "pass.

        Node stays: why".
        """
        return [
            f"{step.name}: {reason}" for step in self._last_runs() for reason in step.skip_reasons
        ]

    def get_skip_reasons(self) -> list[SkipReason]:
        """Return the same as values."""
        return [reason for step in self._last_runs() for reason in step.skip_reasons]

    def _last_runs(self) -> Iterable[PassRun]:
        return {step.name: step for step in self.steps}.values()  # what runs again, speaks again
