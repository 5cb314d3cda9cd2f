"""The quantization flow: stages that each return a frozen value, which carries notes for the user.

- `prepare/`: the model loaded with its data, normalized, fitted to the chip and partitioned.
- `calibration/`: statistics of tensors on calibration data.
- `scales/`: from statistics to scales.
- `methods/`: accuracy methods: equalized channels, fitted ranges, refined weights.
- `steps/`: the stages that apply these: calibration, scales, refinement.
- `report/`: the integer graph compared with the float model, reported, written.
- `trials/`: other placements, widths, scales and methods, kept if the evidence supports them.

Between the plan and the end the weights may change: `refine_weights` does that for `quantize`,
training for `api.finetuning`. No stage modifies its arguments. Each folder imports from those above
it. `partition` (which nodes become integer) and `lower` (the integer graph of a plan) serve all of
them. Must not know: commands, torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader

if TYPE_CHECKING:
    from .methods import RefinementOptions as RefinementOptions
    from .pipeline import find_best_candidate as find_best_candidate
    from .prepare import PreparedModel as PreparedModel
    from .prepare import generate_synthetic_inputs as generate_synthetic_inputs
    from .prepare import normalize_model as normalize_model
    from .prepare import prepare_model as prepare_model
    from .prepare import require_calibrated_scales as require_calibrated_scales
    from .prepare import require_data as require_data
    from .report import Candidate as Candidate
    from .report import QuantizedModel as QuantizedModel
    from .report import WrittenFiles as WrittenFiles
    from .report import build_candidate as build_candidate
    from .report import build_quantized_model as build_quantized_model
    from .report import build_refined_candidate as build_refined_candidate
    from .report.evaluation import measure_accuracy as measure_accuracy
    from .run_log import RunLog as RunLog
    from .run_log import StepRecord as StepRecord
    from .run_log import format_steps as format_steps
    from .steps import CalibrationResult as CalibrationResult
    from .steps import PlannedModel as PlannedModel
    from .steps import assign_scales as assign_scales
    from .steps import calibrate_model as calibrate_model
    from .steps import plan_model as plan_model
    from .steps import refine_weights as refine_weights
    from .steps.external_plan import apply_external_plan as apply_external_plan
    from .trials import BestEffortMethods as BestEffortMethods
    from .trials import RequantizedWeights as RequantizedWeights
    from .trials import measure_on_held_out as measure_on_held_out
    from .trials import place_required_host_nodes as place_required_host_nodes
    from .trials import run_trial as run_trial

#: Home of each name; they are loaded on first use, because the command line reads `settings` alone.
_HOME = {
    "BestEffortMethods": ".trials",
    "CalibrationResult": ".steps",
    "Candidate": ".report",
    "PlannedModel": ".steps",
    "PreparedModel": ".prepare",
    "QuantizedModel": ".report",
    "RefinementOptions": ".methods",
    "RequantizedWeights": ".trials",
    "RunLog": ".run_log",
    "StepRecord": ".run_log",
    "WrittenFiles": ".report",
    "apply_external_plan": ".steps.external_plan",
    "assign_scales": ".steps",
    "build_candidate": ".report",
    "build_quantized_model": ".report",
    "build_refined_candidate": ".report",
    "calibrate_model": ".steps",
    "find_best_candidate": ".pipeline",
    "format_steps": ".run_log",
    "generate_synthetic_inputs": ".prepare",
    "measure_accuracy": ".report.evaluation",
    "measure_on_held_out": ".trials",
    "normalize_model": ".prepare",
    "place_required_host_nodes": ".trials",
    "plan_model": ".steps",
    "prepare_model": ".prepare",
    "refine_weights": ".steps",
    "require_calibrated_scales": ".prepare",
    "require_data": ".prepare",
    "run_trial": ".trials",
}

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
    "build_refined_candidate",
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


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, _HOME)
