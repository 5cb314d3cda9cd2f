"""Collect statistics of calibration data: ranges, powers, histograms, and inputs that never change.

Must not know: scales, targets, stages.
"""

from .statistics import ConsumerFunction, Curve, Stats, TensorStats, collect_stats

__all__ = ["ConsumerFunction", "Curve", "Stats", "TensorStats", "collect_stats"]
