"""Last stage: the integer graph, a report on it, and how far it is from the float model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..chip.form import chip_form
from ..chip.row_tiles import row_tiles
from ..emit import Lowered
from ..errors import ConstraintError
from ..fit import Fitted
from ..graph import ir
from ..platforms import Platform
from ..run.data import Progress
from ..run.moments import note_inputs
from .fidelity import fidelity
from .lower import lower
from .model import QuantizedModel
from .planned import Planned
from .report import Report, describe

__all__ = ["complete"]

_FEW = 8  # calibration samples that the result keeps
_SEEN = 256  # calibration samples whose moments are noted in the graph


def complete(planned: Planned, exact: ir.Graph, progress: Progress | None = None) -> QuantizedModel:
    """Lower `exact`, the planned graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    prepared, plan, row = planned.prepared, planned.plan, planned.prepared.row
    made = lower(planned.parts.on(exact), plan, row)
    lowered = made.graph
    notes = [*prepared.notes, *planned.notes]
    formed = chip_form(lowered, row)
    lowered, tiled = row_tiles(lowered, row)
    if not prepared.synthetic:
        note_inputs(lowered, next(iter(prepared.data.peek(_SEEN)))[0])
    fitted = [*prepared.fitted, *_composed(planned.graph, made), *formed, *tiled]
    report = describe(planned.parts, lowered, plan, row, fitted, notes, prepared.stem)
    if prepared.conf.require_chip and not report.chip_ready:
        raise _not_ready(report, row)
    few = next(iter(prepared.data.peek(_FEW)))[0]
    result = QuantizedModel(lowered, plan, report, planned.graph, row, planned.ranges, planned.basis, prepared.reasons,
                            few)  # fmt: skip
    seen = fidelity(prepared, lowered, planned.graph, result.session(), progress)
    return replace(result, report=replace(report, outputs=seen.outputs, measured_on=seen.on, warnings=seen.warnings))


def _composed(graph: ir.Graph, made: Lowered) -> list[Fitted]:
    """Return how the nodes of the float `graph` are written that no single integer operator serves.

    An operator that only moves or bounds integers, of ONNX itself, is exact; another rounds what it gives once.
    """
    kinds = {str(node.name): ir.kind(node) for node in graph.graph}
    found = []
    for name, forms in made.forms.items():
        if len(forms) > 1:
            counts = Counter(form.name for form in forms)
            words = [operator if count == 1 else f"{count} {operator}" for operator, count in counts.items()]
            rounding = sum(bool(form.domain) for form in forms)
            cost = "exact" if rounding < 2 else f"{rounding} operators, one rounding each at most"
            found.append(Fitted(name, f"{kinds[name]} written as {', '.join(words)}", cost))
    return found


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
