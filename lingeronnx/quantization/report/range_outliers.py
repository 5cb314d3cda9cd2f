"""Find tensors whose range is determined by a few outliers, as in transformers.

Such tensors need 16 bits. One scale covers the largest value. If that is far beyond nearly all
others, these have only a few of the steps of 8 bits, and whatever is computed from them is lost.
Clipping the outliers is no solution: the network computes with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...common.errors import ConfigError
from ..calibration.statistics import TensorStats
from ..prepare.preparation import PreparedModel
from ..scales.shared_scales import group_shared_scales
from ..steps.planned_model import PlannedModel

__all__ = ["RangeOutlier", "find_range_outliers"]

_QUANTILE = 0.99  # of the magnitudes
_MIN_RATIO = 24.0  # of the maximum to the quantile, which then has about five steps of 8 bits
_WIDE_BITS = 16


@dataclass(frozen=True)
class RangeOutlier:
    """Range of tensors with one scale.

    Attributes
    ----------
    name
        Name of one of the tensors.
    largest
        Largest magnitude.
    percentile_99
        99th percentile of the nonzero magnitudes.
    """

    name: str
    largest: float
    percentile_99: float

    @property
    def ratio(self) -> float:
        """Ratio of the largest magnitude to the 99th percentile."""
        return self.largest / self.percentile_99

    def __str__(self) -> str:
        """State the largest value and the bound of 99 % of the values."""
        return (
            f"'{self.name}' reaches {self.largest:.3g}, but 99 % of its values are below "
            f"{self.percentile_99:.2g}"
        )


def find_range_outliers(prepared: PreparedModel, planned: PlannedModel) -> list[RangeOutlier]:
    """Find groups of 8-bit activations whose range is determined by a few values, worst first.

    Their largest magnitude exceeds `_MIN_RATIO` times the 99th percentile. Each group is named by
    its last tensor in the user's graph, for `--override NAME=bits:16`. Groups without such a tensor
    or without statistics are left out; empty if the platform has no 16 bits.
    """
    target = planned.prepared.target
    if _WIDE_BITS not in target.bits:
        return []
    outliers = []
    for group in group_shared_scales(planned.partition, target):
        stats = group.merged_stats(planned.basis.stats)
        name = _user_tensor_name(prepared, group.tensors)
        qparams = planned.plan.tensors.get(group.tensors[-1])
        if stats is None or name is None or qparams is None or qparams.bits >= _WIDE_BITS:
            continue
        largest, percentile = max(stats.high, -stats.low), _percentile_99(stats)
        if percentile > 0 and largest > _MIN_RATIO * percentile:
            outliers.append(RangeOutlier(name, largest, percentile))
    return sorted(outliers, key=lambda outlier: -outlier.ratio)


def _percentile_99(stats: TensorStats) -> float:
    """Return the 99th percentile of the magnitudes above 1e-6 of the largest, 0 without any.

    The zeros of a ReLU need no steps.
    """
    centers, counts = stats.nonzero_bins()
    magnitudes = np.abs(centers)
    is_relevant = magnitudes > 1e-6 * magnitudes.max(initial=0.0)
    magnitudes, counts = magnitudes[is_relevant], counts[is_relevant]
    order = np.argsort(magnitudes)
    cumulative = np.cumsum(counts[order])
    if not cumulative.size:
        return 0.0
    index = np.searchsorted(cumulative, _QUANTILE * cumulative[-1])
    return float(magnitudes[order][index])


def _user_tensor_name(prepared: PreparedModel, tensors: tuple[str, ...]) -> str | None:
    """Return the last of `tensors` that its own name selects in the user's graph, or None."""
    selectors = prepared.selectors(prepared.graph)
    for name in reversed(tensors):
        try:
            if name in selectors.tensors(name):
                return name
        except ConfigError:  # a tensor created by normalization
            continue
    return None
