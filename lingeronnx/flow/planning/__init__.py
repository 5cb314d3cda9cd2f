"""The stages between the prepared model and the integer graph: calibration, a scale for every tensor, refined weights.

    observe_model -> Observed        equalized, and what calibration saw of every tensor
    assign_scales -> Planned         a scale for every tensor, ranges moved into the weights
    take_over     -> Planned         the same from a plan made elsewhere
    refined       -> ir.Graph        weights and biases refined under the plan

Owns: in which order the accuracy methods are applied. Must not know: reports, trials.
"""

from .calibration import Observed, observe_model
from .imported_plan import take_over
from .plan_record import Basis, Planned
from .refinement import refined
from .scale_assignment import assign_scales
from .scale_sources import plain_scales, plan_for

__all__ = [
    "Basis",
    "Observed",
    "Planned",
    "assign_scales",
    "observe_model",
    "plain_scales",
    "plan_for",
    "refined",
    "take_over",
]
