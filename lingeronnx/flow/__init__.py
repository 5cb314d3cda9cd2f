"""The quantization flow: stages that each return a frozen value, which carries notes for the user.

- `prepare/`: the model loaded with its data, normalized, fitted to the chip and partitioned.
- `observe/`: statistics of tensors on calibration data.
- `assign/`: from statistics to scales.
- `methods/`: accuracy methods: equalized channels, fitted ranges, refined weights.
- `planning/`: the stages that apply these: calibration, scales, refinement.
- `report/`: the integer graph compared with the float model, reported, written.
- `trials/`: other placements, widths, scales and methods, kept if the evidence supports them.

Between the plan and the end the weights may change: `refine_weights` does that for `quantize`,
training for `tuning`. No stage modifies its arguments. Each folder imports from those above it.
`partition` (which nodes become integer) and `lower` (the integer graph of a plan) serve all of
them. Must not know: commands, torch.
"""

from .methods import RefinementOptions
from .pipeline import find_best_candidate
from .planning import (
    CalibrationResult,
    PlannedModel,
    apply_external_plan,
    assign_scales,
    calibrate_model,
    plan_model,
    refine_weights,
)
from .prepare import (
    PreparedModel,
    generate_synthetic_inputs,
    normalize_model,
    prepare_model,
    require_calibrated_scales,
    require_data,
)
from .report import (
    Candidate,
    QuantizedModel,
    WrittenFiles,
    build_candidate,
    build_quantized_model,
    measure_accuracy,
)
from .run_log import RunLog, StepRecord, format_steps
from .trials import (
    BestEffortMethods,
    RequantizedWeights,
    measure_on_held_out,
    place_required_host_nodes,
    run_trial,
)

__all__ = [
    "Candidate",
    "RefinementOptions",
    "CalibrationResult",
    "PlannedModel",
    "PreparedModel",
    "BestEffortMethods",
    "RequantizedWeights",
    "RunLog",
    "StepRecord",
    "QuantizedModel",
    "WrittenFiles",
    "assign_scales",
    "build_candidate",
    "build_quantized_model",
    "measure_accuracy",
    "require_data",
    "require_calibrated_scales",
    "normalize_model",
    "calibrate_model",
    "plan_model",
    "prepare_model",
    "refine_weights",
    "generate_synthetic_inputs",
    "apply_external_plan",
    "place_required_host_nodes",
    "measure_on_held_out",
    "find_best_candidate",
    "format_steps",
    "run_trial",
]
