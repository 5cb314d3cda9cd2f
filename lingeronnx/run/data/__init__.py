"""Calibration and evaluation data: what a model is fed, from whatever form people have it in."""

from .batches import MAX_UNBOUNDED_SAMPLES, Data
from .functions import load_function
from .inputs import Batch, InputSpec, Progress
from .pictures import Pictures
from .sources import resolve_source_path

__all__ = [
    "MAX_UNBOUNDED_SAMPLES",
    "Batch",
    "Data",
    "InputSpec",
    "Pictures",
    "Progress",
    "resolve_source_path",
    "load_function",
]
