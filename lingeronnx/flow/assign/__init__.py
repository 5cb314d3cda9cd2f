"""From statistics to scales.

Which tensors share one, how it is chosen, what the target makes of it.
Owns: calibrators, the user's choice for single tensors, scales that came with a model or another
tool's plan, the inequalities of the target (`legalize`). Which power of two a scale becomes is
decided in `plan.power_of_two`. Changes no graph. Must not know: stages, reports.
"""

from .legalize import UnsupportedScaleError, legalize
from .output_bits import apply_output_bits
from .scale_policy import ScalePolicy, describe_ineffective_overrides
from .scales import assign_qparams, calibrate_activations
from .shared_scales import (
    SharedScaleGroup,
    find_saturated_clip_bounds,
    find_softmax_inputs,
    group_shared_scales,
)

__all__ = [
    "ScalePolicy",
    "SharedScaleGroup",
    "UnsupportedScaleError",
    "assign_qparams",
    "describe_ineffective_overrides",
    "legalize",
    "find_softmax_inputs",
    "group_shared_scales",
    "find_saturated_clip_bounds",
    "apply_output_bits",
    "calibrate_activations",
]
