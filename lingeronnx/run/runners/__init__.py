"""Running float operators by onnxruntime: a whole model, a part of it, or a step between integer ones."""

from .float_fallbacks import FloatFallback, OpenedFallbacks, leading_to, reads, submodel
from .float_runner import FloatRunner, Item, ShapeRunner, Stream, input_specs
from .sessions import ort_session

__all__ = [
    "FloatFallback", "FloatRunner", "OpenedFallbacks", "Item", "ShapeRunner", "Stream", "input_specs",
    "leading_to", "ort_session", "reads", "submodel",
]  # fmt: skip
