"""Last stage: the integer graph, a report on it, and how far it is from the float model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ..chip.form import chip_form
from ..chip.row_tiles import row_tiles
from ..errors import ConstraintError
from ..graph import ir
from ..platforms import Platform
from ..run.data import Progress
from ..run.memory import piece
from ..run.moments import note_inputs
from ..run.session import lowered_session
from .fidelity import Fidelity, fidelity
from .lower import lower
from .model import QuantizedModel
from .planned import Planned
from .report import Report, describe

__all__ = ["Compared", "compared", "complete"]

_SEEN = 256  # calibration samples whose moments are noted in the graph


@dataclass(frozen=True)
class Compared:
    """A plan whose integer graph has been compared with the float model.

    lowered : the integer graph, not yet in the chip's form. seen : how far it is from the float model.
    """

    planned: Planned
    lowered: ir.Graph
    seen: Fidelity

    @cached_property
    def result(self) -> QuantizedModel:
        """The graph in the form that the chip's packer wants, with its report: the same integers."""
        planned, prepared = self.planned, self.planned.prepared
        plan, row, lowered = planned.plan, prepared.row, ir.clone(self.lowered)
        notes = [*prepared.notes, *planned.notes]
        formed = chip_form(lowered, row)
        lowered, tiled = row_tiles(lowered, row)
        if not prepared.synthetic:
            few = piece(4 * prepared.input_bytes, _SEEN, prepared.conf.budget)
            note_inputs(lowered, next(iter(prepared.data.peek(few)))[0])
        fitted = [*prepared.fitted, *formed, *tiled]
        report = describe(planned.parts, lowered, plan, row, fitted, notes, prepared.stem)
        seen = self.seen
        report = replace(report, outputs=seen.outputs, measured_on=seen.on, warnings=seen.warnings)
        return QuantizedModel(lowered, plan, report, planned.graph, row, planned.ranges, planned.basis,
                              prepared.reasons)  # fmt: skip

    @property
    def checked(self) -> QuantizedModel:
        """The result; ConstraintError with require_chip where it is not chip-ready."""
        report = self.result.report
        if self.planned.prepared.conf.require_chip and not report.chip_ready:
            raise _not_ready(report, self.planned.prepared.row)
        return self.result


def compared(planned: Planned, exact: ir.Graph, progress: Progress | None = None) -> Compared:
    """Lower `exact`, the planned graph with its weights as they shall be, and compare it with the float model."""
    row = planned.prepared.row
    lowered = lower(planned.parts.on(exact), planned.plan, row).graph
    seen = fidelity(planned.prepared, lowered, planned.graph, lowered_session(lowered, row), progress)
    return Compared(planned, lowered, seen)


def complete(planned: Planned, exact: ir.Graph, progress: Progress | None = None) -> QuantizedModel:
    """Lower `exact`, the planned graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    return compared(planned, exact, progress).checked


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
