"""First stage: load a float model and its data, normalize and partition the model.

Owns: settings that depend on the model and the data, selectors, states that are fed back, and the
rule that rewrites change no output. Must not know: scales.
"""

from .calibration_data import generate_synthetic_inputs, require_calibrated_scales, require_data
from .preparation import PreparedModel, normalize_model, prepare_model

__all__ = [
    "PreparedModel",
    "generate_synthetic_inputs",
    "normalize_model",
    "prepare_model",
    "require_calibrated_scales",
    "require_data",
]
