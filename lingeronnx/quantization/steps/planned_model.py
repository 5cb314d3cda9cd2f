"""The result of planning: the nodes that become integer, and the plan for lowering them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ...ir import ir
from ...ir.plan import Plan
from ...runtime.runners import FloatRunner
from ..calibration.statistics import TensorStats
from ..methods.refine import find_refinable_layers, required_float_tensors
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.selectors import Selectors
from ..scales.scale_policy import ScalePolicy
from .calibration import CalibrationResult

if TYPE_CHECKING:
    from ..scales.imported_scales import ImportedQParams

__all__ = ["PlanBasis", "PlannedModel"]


@dataclass(frozen=True)
class PlanBasis:
    """Statistics and policy that a plan was made from.

    Attributes
    ----------
    stats
        Statistics of the activations on the calibration data; empty for a plan made elsewhere.
    policy
        Policy that the scales were chosen with; None for a plan made elsewhere.
    """

    stats: Mapping[str, TensorStats] = field(default_factory=dict)
    policy: ScalePolicy | None = None


@dataclass(frozen=True)
class PlannedModel:
    """A partitioned model after range transforms, and the plan for lowering it.

    Attributes
    ----------
    prepared
        The prepared model that was planned.
    partition
        Partition of the float graph.
    plan
        Its plan.
    notes
        Notes for the report.
    lasting_notes
        Those of `notes` that hold under other scales, too, such as on nodes on the host, settings
        that a trial changed, and methods of refinement.
    ranges
        {tensor: smallest and largest value on the calibration data}; empty for a plan made
        elsewhere.
    basis
        Statistics and policy of the plan.
    calibration
        Result of calibration; None for a plan made elsewhere.
    assigned
        The plan as its scales were assigned, before trials changed some; None for a plan made
        elsewhere.
    imported_qparams
        Conversions of imported scales.
    rejected_tensors
        {entry of another tool's plan: reason why it is not used}.
    """

    prepared: PreparedModel
    partition: Partition
    plan: Plan
    notes: Sequence[str] = ()
    lasting_notes: Sequence[str] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: PlanBasis = field(default_factory=PlanBasis)
    calibration: CalibrationResult | None = None
    assigned: Plan | None = None
    imported_qparams: Sequence[ImportedQParams] = ()
    rejected_tensors: Mapping[str, str] = field(default_factory=dict)

    def with_notes(self, notes: Iterable[str], lasting: Iterable[str] = ()) -> PlannedModel:
        """Return a copy with more notes; those of `lasting` hold under other scales, too."""
        lasting_notes = [*self.lasting_notes, *lasting]
        return replace(self, notes=[*self.notes, *notes], lasting_notes=lasting_notes)

    def with_lasting_notes_of(self, previous: PlannedModel) -> PlannedModel:
        """Return a copy with the lasting notes of a previous plan for the same model."""
        return self.with_notes(previous.lasting_notes, previous.lasting_notes)

    def selectors(self, graph: ir.Model) -> Selectors:
        """Return the resolver of selectors for `graph`, a version of the normalized graph."""
        return Selectors(self.prepared.original, graph)

    @property
    def graph(self) -> ir.Model:
        """The float graph that the plan refers to."""
        return self.partition.graph

    @cached_property
    def float_runner(self) -> FloatRunner:
        """Runner of the float graph for its outputs and the layers that are refined."""
        outputs = set(ir.get_output_names(self.graph))
        return FloatRunner(self.graph, outputs | find_refinable_layers(self.partition).keys())

    @cached_property
    def float_runner_with_sums(self) -> FloatRunner:
        """Runner like `float_runner` that also yields the summands of residual sums."""
        return FloatRunner(self.graph, required_float_tensors(self.partition))
