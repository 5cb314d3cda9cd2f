"""Last stage: the integer graph, a report on it, and how far it is from the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...errors import ConstraintError
from ...graph import ir
from ...graph.dynamic_tail import append_tail
from ...legalization import AppliedRewrite
from ...lowering import LoweringResult
from ...ops import Op
from ...run.data import Progress
from ...run.input_moments import store_input_moments
from ...run.memory import choose_batch_size, trim_memory
from ...run.provenance import store_provenance
from ...run.session import open_lowered_session
from ...targets import DEFAULT, Target
from ...targets.objective import ACCURACY, OBJECTIVE_KEY
from ..lower import lower
from ..planning.planned_model import PlannedModel
from ..prepare.preparation import PreparedModel
from .describe import build_report, is_split_into_parts
from .fidelity import Fidelity, measure_fidelity
from .quantized_model import QuantizedModel
from .report import Report

__all__ = ["Candidate", "build_candidate", "build_quantized_model"]

_MAX_STORED_SAMPLES = 8  # calibration samples that the result keeps
_MAX_MOMENT_SAMPLES = 256  # calibration samples whose moments are noted in the graph


@dataclass(frozen=True)
class Candidate:
    """A plan whose integer graph has been compared with the float model.

    prepared, planned : the model and the plan. exact : the planned float graph with its weights as
    they shall be. lowered : the integer graph, not yet in the chip's form. fidelity : how far it is
    from the float model.
    """

    prepared: PreparedModel
    planned: PlannedModel
    float_graph: ir.Model
    lowered: LoweringResult
    fidelity: Fidelity

    @cached_property
    def result(self) -> QuantizedModel:
        """The graph in the form that the chip's packer wants, with its report.

        The same integers.
        """
        prepared, planned = self.prepared, self.planned
        graph: ir.Model = self.lowered.graph
        if planned.config.objective != ACCURACY:
            graph.metadata_props[OBJECTIVE_KEY] = planned.config.objective
        formed: Sequence[AppliedRewrite] = ()
        if not is_split_into_parts(planned):  # of parts each is finished for itself
            graph, formed = planned.target.run_backend_passes(graph)
        if not prepared.synthetic:
            few = choose_batch_size(
                4 * prepared.input_bytes, _MAX_MOMENT_SAMPLES, prepared.conf.budget
            )
            store_input_moments(graph, prepared.data.first(few))
        store_provenance(graph, prepared.digest, planned.plan.settings, prepared.fixed)
        fitted = [
            *prepared.fitted,
            *_describe_compositions(planned.graph, planned.partition.ops, self.lowered),
            *formed,
        ]
        report = build_report(prepared, planned, graph, fitted, self.fidelity)
        return QuantizedModel(
            graph=graph if prepared.tail is None else append_tail(graph, prepared.tail),
            plan=planned.plan,
            report=report,
            float_graph=planned.graph,
            platform=planned.target,
            ranges=planned.ranges,
            basis=planned.basis,
            reasons=prepared.reasons,
            samples={} if prepared.synthetic else prepared.data.first(_MAX_STORED_SAMPLES),
        )

    @property
    def checked_model(self) -> QuantizedModel:
        """The result; ConstraintError with require_chip where it is not chip-ready."""
        report = self.result.report
        if self.prepared.conf.require_chip and not report.chip_ready:
            raise _not_chip_ready_error(report, self.planned.target)
        if self.prepared.conf.require_chip and report.time.budget_finding is not None:
            raise ConstraintError(f"too slow: {report.time.budget_finding}")
        return self.result

    def with_notes(self, notes: Iterable[str]) -> Candidate:
        """Return the same with more lines in its report."""
        return replace(self, planned=self.planned.with_notes(notes))


def build_candidate(
    prepared: PreparedModel,
    planned: PlannedModel,
    float_graph: ir.Model,
    progress: Progress | None = None,
    locate_break: bool = True,
) -> Candidate:
    """Lower `float_graph`, the planned graph with its weights as they shall be, and compare it with the float model.

    locate_break : whether a warning says where an output breaks; not for a trial.
    """
    target = planned.target
    if (
        prepared.synthetic and float_graph is not planned.graph
    ):  # weights were refined on random inputs
        planned = replace(planned, plan=replace(planned.plan, synthetic=True))
    lowered = lower(planned.partition.with_graph(float_graph), planned.plan, target)
    session = open_lowered_session(lowered.graph, target, prepared.opened)
    distance = measure_fidelity(prepared, planned, lowered.graph, session, progress, locate_break)
    trim_memory()
    return Candidate(
        prepared=prepared,
        planned=planned,
        float_graph=float_graph,
        lowered=lowered,
        fidelity=distance,
    )


def build_quantized_model(
    prepared: PreparedModel,
    planned: PlannedModel,
    float_graph: ir.Model,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Lower `float_graph`, the planned graph with its weights as they shall be, and say what became of the model.

    Raises ConstraintError with require_chip where the result is not chip-ready.
    """
    return build_candidate(prepared, planned, float_graph, progress).checked_model


def _describe_compositions(
    graph: ir.Model, ops: Mapping[str, Op], lowered: LoweringResult
) -> list[AppliedRewrite]:
    """Return how the nodes of the float `graph` are written that no single integer operator serves.

    An operator that only moves or bounds integers, of ONNX itself, is exact; another rounds what it
    gives once. What moves data is exact altogether: its parts are joined at the scale they have.
    """
    kinds = {str(node.name): ir.base_op_type(node) for node in graph.graph}
    composed = []
    for name, forms in lowered.integer_ops.items():
        if len(forms) > 1:
            counts = Counter(form.name for form in forms)
            words = [
                operator if count == 1 else f"{count} {operator}"
                for operator, count in counts.items()
            ]
            rounding = 0 if ops[name].is_data_movement else sum(bool(form.domain) for form in forms)
            cost = "exact" if rounding < 2 else f"{rounding} operators, one rounding each at most"
            composed.append(
                AppliedRewrite(name, f"{kinds[name]} written as {', '.join(words)}", cost)
            )
    return composed


def _not_chip_ready_error(report: Report, target: Target) -> ConstraintError:
    if not target.has_packer:
        return ConstraintError(
            f"--require-chip: platform {target.name} is no chip; choose --platform {DEFAULT}"
        )
    against = [f for f in report.findings if f.level not in ("plan", "time")]
    if against:
        return ConstraintError(f"not chip-ready: {against[0]}")
    if not report.float_nodes:
        return ConstraintError(
            "--require-chip: no operator of the model can be quantized; lingeronnx check says why"
        )
    node = report.float_nodes[0]
    more = len(report.float_nodes) - 1
    rest = f" (and {more} more)" if more else ""
    cut = (
        f"; try {' '.join(report.next[0].options)}: {report.next[0].effect}" if report.next else ""
    )
    return ConstraintError(
        f"not chip-ready: {node.op_type} {node.node} stays in float: {node.why}{rest}{cut}"
    )
