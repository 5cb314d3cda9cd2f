"""Calibration and evaluation data: feeds of a model, from files, folders, functions or arrays."""

from .batches import MAX_UNBOUNDED_SAMPLES, Data, HoldOut, require_equal_inputs
from .functions import load_function
from .inputs import Batch, InputSpec, Progress, count_divisible_samples
from .pictures import Pictures
from .sources import resolve_source_path

__all__ = [
    "MAX_UNBOUNDED_SAMPLES",
    "Batch",
    "Data",
    "HoldOut",
    "InputSpec",
    "Pictures",
    "Progress",
    "count_divisible_samples",
    "require_equal_inputs",
    "resolve_source_path",
    "load_function",
]
