"""The stages between the prepared model and the integer graph: calibration, scales, refinement.

- `calibrate_model`: equalize channels and collect statistics of every integer tensor.
- `assign_scales`: choose a scale for every tensor, after range transforms.
- `external_plan.apply_external_plan`: use a plan that was made elsewhere.
- `plan_model`: choose between these, and scales of an imported model.
- `refine_weights`: refine weights and biases under the plan.

Owns: the order in which the accuracy methods are applied. Must not know: reports, trials.
"""

from .calibration import CalibrationResult, calibrate_model
from .planned_model import PlanBasis, PlannedModel
from .refinement import refine_weights
from .scale_assignment import assign_scales
from .scale_sources import plan_model, plan_without_range_transforms

__all__ = [
    "CalibrationResult",
    "PlanBasis",
    "PlannedModel",
    "assign_scales",
    "calibrate_model",
    "plan_model",
    "plan_without_range_transforms",
    "refine_weights",
]
