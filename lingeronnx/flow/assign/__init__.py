"""From statistics to scales: which tensors share one, how it is chosen, what the target makes of it.

Owns: calibrators, the user's choice for single tensors, scales that came with a model or another tool's plan, the
inequalities of the target (`legalize`). Which power of two a scale becomes is decided in `plan.power_of_two`. Changes
no graph. Must not know: stages, reports.
"""

from .choice import ScaleChoice, idle_overrides
from .legalize import UnheldScale, legalize
from .output_bits import widen
from .scales import assign, wishes
from .shared_scales import SharedScale, shared_scales, soft_rows, tops

__all__ = [
    "ScaleChoice",
    "SharedScale",
    "UnheldScale",
    "assign",
    "idle_overrides",
    "legalize",
    "soft_rows",
    "shared_scales",
    "tops",
    "widen",
    "wishes",
]
