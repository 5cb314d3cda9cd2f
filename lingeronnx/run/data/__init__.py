"""Calibration and evaluation data: what a model is fed, from whatever form people have it in."""

from .batches import MOST_UNBOUNDED, Data
from .functions import load_function
from .inputs import Batch, InputSpec, Progress
from .pictures import Pictures
from .sources import found_from_anywhere

__all__ = [
    "MOST_UNBOUNDED",
    "Batch",
    "Data",
    "InputSpec",
    "Pictures",
    "Progress",
    "found_from_anywhere",
    "load_function",
]
