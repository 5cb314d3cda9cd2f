"""Last stage: the integer graph, a report on it, and how far it is from the float model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..chip.form import chip_form
from ..chip.part import chip_part
from ..chip.row_tiles import row_tiles
from ..errors import ConstraintError
from ..graph import ir
from ..packer.names import safe_names, written
from ..passes import Reason
from ..plan import Plan
from ..platforms import Platform
from ..run.data import Progress
from ..run.session import Session, lowered_session
from .fidelity import fidelity
from .lower import lower
from .planned import Basis, Planned
from .report import Report, describe

__all__ = ["QuantizedModel", "complete"]


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize` and `finetune` return.

    graph : the integer graph. plan : its scales. report : what was done. float_graph : the normalised float graph that
    the plan speaks of, with ranges fitted. platform : what the graph is for. ranges : {tensor of that: smallest
    and largest value that calibration saw}. basis : what the plan was made from. reasons : why passes left nodes alone
    that they are made for.
    """

    graph: ir.Graph
    plan: Plan
    report: Report
    float_graph: ir.Graph
    platform: Platform
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: Basis = field(default_factory=Basis)
    reasons: Sequence[Reason] = ()

    def save(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the integer graph to `path`, as a whole or not at all; `to` is a generation as `convert` takes it.

        A file for a chip has names that its packer takes (`packer.names`).
        """
        ir.save(self._written(self.graph, to), path)

    @cached_property
    def chip(self) -> ir.Graph | None:
        """The part the packer takes, without the host part; None where the graph is not chip-ready or has none."""
        return chip_part(self.graph) if self.report.chip_ready and self.report.host_part else None

    def save_chip(self, path: str | os.PathLike[str], to: str = "thinker") -> None:
        """Write the part the packer takes to `path`; ConstraintError where the graph is not chip-ready."""
        if not self.report.chip_ready:
            raise ConstraintError("the graph is not chip-ready: it has no part that a chip could run by itself")
        part = self.graph if self.chip is None else self.chip
        ir.save(self._written(part, to), path)

    def _written(self, graph: ir.Graph, to: str) -> ir.Graph:
        """Return the integer graph, or its part for the chip, as it goes to a file."""
        if to != "thinker":
            graph = _converted(graph, to)
            return written(graph) if self.report.is_chip else graph
        return written(graph, safe_names(self.graph)) if self.report.is_chip else graph

    def session(self) -> Session:
        """Return a session on the integer graph."""
        return lowered_session(self.graph, self.platform)

    @cached_property
    def runner(self) -> Session:
        """The session that a call of this model runs in, always the same one."""
        return self.session()

    def __call__(self, given: Any) -> Any:
        """Run the integer graph on a batch, as `Session` does."""
        return self.runner(given)


def _converted(graph: ir.Graph, to: str) -> ir.Graph:
    from ..conversion import convert

    return convert(graph, to).graph


def complete(planned: Planned, exact: ir.Graph, progress: Progress | None = None) -> QuantizedModel:
    """Lower `exact`, the planned graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    prepared, plan, row = planned.prepared, planned.plan, planned.prepared.row
    lowered = lower(planned.parts.on(exact), plan, row).graph
    notes = [*prepared.notes, *planned.notes]
    formed = chip_form(lowered, row)
    lowered, tiled = row_tiles(lowered, row)
    fitted = [*prepared.fitted, *formed, *tiled]
    report = describe(planned.parts, lowered, plan, row, fitted, notes, prepared.stem)
    if prepared.conf.require_chip and not report.chip_ready:
        raise _not_ready(report, row)
    result = QuantizedModel(lowered, plan, report, planned.graph, row, planned.ranges, planned.basis, prepared.reasons)
    seen = fidelity(prepared, lowered, planned.graph, result.session(), progress)
    return replace(result, report=replace(report, outputs=seen.outputs, measured_on=seen.on, warnings=seen.warnings))


def _not_ready(report: Report, row: Platform) -> ConstraintError:
    if row.packing is None:
        return ConstraintError(f"--require-chip: platform {row.name} is no chip; choose --platform venus")
    against = [f for f in report.findings if f.level != "plan"]
    if against:
        return ConstraintError(f"not chip-ready: {against[0]}")
    if not report.float_nodes:
        return ConstraintError("--require-chip: no operator of the model can be quantized")
    node = report.float_nodes[0]
    more = len(report.float_nodes) - 1
    rest = f" (and {more} more)" if more else ""
    return ConstraintError(f"not chip-ready: {node.op_type} {node.node} stays in float: {node.why}{rest}")
