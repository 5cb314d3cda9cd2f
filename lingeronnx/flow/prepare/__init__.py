"""The first stage: a float model is loaded, its data are at hand, it is normalised and partitioned.

Owns: what of the settings the model and the data decide, selectors, states that are fed back, the
law that a rewrite changes no output. Must not know: scales.
"""

from .calibration_data import generate_synthetic_inputs
from .data_requirements import require_calibrated_scales, require_data
from .preparation import PreparedModel, normalize_model, prepare_model

__all__ = [
    "PreparedModel",
    "generate_synthetic_inputs",
    "normalize_model",
    "prepare_model",
    "require_calibrated_scales",
    "require_data",
]
