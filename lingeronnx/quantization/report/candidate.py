"""Build candidates: integer graphs that have been compared with the float model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...common.errors import ConfigError, ConstraintError, DataError, ModelError
from ...ir import ir
from ...ir.dynamic_tail import append_tail
from ...operators.lowering_context import LoweringResult
from ...operators.lowerings import Op
from ...runtime.data import Progress
from ...runtime.input_moments import store_input_moments
from ...runtime.memory import choose_batch_size, trim_memory
from ...runtime.provenance import store_provenance
from ...runtime.session import LoweredSession
from ...runtime.streaming import make_zero_states
from ...runtime.version_compatibility import compare_versions
from ...targets import DEFAULT, Target
from ...targets.objective import ACCURACY, OBJECTIVE_KEY
from ..legalize import AppliedRewrite
from ..lower import lower
from ..methods.refine import RefinementOptions
from ..prepare.preparation import PreparedModel
from ..steps.planned_model import PlannedModel
from ..steps.refinement import refine_weights
from .fidelity import Fidelity, describe_break, measure_fidelity
from .quantized_model import DeferredReport, QuantizedModel

if TYPE_CHECKING:
    from .report import Report

__all__ = [
    "BackendPasses",
    "Candidate",
    "ChipGraph",
    "build_candidate",
    "build_refined_candidate",
    "build_quantized_model",
    "is_chip_ready_without_refinement",
]

_MAX_STORED_SAMPLES = 8  # calibration samples stored in the result
_MAX_MOMENT_SAMPLES = 256  # calibration samples whose moments are stored in the graph


class ChipGraph(NamedTuple):
    """An integer graph after backend passes, and their rewrites."""

    graph: ir.Model
    rewrites: Sequence[AppliedRewrite]


@dataclass(frozen=True)
class BackendPasses:
    """The backend passes of a target on an integer graph, whose integers they keep.

    They run at the first access. A model of several parts has none here: they run on each part
    separately.

    Attributes
    ----------
    lowered
        The integer graph before the passes; it is not modified.
    planned
        The model that it was lowered from.
    """

    lowered: ir.Model
    planned: PlannedModel

    @cached_property
    def result(self) -> ChipGraph:
        """The graph after the passes; a copy without rewrites if there are several parts."""
        prepared = self.planned.prepared
        runs_in_parts = prepared.conf.in_parts and prepared.target.has_packer
        if runs_in_parts and self.planned.partition.has_inner_floats:
            return ChipGraph(self.lowered.clone(), ())
        return ChipGraph(*prepared.target.run_backend_passes(self.lowered))

    def check_integers(self) -> IntegerCheck:
        """Compare the integers before and after the passes on the first calibration sample.

        States are zero. Nothing is compared without rewrites, or if a graph cannot be run on the
        sample.
        """
        if not self.result.rewrites:
            return IntegerCheck()
        try:
            before, after = self._run_sample(self.lowered), self._run_sample(self.result.graph)
        except (ModelError, DataError, ConfigError):
            return IntegerCheck()
        names = ir.get_output_names(self.lowered)
        changed = []
        for name, expected, actual in zip(names, before, after, strict=True):
            equal_nan = expected.dtype.kind == "f"
            if not np.array_equal(expected, actual, equal_nan=equal_nan):
                changed.append(name)
        return IntegerCheck(samples=0 if changed else 1, changed_outputs=changed)

    def _run_sample(self, graph: ir.Model) -> Sequence[np.ndarray]:
        """Return the outputs of `graph` for the first calibration sample and zero states."""
        prepared = self.planned.prepared
        session = LoweredSession(graph, self.planned.prepared.target, prepared.opened)
        feed = dict(prepared.data.first())
        missing = [spec for spec in session.inputs if spec.name not in feed]
        names = {spec.name for spec in session.inputs}
        feeds = {**feed, **make_zero_states(missing, 1)}
        return session.run(None, {name: feeds[name] for name in feeds if name in names})


class IntegerCheck(NamedTuple):
    """Comparison of an integer graph before and after backend passes.

    samples : number of samples on which all outputs are equal; 0 if they were not compared, or
    differ. changed_outputs : names of the outputs that differ.
    """

    samples: int = 0
    changed_outputs: Sequence[str] = ()

    def format_warning(self) -> str:
        """Return the warning about outputs that differ."""
        names = ", ".join(f"'{name}'" for name in self.changed_outputs)
        return (
            f"rewrites for the chip changed the values of output {names} on a calibration sample, "
            "which is a bug of lingeronnx; quantize with --objective plain, compare, and report it"
        )


@dataclass(frozen=True)
class Candidate:
    """A planned and refined model whose integer graph has been compared with the float model.

    Attributes
    ----------
    planned
        The model and its plan.
    float_graph
        The planned float graph with refined weights.
    lowered
        The integer graph before backend passes.
    backend
        The backend passes on it.
    fidelity
        Distance of its outputs from the float model.
    refinement
        Options that the weights were refined with; None if they were not.
    has_judged_stages
        Whether the trial `stages` has judged it, which is then not repeated.
    """

    planned: PlannedModel
    float_graph: ir.Model
    lowered: LoweringResult
    backend: BackendPasses
    fidelity: Fidelity
    refinement: RefinementOptions | None = None
    has_judged_stages: bool = False

    @property
    def prepared(self) -> PreparedModel:
        """The prepared model that was planned."""
        return self.planned.prepared

    @cached_property
    def unrefined(self) -> Candidate:
        """The same plan with the weights of the float model; itself if none was refined."""
        if self.float_graph is self.planned.graph:
            return self
        return build_candidate(self.planned, self.planned.graph)

    @cached_property
    def report(self) -> Report:
        """The report, before the checks of `result`."""
        from .describe import build_report  # many modules, which only a report needs

        planned = self.planned
        rewrites = [
            *self.prepared.fitted,
            *_describe_compositions(planned.graph, planned.partition.ops, self.lowered),
            *self.backend.result.rewrites,
        ]
        return build_report(planned, self.backend.result.graph, rewrites, self.fidelity)

    @cached_property
    def result(self) -> QuantizedModel:
        """The graph after backend passes, with its report, which is built when it is read.

        What needs data is done here: the integers are compared before and after the passes on a
        sample; the node is located where an output breaks. Moments of the inputs (except for
        synthetic data) and the provenance are stored in the graph.
        """
        prepared, planned = self.prepared, self.planned
        graph = self.backend.result.graph
        check = self.backend.check_integers()
        break_description = self._describe_break() if self.fidelity.is_lossy else ""
        if not prepared.synthetic:
            moment_samples = choose_batch_size(
                4 * prepared.input_bytes, _MAX_MOMENT_SAMPLES, prepared.conf.budget
            )
            store_input_moments(graph, prepared.data.first(moment_samples))
        store_provenance(
            graph,
            prepared.digest,
            planned.plan.settings,
            prepared.fixed,
            prepared.has_fixed_batch,
        )
        return QuantizedModel(
            graph=graph if prepared.tail is None else append_tail(graph, prepared.tail),
            plan=planned.plan,
            deferred_report=DeferredReport(
                partial(self._build_checked_report, check, break_description)
            ),
            float_graph=planned.graph,
            platform=planned.prepared.target,
            ranges=planned.ranges,
            basis=planned.basis,
            reasons=prepared.reasons,
            samples={} if prepared.synthetic else prepared.data.first(_MAX_STORED_SAMPLES),
        )

    def _build_checked_report(self, check: IntegerCheck, break_description: str) -> Report:
        """Return the report with the results of the checks on the integer graph.

        Parameters
        ----------
        check
            Comparison of the integers before and after the backend passes.
        break_description
            The node where an output breaks; "" if none does.
        """
        report = self.report
        checked = {id(rewrite) for rewrite in self.backend.result.rewrites}
        fitted = [
            replace(rewrite, checked_samples=check.samples) if id(rewrite) in checked else rewrite
            for rewrite in report.fitted
        ]
        saved = report.saved
        if saved is not None:
            saved = replace(saved, checked_samples=check.samples)
        warnings = list(report.warnings)
        if break_description:
            warnings[warnings.index(self.fidelity.low_sqnr_warning)] += break_description
        if check.changed_outputs:
            warnings.insert(0, check.format_warning())
        versions = compare_versions(report.packed_parts, self.planned.prepared.target)
        return replace(
            report,
            fitted=fitted,
            saved=saved,
            warnings=warnings,
            versions=versions,
            packed_parts=(),
        )

    def _describe_break(self) -> str:
        """Describe the node where an output breaks; see `describe_break`."""
        lowered, prepared = self.lowered.graph, self.prepared
        session = LoweredSession(lowered, self.planned.prepared.target, prepared.opened)
        output = self.fidelity.worst_output
        return describe_break(prepared, lowered, self.planned.graph, session, output)

    @property
    def checked_model(self) -> QuantizedModel:
        """The result, if `require_chip` is not set or the chip can run it in time.

        Raises
        ------
        ConstraintError
            If `require_chip` is set and the result is not chip-ready, or slower than the latency
            budget.
        """
        if not self.prepared.conf.require_chip:
            return self.result
        report = self.report
        if not report.chip_ready:
            raise _not_chip_ready_error(report, self.planned.prepared.target)
        if report.time.budget_finding is not None:
            raise ConstraintError(f"too slow: {report.time.budget_finding}")
        return self.result

    def with_notes(self, notes: Iterable[str], lasting: Iterable[str] = ()) -> Candidate:
        """Return a copy with more notes; those of `lasting` hold under other scales, too."""
        return replace(self, planned=self.planned.with_notes(notes, lasting))


def build_candidate(
    planned: PlannedModel,
    float_graph: ir.Model,
    progress: Progress | None = None,
    refinement: RefinementOptions | None = None,
) -> Candidate:
    """Lower a planned model with refined weights, and compare it with the float model.

    If the data are synthetic and the weights were refined with them, the plan is marked as
    synthetic.

    Parameters
    ----------
    planned
        The model and its plan.
    float_graph
        The planned float graph with refined weights.
    progress
        Callback for progress messages.
    refinement
        Options that the weights were refined with; None for the default ones.
    """
    prepared, target = planned.prepared, planned.prepared.target
    if float_graph is planned.graph:
        refinement = None
    elif refinement is None:
        refinement = RefinementOptions()
    if prepared.synthetic and float_graph is not planned.graph:
        # The weights were refined on random inputs.
        planned = replace(planned, plan=replace(planned.plan, synthetic=True))
    lowered = lower_planned_model(planned, float_graph)
    session = LoweredSession(lowered.graph, target, prepared.opened)
    fidelity = measure_fidelity(planned, session, progress)
    trim_memory()
    return Candidate(
        planned=planned,
        float_graph=float_graph,
        lowered=lowered,
        backend=BackendPasses(lowered.graph, planned),
        fidelity=fidelity,
        refinement=refinement,
    )


def build_refined_candidate(
    planned: PlannedModel,
    progress: Progress | None = None,
    options: RefinementOptions | None = None,
    previous: tuple[PlannedModel, ir.Model] | None = None,
) -> Candidate:
    """Refine the weights of a planned model, lower it, and compare it with the float model.

    `options` and `previous` are those of `refine_weights`.
    """
    refined_graph = refine_weights(planned, options, progress=progress, previous=previous)
    return build_candidate(planned, refined_graph, progress, options)


def lower_planned_model(planned: PlannedModel, float_graph: ir.Model) -> LoweringResult:
    """Lower a planned model with the weights of `float_graph`; the graph records the objective."""
    lowered = lower(
        planned.partition.with_graph(float_graph), planned.plan, planned.prepared.target
    )
    if planned.prepared.conf.objective != ACCURACY:
        lowered.graph.metadata_props[OBJECTIVE_KEY] = planned.prepared.conf.objective
    return lowered


def is_chip_ready_without_refinement(planned: PlannedModel) -> bool:
    """Whether the planned model with unrefined weights lowers to a chip-ready graph."""
    lowered = lower_planned_model(planned, planned.graph)
    backend = BackendPasses(lowered.graph, planned)
    unmeasured = Fidelity({}, "", ())
    return Candidate(planned, planned.graph, lowered, backend, unmeasured).report.chip_ready


def build_quantized_model(
    planned: PlannedModel, float_graph: ir.Model, progress: Progress | None = None
) -> QuantizedModel:
    """Lower a planned model with refined weights, and build the result with its report.

    Raises
    ------
    ConstraintError
        If `require_chip` is set and the result is not chip-ready, or too slow.
    """
    return build_candidate(planned, float_graph, progress).checked_model


def _describe_compositions(
    graph: ir.Model, ops: Mapping[str, Op], lowered: LoweringResult
) -> list[AppliedRewrite]:
    """Describe the nodes of the float `graph` that are lowered to several integer operators.

    Operators of ONNX itself, which only move or clip integers, do not round; each other operator
    rounds its result at most once. Data movement does not round: its parts share one scale.
    """
    op_types = {str(node.name): ir.base_op_type(node) for node in graph.graph}
    compositions = []
    for name, integer_ops in lowered.integer_ops.items():
        if len(integer_ops) < 2:
            continue
        counts = Counter(integer_op.name for integer_op in integer_ops)
        operators = [
            operator if count == 1 else f"{count} {operator}" for operator, count in counts.items()
        ]
        roundings = 0
        if not ops[name].is_data_movement:
            roundings = sum(bool(integer_op.domain) for integer_op in integer_ops)
        cost = "rounds at most once" if roundings else "exact"
        if roundings > 1:
            cost = f"{roundings} operators, each rounds at most once"
        description = f"{op_types[name]} written as {', '.join(operators)}"
        compositions.append(AppliedRewrite(name, description, cost))
    return compositions


def _not_chip_ready_error(report: Report, target: Target) -> ConstraintError:
    """Create the error for a result that is not chip-ready, with the first reason.

    The reasons in order: a platform without packer, a finding (other than of the plan or time), no
    quantized operator, and the first node kept in float with a suggestion.
    """
    if not target.has_packer:
        return ConstraintError(
            f"--require-chip: platform {target.name} is not a chip; choose --platform {DEFAULT}"
        )
    findings = [finding for finding in report.findings if finding.level not in ("plan", "time")]
    if findings:
        return ConstraintError(f"not chip-ready: {findings[0]}")
    if not report.float_nodes:
        return ConstraintError(
            "--require-chip: no operator of the model can be quantized; run lingeronnx check for "
            "the reasons"
        )
    node = report.float_nodes[0]
    others = len(report.float_nodes) - 1
    others_text = f" (and {others} more)" if others else ""
    suggestion = ""
    if report.next:
        suggestion = f"; try {' '.join(report.next[0].options)}: {report.next[0].effect}"
    return ConstraintError(
        f"not chip-ready: {node.op_type} {node.node} is kept in float: "
        f"{node.why}{others_text}{suggestion}"
    )
