"""What the stages of planning hand on.

What becomes integer, and the plan it will be lowered under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...graph import ir
from ...plan import Plan
from ...plan.config import QuantConfig
from ...run.data import Data
from ...run.runners import FloatRunner
from ...targets import Target
from ..assign.imported_scales import ImportedQParams
from ..assign.scale_policy import ScalePolicy
from ..methods.refine import find_refinable_layers, required_float_tensors
from ..observe.statistics import TensorStats
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.selectors import Selectors
from .calibration import CalibrationResult

__all__ = ["PlanBasis", "PlannedModel"]


@dataclass(frozen=True)
class PlanBasis:
    """What a plan was made from.

    stats : of the activations on the calibration data. choice : how scales were chosen from these;
    None, and no stats, where the plan was made elsewhere.
    """

    stats: Mapping[str, TensorStats] = field(default_factory=dict)
    policy: ScalePolicy | None = None


@dataclass(frozen=True)
class PlannedModel:
    """What becomes integer, ranges moved into the weights, and the plan it will be lowered under.

    original : the user's graph, with its `target`, settings and calibration data. weights_fixed :
    whether the weights stay as another tool has rounded them.
    ranges : {tensor: smallest and largest value on the calibration data}; empty where the plan was
    made elsewhere. calibration : what the scales were chosen from; None where the plan was made
    elsewhere. imported_qparams : the scales that came with the model, or with a plan of another
    tool. refused : {what such a plan speaks of: why its scale is not taken}.
    """

    original: ir.Model
    target: Target
    config: QuantConfig
    data: Data
    weights_fixed: bool
    partition: Partition
    plan: Plan
    notes: Sequence[str]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    basis: PlanBasis = field(default_factory=PlanBasis)
    calibration: CalibrationResult | None = None
    imported_qparams: Sequence[ImportedQParams] = ()
    rejected_tensors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def create(
        cls, prepared: PreparedModel, partition: Partition, plan: Plan, notes: Sequence[str]
    ) -> PlannedModel:
        """Return a plan for `prepared`, with nothing said yet of where its scales come from."""
        return cls(
            original=prepared.original,
            target=prepared.target,
            config=prepared.conf,
            data=prepared.data,
            weights_fixed=prepared.weights_fixed,
            partition=partition,
            plan=plan,
            notes=notes,
        )

    def with_notes(self, notes: Iterable[str]) -> PlannedModel:
        """Return the same with more lines for the report."""
        return replace(self, notes=[*self.notes, *notes])

    def selectors(self, graph: ir.Model) -> Selectors:
        """Return what finds the nodes and tensors that the user names in `graph`, made from the normalised one."""
        return Selectors(self.original, graph)

    @property
    def graph(self) -> ir.Model:
        """The float graph that the plan speaks of."""
        return self.partition.graph

    @cached_property
    def float_runner(self) -> FloatRunner:
        """What runs the float graph.

        Its outputs, and those of the layers that `refined` works on.
        """
        outputs = {str(v.name) for v in self.graph.graph.outputs}
        return FloatRunner(self.graph, outputs | find_refinable_layers(self.partition).keys())

    @cached_property
    def float_runner_with_sums(self) -> FloatRunner:
        """What runs the float graph for methods that look at sums as well.

        What `float_runner` has, and what is added.
        """
        return FloatRunner(self.graph, required_float_tensors(self.partition))
