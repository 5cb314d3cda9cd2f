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
from .trials import (
    choose_import_or_requantize,
    drop_harmful_stages,
    measure_on_held_out,
    offload_rejected_layers,
    place_required_host_nodes,
    try_best_effort,
    try_finer_granularity,
    try_finer_noisy_scales,
    try_host_offload,
)

__all__ = [
    "Candidate",
    "RefinementOptions",
    "CalibrationResult",
    "PlannedModel",
    "PreparedModel",
    "choose_import_or_requantize",
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
    "try_best_effort",
    "try_host_offload",
    "place_required_host_nodes",
    "offload_rejected_layers",
    "try_finer_noisy_scales",
    "try_finer_granularity",
    "drop_harmful_stages",
    "measure_on_held_out",
]
