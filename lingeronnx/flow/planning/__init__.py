"""The stages between the prepared model and the integer graph.

Calibration, a scale for every tensor, refined weights.
    observe_model -> Observed        equalized, and what calibration saw of every tensor
    assign_scales -> Planned         a scale for every tensor, ranges moved into the weights
    take_over     -> Planned         the same from a plan made elsewhere
    refined       -> ir.Graph        weights and biases refined under the plan

Owns: in which order the accuracy methods are applied. Must not know: reports, trials.
"""

from .calibration import CalibrationResult, calibrate_model
from .external_plan import apply_external_plan
from .planned_model import PlanBasis, PlannedModel
from .refinement import refine_weights
from .scale_assignment import assign_scales
from .scale_sources import plan_model, plan_without_range_transforms

__all__ = [
    "CalibrationResult",
    "PlanBasis",
    "PlannedModel",
    "apply_external_plan",
    "assign_scales",
    "calibrate_model",
    "plan_model",
    "plan_without_range_transforms",
    "refine_weights",
]
