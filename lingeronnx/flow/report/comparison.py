"""Last stage: the integer graph, a report on it, and how far it is from the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ...emit import Lowered
from ...errors import ConstraintError
from ...fit import Fitted
from ...graph import ir
from ...graph.tail import with_tail
from ...ops import Op
from ...plan.synthetic import SYNTHETIC
from ...run.data import Progress
from ...run.memory import piece, release
from ...run.moments import note_inputs
from ...run.origin import note_made
from ...run.session import lowered_session
from ...targets import DEFAULT, Target
from ..lower import lower
from ..planning.scale_assignment import Planned
from .advice import next_options
from .fidelity import Fidelity, fidelity
from .quantized_model import QuantizedModel
from .report import FloatNode, Report, describe

__all__ = ["Compared", "compared", "complete"]

_FEW = 8  # calibration samples that the result keeps
_SEEN = 256  # calibration samples whose moments are noted in the graph


@dataclass(frozen=True)
class Compared:
    """A plan whose integer graph has been compared with the float model.

    exact : the planned float graph with its weights as they shall be. made : the integer graph, not yet in the chip's
    form. seen : how far it is from the float model.
    """

    planned: Planned
    exact: ir.Graph
    made: Lowered
    seen: Fidelity

    @cached_property
    def result(self) -> QuantizedModel:
        """The graph in the form that the chip's packer wants, with its report: the same integers."""
        planned, prepared = self.planned, self.planned.prepared
        plan, target = planned.plan, prepared.target
        notes = [*prepared.notes, *planned.notes]
        lowered, formed = target.finish(self.made.graph)
        if not prepared.synthetic:
            few = piece(4 * prepared.input_bytes, _SEEN, prepared.conf.budget)
            note_inputs(lowered, prepared.data.first(few))
        note_made(lowered, prepared.digest)
        fitted = [*prepared.fitted, *_composed(planned.graph, planned.parts.ops, self.made), *formed]
        tail = prepared.tail
        rest = {} if tail is None else {str(n.name): n.op_type for n in tail.model.graph}
        behind = [FloatNode(name, kind, tail.why[name]) for name, kind in rest.items()] if tail is not None else []
        report = describe(planned.parts, lowered, plan, target, fitted, notes, prepared.stem, behind)
        if tail is not None:
            lowered = with_tail(lowered, tail)
        seen = self.seen
        report = replace(
            report,
            outputs=seen.outputs,
            measured_on=seen.on,
            warnings=[*([SYNTHETIC] if plan.synthetic else []), *seen.warnings],
            doubts=seen.doubts,
            parts=seen.parts,
            next=next_options(planned, report.float_nodes, seen.lossy),
            full=prepared.conf.notes == "full",
            taken=planned.taken,
            refused=planned.refused,
        )
        return QuantizedModel(
            lowered,
            plan,
            report,
            planned.graph,
            target,
            planned.ranges,
            planned.basis,
            prepared.reasons,
            {} if prepared.synthetic else prepared.data.first(_FEW),
        )

    @property
    def checked(self) -> QuantizedModel:
        """The result; ConstraintError with require_chip where it is not chip-ready."""
        report = self.result.report
        if self.planned.prepared.conf.require_chip and not report.chip_ready:
            raise _not_ready(report, self.planned.prepared.target)
        return self.result


def compared(planned: Planned, exact: ir.Graph, progress: Progress | None = None, explain: bool = True) -> Compared:
    """Lower `exact`, the planned graph with its weights as they shall be, and compare it with the float model.

    explain : whether a warning says where an output breaks; not for a trial.
    """
    target = planned.prepared.target
    if planned.prepared.synthetic and exact is not planned.graph:  # weights were refined on random inputs
        planned = replace(planned, plan=replace(planned.plan, synthetic=True))
    made = lower(planned.parts.on(exact), planned.plan, target)
    session = lowered_session(made.graph, target, planned.prepared.opened)
    seen = fidelity(planned.prepared, made.graph, planned.graph, session, progress, explain)
    release()
    return Compared(planned, exact, made, seen)


def complete(planned: Planned, exact: ir.Graph, progress: Progress | None = None) -> QuantizedModel:
    """Lower `exact`, the planned graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    return compared(planned, exact, progress).checked


def _composed(graph: ir.Graph, rules: Mapping[str, Op], made: Lowered) -> list[Fitted]:
    """Return how the nodes of the float `graph` are written that no single integer operator serves.

    An operator that only moves or bounds integers, of ONNX itself, is exact; another rounds what it gives once. What
    moves data is exact altogether: its parts are joined at the scale they have.
    """
    kinds = {str(node.name): ir.kind(node) for node in graph.graph}
    found = []
    for name, forms in made.forms.items():
        if len(forms) > 1:
            counts = Counter(form.name for form in forms)
            words = [operator if count == 1 else f"{count} {operator}" for operator, count in counts.items()]
            rounding = 0 if rules[name].moves else sum(bool(form.domain) for form in forms)
            cost = "exact" if rounding < 2 else f"{rounding} operators, one rounding each at most"
            found.append(Fitted(name, f"{kinds[name]} written as {', '.join(words)}", cost))
    return found


def _not_ready(report: Report, target: Target) -> ConstraintError:
    if not target.packs:
        return ConstraintError(f"--require-chip: platform {target.name} is no chip; choose --platform {DEFAULT}")
    against = [f for f in report.findings if f.level != "plan"]
    if against:
        return ConstraintError(f"not chip-ready: {against[0]}")
    if not report.float_nodes:
        return ConstraintError("--require-chip: no operator of the model can be quantized")
    node = report.float_nodes[0]
    more = len(report.float_nodes) - 1
    rest = f" (and {more} more)" if more else ""
    cut = f"; try {' '.join(report.next[0].options)}: {report.next[0].gives}" if report.next else ""
    return ConstraintError(f"not chip-ready: {node.op_type} {node.node} stays in float: {node.why}{rest}{cut}")
