"""What the flow ends with, as a value, and the one place that writes it to files.

What belongs together is settled here alone: the dialect of the names, names that the packer takes,
the part for the packer and what its file is called, the plan, and the packer's line for the files
that are there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ...conversion import convert
from ...errors import ConstraintError
from ...files import chip_file_path, find_stale_part_files, part_file_path, write_text
from ...graph import ir
from ...passes import SkipReason
from ...plan import Plan
from ...run.chip_part import extract_chip_part
from ...run.program_parts import split_into_parts
from ...run.session import Session, open_lowered_session
from ...targets import Target
from ..planning.planned_model import PlanBasis
from .fidelity import measure_tensor_sqnr
from .notebook import render_notebook_html
from .report import Report, format_packer_command

__all__ = ["QuantizedModel", "WrittenFiles"]


@dataclass(frozen=True)
class WrittenFiles:
    """What `QuantizedModel.write` wrote.

    graph : the file of the integer graph. chip : that of the part for the packer, None where the
    graph has no host part, or the chip several. parts : those of the chip's parts where there are
    several. plan : that of the scales, None where it was not asked for. report : the model's, with
    the packer's lines for these files (none in a generation that it does not read), and what
    converting changed among the notes.
    """

    graph: Path
    chip: Path | None
    plan: Path | None
    report: Report
    chip_parts: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(
            path
            for path in (self.graph, self.chip, *self.chip_parts, self.plan)
            if path is not None
        )


@dataclass(frozen=True)
class _OutputGraphs:
    """An integer graph and its part for the packer as they go to files, and notes on that."""

    graph: ir.Model
    part: ir.Model | None
    notes: Sequence[str]
    chip_parts: Sequence[ir.Model] = ()


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize` and `finetune` return.

    graph : the integer graph. plan : its scales. report : what was done. float_graph : the
    normalised float graph that the plan speaks of, with ranges fitted. platform : what the graph is
    for. ranges : {tensor of that: smallest and largest value that calibration saw}. basis : what
    the plan was made from. reasons : why passes left nodes alone that they are made for. samples :
    a few of the calibration data, by input.
    """

    graph: ir.Model
    plan: Plan
    report: Report
    float_graph: ir.Model
    platform: Target
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: PlanBasis = field(default_factory=PlanBasis)
    reasons: Sequence[SkipReason] = ()
    samples: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def layers(self) -> Mapping[str, float]:
        """{tensor: its SQNR in dB against the float model} on `samples`.

        Nothing without samples.
        """
        return (
            measure_tensor_sqnr(self.graph, self.float_graph, self.runner, self.samples)
            if self.samples
            else {}
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report's main facts and the worst layers."""
        return render_notebook_html(self.report, self.layers)

    @cached_property
    def chip(self) -> ir.Model | None:
        """The part the packer takes, without the host part.

        None where the graph is not chip-ready or has none.
        """
        return (
            extract_chip_part(self.graph, self.platform)
            if self.report.chip_ready and self.report.host_part
            else None
        )

    def write(
        self,
        path: str | os.PathLike[str],
        to: str = "thinker",
        *,
        plan: str | os.PathLike[str] | None = None,
    ) -> WrittenFiles:
        """Write the integer graph to `path`, and where it has a host part, the part for the packer beside it.

        path : of the graph; the part is called NAME_chip. to : a form as `convert` takes it. plan :
        a file for the scales. Each file is written as a whole or not at all, after all of them are
        made; parts of an earlier run stay, with a note. A file for a chip has names that its packer
        takes. Raises as `convert` does.
        """
        forms = self._output_graphs(to)
        graph, chip = Path(path), None
        ir.save(forms.graph, graph)
        if forms.part is not None:
            chip = chip_file_path(graph)
            ir.save(forms.part, chip)
        several = tuple(
            part_file_path(graph, number + 1) for number in range(len(forms.chip_parts))
        )
        for piece, path_ in zip(forms.chip_parts, several, strict=True):
            ir.save(piece, path_)
        if plan is not None:
            text = self.plan.to_json()
            Plan.from_json(text, str(plan))  # read back before it is written
            write_text(plan, text)
        line = (
            format_packer_command(self.platform, self.report.packer_args, chip or graph)
            if to == "thinker"
            else ""
        )
        old = find_stale_part_files(graph, several if chip is None else (chip, *several))
        left = [
            f"{', '.join(old)} beside {graph.name}: of an earlier run, and no part of this graph"
        ] * bool(old)
        report = replace(self.report, packer=line, notes=(*self.report.notes, *forms.notes, *left))
        if several and to == "thinker":
            calls = [
                format_packer_command(self.platform, part.packer_args, file) if part.runs else ""
                for part, file in zip(report.program.chip, several, strict=True)
            ]
            report = replace(report, program=report.program.with_packer_calls(calls))
        return WrittenFiles(graph, chip, None if plan is None else Path(plan), report, several)

    def save(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the integer graph alone, as `write` does."""
        ir.save(self._output_graphs(to).graph, path)

    def save_chip(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the part the packer takes to `path`, the whole graph where it has no host part.

        Raises ConstraintError where the graph is not chip-ready.
        """
        if not self.report.chip_ready:
            raise ConstraintError(
                "the graph is not chip-ready, it has no part that a chip could run; "
                "its report says which layer is in the way"
            )
        forms = self._output_graphs(to)
        ir.save(forms.part or forms.graph, path)

    def _output_graphs(self, to: str) -> _OutputGraphs:
        whole, part = self.graph, self.chip
        notes: tuple[str, ...] = ()
        if to != "thinker":
            changed = convert(whole, to, self.samples or None)
            whole, notes = changed.graph, changed.notes
            if not changed.is_packer_input:
                return _OutputGraphs(whole, None, notes)
            part = None if part is None else convert(part, to).graph
        names, row = self.platform.vendor.names(whole), self.platform  # both have the same
        named = row.with_safe_names(whole, names)
        cut = len(self.report.program.chip) > 1
        several = [piece.graph for piece in split_into_parts(named, row).chip] if cut else []
        return _OutputGraphs(
            named, None if part is None else row.with_safe_names(part, names), notes, several
        )

    def session(self) -> Session:
        """Return a session on the integer graph."""
        return open_lowered_session(self.graph, self.platform)

    @cached_property
    def runner(self) -> Session:
        """The session that a call of this model runs in, always the same one."""
        return self.session()

    def __call__(self, given: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray | list[np.ndarray]:
        """Run the integer graph on a batch, as `Session` does."""
        return self.runner(given)
