"""The quantizing flow: stages that each return a frozen value, which carries what the user should know of it.

    prepare/    loaded, data at hand, normalised, fitted to the chip, partitioned
    observe/    what calibration data say of tensors
    assign/     from statistics to scales
    methods/    accuracy methods: equalized channels, fitted ranges, refined weights
    planning/   the stages that apply these: calibration, scales, refinement
    report/     the integer graph compared with the float model, reported, written
    trials/     other ends, widths, scales and methods, kept where the evidence is for them

Between the plan and the end the weights may be changed: `refined` does for `quantize`, training does for `tuning`. No
stage changes what it is given. Each folder imports from those above it. `partition` (which nodes become integer) and
`lower` (the integer graph of a plan) serve all of them. Must not know: commands, torch.
"""

from .methods import Methods
from .planning import Observed, Planned, assign_scales, observe_model, plan_for, refined, take_over
from .prepare import Prepared, need_data, need_scales, normalised, prepare, synthetic
from .report import Compared, QuantizedModel, Written, compared, complete, measured
from .trials import (
    better_of,
    with_best_effort,
    with_best_ends,
    with_cells,
    with_chip_parts,
    with_finer_noisiest,
    with_finer_scales,
    without_losing_stages,
)

__all__ = [
    "Compared",
    "Methods",
    "Observed",
    "Planned",
    "Prepared",
    "better_of",
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
    "with_cells",
    "with_chip_parts",
    "with_finer_noisiest",
    "with_finer_scales",
    "without_losing_stages",
]
