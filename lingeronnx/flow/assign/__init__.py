"""From statistics to scales: which tensors share one, how it is chosen, what the target makes of it.

Owns: calibrators, the user's choice for single tensors, scales that came with a model or another tool's plan, the
inequalities of the target (`legalize`). Changes no graph. Must not know: stages, reports.
"""

from .scales import Choice, TieClass, UnheldScale, assign, legalize, soft_rows, tie_classes, tops, widen, wishes

__all__ = [
    "Choice",
    "TieClass",
    "UnheldScale",
    "assign",
    "legalize",
    "soft_rows",
    "tie_classes",
    "tops",
    "widen",
    "wishes",
]
