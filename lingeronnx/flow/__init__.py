"""The quantizing flow: stages that each return a frozen value, which carries what the user should know of it.

    prepare       -> Prepared        loaded, data at hand, normalised, fitted to the chip, partitioned
    observe_model -> Observed        equalized, and what calibration saw of every tensor
    assign_scales -> Planned         a scale for every tensor, ranges moved into the weights
    take_over     -> Planned         the same from a plan made elsewhere
    refined       -> ir.Graph        weights and biases refined under the plan
    compared      -> Compared        lowered, and compared with the float model
    with_best_ends -> Compared       its ends left to the host, where that is measured to be better
    with_best_effort -> Compared     other widths of outputs, scales and weights, likewise
    with_finer_scales -> Compared    scales by channel, of any number, where the usual are far off
    without_losing_stages -> Compared  without moved ranges or refinement, likewise
    complete      -> QuantizedModel  lowered, compared, reported
    measured      -> QuantizedModel  with its accuracy on data of the user's

`QuantizedModel.write` is the one place where the result becomes files. Between the plan and the end the weights may be
changed: `refined` does for `quantize`, training does for `tuning`. No stage changes what it is given. Must not know:
commands, torch.
"""

from .complete import Compared, compared, complete
from .effort import with_best_effort
from .ends import with_best_ends
from .finer import with_finer_scales
from .improve.refine import Methods
from .measured import measured
from .model import QuantizedModel, Written
from .need import need_data, need_scales
from .planned import Observed, Planned, assign_scales, observe_model, plan_for, take_over
from .prepared import Prepared, normalised, prepare, synthetic
from .refined import refined
from .stages import without_losing_stages

__all__ = [
    "Compared",
    "Methods",
    "Observed",
    "Planned",
    "Prepared",
    "QuantizedModel",
    "Written",
    "assign_scales",
    "compared",
    "complete",
    "measured",
    "need_data",
    "need_scales",
    "normalised",
    "observe_model",
    "plan_for",
    "prepare",
    "refined",
    "synthetic",
    "take_over",
    "with_best_effort",
    "with_best_ends",
    "with_finer_scales",
    "without_losing_stages",
]
