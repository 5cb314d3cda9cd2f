"""From statistics to scales: which tensors share one, how it is chosen, how the target limits it.

Owns: calibrators, the user's overrides for single tensors, scales imported with a model or from
another tool's plan, the constraints of the target (`legalize`). Which power of two a scale becomes
is decided in `ir.plan.power_of_two`. Changes no graph. Must not know: stages, reports.
"""

from .feasible import UnsupportedScaleError, legalize
from .output_bits import apply_output_bits
from .scale_policy import ScalePolicy, describe_ineffective_overrides
from .scales import assign_qparams, calibrate_activations
from .shared_scales import SharedScaleGroup, find_softmax_inputs, group_shared_scales

__all__ = [
    "ScalePolicy",
    "SharedScaleGroup",
    "UnsupportedScaleError",
    "assign_qparams",
    "describe_ineffective_overrides",
    "legalize",
    "find_softmax_inputs",
    "group_shared_scales",
    "apply_output_bits",
    "calibrate_activations",
]
