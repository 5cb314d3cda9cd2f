"""The first stage: a float model is loaded, its data are at hand, it is normalised and partitioned.

Owns: what of the settings the model and the data decide, selectors, states that are fed back, the law that a rewrite
changes no output. Must not know: scales.
"""

from .calibration_data import synthetic
from .data_needs import need_data, need_scales
from .preparation import Prepared, normalised, prepare

__all__ = ["Prepared", "need_data", "need_scales", "normalised", "prepare", "synthetic"]
