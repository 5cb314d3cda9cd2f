"""The result of the quantization flow, and the only place that writes it to files.

Settles everything that the files have in common: the naming dialect, names that the packer accepts,
the part for the packer and the name of its file, the plan, and the packer command for these files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...common.deprecation import accept_old_parameters, keep_old_members
from ...common.errors import ConstraintError
from ...common.files import chip_file_path, find_stale_part_files, part_file_path, write_text
from ...common.notebook import format_summary, render_fact_table, render_fragment
from ...ir import ir
from ...ir.plan import Plan
from ...operators.chip_part import extract_chip_part
from ...runtime.program_parts import split_into_parts
from ...runtime.session import LoweredSession, Session
from ...targets import Target
from ..normalize import SkipReason
from ..run_log import StepRecord
from ..steps.planned_model import PlanBasis
from .fidelity import measure_tensor_sqnr

if TYPE_CHECKING:
    from .report import Report

__all__ = ["DeferredReport", "QuantizedModel", "WrittenFiles", "render_notebook_html"]

_MAX_NOTEBOOK_ROWS = 5  # layers that are listed


@keep_old_members("0.3", parts="chip_parts")
@dataclass(frozen=True)
class WrittenFiles:
    """The files that `QuantizedModel.write` wrote.

    Attributes
    ----------
    graph
        File of the integer graph.
    chip
        File of the part for the packer; None if the graph has no host part, or several chip parts.
    plan
        File of the scales; None if not requested.
    report
        The model's report with the packer commands for these files (none for dialects that the
        packer does not read), and with notes on the conversion.
    chip_parts
        Files of the chip parts, if there are several.
    """

    graph: Path
    chip: Path | None
    plan: Path | None
    report: Report
    chip_parts: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(
            path
            for path in (self.graph, self.chip, *self.chip_parts, self.plan)
            if path is not None
        )


class _OutputGraphs(NamedTuple):
    """An integer graph and its parts for the packer as they are written, with notes."""

    graph: ir.Model
    part: ir.Model | None
    notes: Sequence[str]
    chip_parts: Sequence[ir.Model] = ()


@dataclass(eq=False)
class DeferredReport:
    """A report that is built when it is first read.

    It keeps the function that builds it, with all that this refers to, until then.
    """

    _build: Callable[[], Report] | None
    _report: Report | None = None

    def read(self) -> Report:
        """Return the report, which the first call builds."""
        if self._report is None:
            assert self._build is not None
            with np.errstate(all="ignore"):  # values that are not finite are in the report
                self._report = self._build()
            self._build = None  # releases the calibration data and the sessions
        return self._report

    def __getstate__(self) -> dict[str, object]:
        """Return the built report: sessions and data cannot be copied, and need not be stored."""
        self.read()
        return self.__dict__


@dataclass(frozen=True)
class QuantizedModel:
    """Result of `quantize` and `finetune`.

    Attributes
    ----------
    graph
        The integer graph.
    plan
        Scales and widths of its tensors.
    deferred_report
        The report on the quantization, which is built from `graph` when `report` is first read.
        Until then it keeps the calibration data.
    float_graph
        The normalized float graph that the plan refers to, with fitted ranges.
    platform
        The target.
    ranges
        {tensor of `float_graph`: smallest and largest value in calibration}.
    basis
        Statistics and settings that the plan was made from.
    reasons
        Reasons why passes did not change nodes that they are made for.
    samples
        A few of the calibration samples, by input.
    steps
        The steps of `quantize` with their time, what they changed and all verdicts.
    """

    graph: ir.Model
    plan: Plan
    deferred_report: DeferredReport = field(repr=False, compare=False)
    float_graph: ir.Model
    platform: Target
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: PlanBasis = field(default_factory=PlanBasis)
    reasons: Sequence[SkipReason] = ()
    samples: Mapping[str, np.ndarray] = field(default_factory=dict)
    steps: Sequence[StepRecord] = field(default=(), compare=False)

    @property
    def report(self) -> Report:
        """The report on the quantization."""
        return self.deferred_report.read()

    def with_report(self, report: Report) -> QuantizedModel:
        """Return a copy with another report."""
        return replace(self, deferred_report=DeferredReport(lambda: report))

    @cached_property
    def layers(self) -> Mapping[str, float]:
        """{tensor: SQNR in dB against `float_graph`} on `samples`; empty without samples."""
        if not self.samples:
            return {}
        return measure_tensor_sqnr(self.graph, self.float_graph, self.runner, self.samples)

    def __repr__(self) -> str:
        """Return the report's main facts as text of one screen."""
        return format_summary("QuantizedModel", self.report.list_facts())

    def _repr_html_(self) -> str:
        """Render the report's main facts and the worst layers for a notebook."""
        return render_notebook_html(self.report, self.layers)

    @cached_property
    def chip(self) -> ir.Model | None:
        """The part for the packer, without the host part.

        None if the graph is not chip-ready, or if all of it is for the packer.
        """
        if not self.report.chip_ready or not self.report.host_part:
            return None
        return extract_chip_part(self.graph, self.platform)

    def write(
        self,
        path: str | os.PathLike[str],
        to: str = "thinker",
        *,
        plan: str | os.PathLike[str] | None = None,
    ) -> WrittenFiles:
        """Write the integer graph, its parts for the packer if it has a host part, and the plan.

        All graphs are built before the first file is written, and each file is written atomically.
        Files that exist are replaced. Part files of an earlier run are not removed; a note lists
        them. Names in files for a chip are such that its packer accepts them. Raises the errors of
        `convert`.

        Parameters
        ----------
        path
            File of the graph. The part for the packer is written next to it (`chip_file_path`),
            several of them as `part_file_path`.
        to
            Dialect or format, as in `convert`.
        plan
            File for the plan; None writes none.
        """
        outputs = self._output_graphs(to)
        graph_path = Path(path)
        ir.save(outputs.graph, graph_path)
        chip_path = None
        if outputs.part is not None:
            chip_path = chip_file_path(graph_path)
            ir.save(outputs.part, chip_path)
        part_paths = []
        for index, part in enumerate(outputs.chip_parts):
            part_paths.append(part_file_path(graph_path, index + 1))
            ir.save(part, part_paths[-1])
        if plan is not None:
            text = self.plan.to_json()
            Plan.from_json(text, str(plan))  # must be readable
            write_text(plan, text)
        written_parts = part_paths if chip_path is None else [chip_path, *part_paths]
        notes = [*self.report.notes, *outputs.notes]
        stale = find_stale_part_files(graph_path, written_parts)
        if stale:
            notes.append(
                f"{', '.join(stale)} next to {graph_path.name}: left over from an earlier run, "
                "not part of this graph"
            )
        report = replace(self.report, packer="", notes=tuple(notes))
        if to == "thinker":
            report = self._with_packer_commands(report, chip_path or graph_path, part_paths)
        plan_path = None if plan is None else Path(plan)
        return WrittenFiles(graph_path, chip_path, plan_path, report, tuple(part_paths))

    def _with_packer_commands(
        self, report: Report, packer_input: Path, part_paths: Sequence[Path]
    ) -> Report:
        """Return `report` with the packer command for its file, or for each of several parts.

        `part_paths` are the files of the chip parts, empty for a single one, which is
        `packer_input`; the command of a part that does not run is "".
        """
        from .report import format_packer_command  # many modules, which only a report needs

        command = format_packer_command(self.platform, report.packer_args, packer_input)
        report = replace(report, packer=command)
        if not part_paths:
            return report
        commands = []
        for part, part_path in zip(report.program.chip, part_paths, strict=True):
            command = ""
            if part.runs:
                command = format_packer_command(self.platform, part.packer_args, part_path)
            commands.append(command)
        return replace(report, program=report.program.with_packer_calls(commands))

    def save(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the integer graph to `path`, without part files and plan; `to` is as in `write`."""
        ir.save(self._output_graphs(to).graph, path)

    def save_chip(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the part for the packer, or the entire graph if it has none, to `path`.

        Raises
        ------
        ConstraintError
            If the graph is not chip-ready. The errors of `convert` are raised for other dialects
            `to`.
        """
        if not self.report.chip_ready:
            raise ConstraintError(
                "the graph is not chip-ready, so there is no chip part to save; see the report for "
                "the layers responsible"
            )
        outputs = self._output_graphs(to)
        ir.save(outputs.part or outputs.graph, path)

    def _output_graphs(self, to: str) -> _OutputGraphs:
        """Convert the graph and its parts to dialect `to`, with names that the packer accepts.

        Dialects other than "thinker" have the notes of the conversion; those that the packer does
        not read have no parts, and the names stay.
        """
        graph, part = self.graph, self.chip
        notes: tuple[str, ...] = ()
        if to != "thinker":
            from ...interchange.convert import convert  # only for other dialects

            converted = convert(graph, to, self.samples or None)
            graph, notes = converted.graph, converted.notes
            if not converted.is_packer_input:
                return _OutputGraphs(graph, None, notes)
            part = None if part is None else convert(part, to).graph
        target = self.platform
        names = target.vendor.names(graph)  # the part has the same names
        renamed = target.with_safe_names(graph, names)
        renamed_part = None if part is None else target.with_safe_names(part, names)
        chip_parts: Sequence[ir.Model] = ()
        if len(self.report.program.chip) > 1:
            chip_parts = [part.graph for part in split_into_parts(renamed, target).chip]
        return _OutputGraphs(renamed, renamed_part, notes, chip_parts)

    def session(self) -> Session:
        """Open a session on the integer graph."""
        return LoweredSession(self.graph, self.platform)

    @cached_property
    def runner(self) -> Session:
        """The session that runs calls of this model, opened once."""
        return self.session()

    @accept_old_parameters("0.3", given="inputs")
    def __call__(
        self, inputs: Mapping[str, ArrayLike] | ArrayLike
    ) -> np.ndarray | list[np.ndarray]:
        """Run the integer graph on a batch; inputs and outputs are those of `Session`."""
        return self.runner(inputs)


def render_notebook_html(report: Report, layers: Mapping[str, float]) -> str:
    """Render the main facts of a report and its worst layers as an HTML fragment.

    Parameters
    ----------
    report
        Report of the quantized model. All names are escaped.
    layers
        SQNR in dB by tensor.
    """
    worst_layers = sorted(layers.items(), key=lambda item: item[1])[:_MAX_NOTEBOOK_ROWS]
    tables = [render_fact_table("", report.list_facts())]
    if worst_layers:
        rows = [(name, f"{sqnr_db:.1f} dB") for name, sqnr_db in worst_layers]
        tables.append(render_fact_table("Layers with the lowest SQNR", rows))
    return render_fragment("Quantized model", *tables)
