"""What calibration data say of tensors: ranges, powers, histograms, and inputs that never change.

Must not know: scales, targets, stages.
"""

from .statistics import Curve, Stats, TensorStats, Through, observe

__all__ = ["Curve", "Stats", "TensorStats", "Through", "observe"]
