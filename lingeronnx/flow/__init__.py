"""The quantizing flow: stages that each return a frozen value, which carries what the user should know of it.

    prepare       -> Prepared        loaded, data at hand, normalised, fitted to the chip, partitioned
    observe_model -> Observed        equalized, and what calibration saw of every tensor
    assign_scales -> Planned         a scale for every tensor, ranges moved into the weights
    take_over     -> Planned         the same from a plan made elsewhere
    refined       -> ir.Graph        weights and biases refined under the plan
    complete      -> QuantizedModel  lowered, reported, compared with the float model

Between the plan and the end the weights may be changed: `refined` does for `quantize`, training does for `tuning`. No
stage changes what it is given. Must not know: commands, torch.
"""

from .beyond import beyond
from .complete import QuantizedModel, complete
from .ends import ends, wins
from .planned import Observed, Planned, assign_scales, observe_model, plan_for, take_over
from .prepared import Prepared, normalised, prepare, synthetic
from .refined import refined

__all__ = [
    "Observed",
    "Planned",
    "Prepared",
    "QuantizedModel",
    "assign_scales",
    "beyond",
    "complete",
    "ends",
    "normalised",
    "observe_model",
    "plan_for",
    "prepare",
    "refined",
    "synthetic",
    "take_over",
    "wins",
]
