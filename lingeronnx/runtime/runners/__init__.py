"""Run float operators in onnxruntime: a complete model, a part, or a step between integer nodes."""

from .float_fallbacks import FallbackSessionCache, FloatFallback, extract_submodel
from .float_runner import FloatRunner, Item, ShapeRunner, Stream, get_input_specs
from .sessions import open_ort_session

__all__ = [
    "FloatFallback",
    "FloatRunner",
    "FallbackSessionCache",
    "Item",
    "ShapeRunner",
    "Stream",
    "get_input_specs",
    "open_ort_session",
    "extract_submodel",
]
