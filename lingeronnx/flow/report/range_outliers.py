"""Tensors whose range a few huge values make, as transformers have them.

16 bits are what keeps the others.
One scale covers the largest value. Where it is far beyond nearly all others, these have a few steps
of 8 bits left, and what is made of them is lost. Cutting the huge values is no way out: the network
computes with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import ConfigError
from ..assign.shared_scales import group_shared_scales
from ..observe.statistics import TensorStats
from ..planning.planned_model import PlannedModel
from ..prepare.preparation import PreparedModel

__all__ = ["RangeOutlier", "find_range_outliers"]

_QUANTILE = 0.99  # of the values
_MIN_RATIO = 24.0  # times that share's reach: then about five steps of 8 bits are left for it
_WIDE_BITS = 16


@dataclass(frozen=True)
class RangeOutlier:
    """Tensors of one scale, by the name of one.

    The largest |x| of them, and what 99 % of them stay below.
    """

    name: str
    largest: float
    percentile_99: float

    @property
    def ratio(self) -> float:
        """How far the largest is beyond the others."""
        return self.largest / self.percentile_99

    def __str__(self) -> str:
        return (
            f"'{self.name}' reaches {self.largest:.3g}, 99 % of it stay below "
            f"{self.percentile_99:.2g}"
        )


def find_range_outliers(prepared: PreparedModel, planned: PlannedModel) -> list[RangeOutlier]:
    """Return the groups of 8-bit activations whose range a few values make, the worst first.

    None where the platform has no 16 bits, or where the scales came from elsewhere. Each is named
    by the last of its tensors that the user's graph has, which `--override NAME=bits:16` takes.
    """
    target, stats = planned.target, planned.basis.stats
    if _WIDE_BITS not in target.bits:
        return []
    outliers = []
    for group in group_shared_scales(planned.partition, target):
        observed, name = group.merged_stats(stats), _user_tensor_name(prepared, group.tensors)
        q = planned.plan.tensors.get(group.tensors[-1])
        if observed is None or name is None or q is None or q.bits >= _WIDE_BITS:
            continue
        largest, most = max(observed.high, -observed.low), _percentile_99(observed)
        if most > 0 and largest > _MIN_RATIO * most:
            outliers.append(RangeOutlier(name, largest, most))
    return sorted(outliers, key=lambda one: -one.ratio)


def _percentile_99(stats: TensorStats) -> float:
    """Return what the share of |x| stays below, of the values that are not 0.

    A ReLU's zeros need no steps.
    """
    centres, counts = stats.nonzero_bins()
    sizes = np.abs(centres)
    some = sizes > 1e-6 * sizes.max(initial=0.0)
    order = np.argsort(sizes[some])
    summed = np.cumsum(counts[some][order])
    if not summed.size:
        return 0.0
    return float(sizes[some][order][np.searchsorted(summed, _QUANTILE * summed[-1])])


def _user_tensor_name(prepared: PreparedModel, tensors: tuple[str, ...]) -> str | None:
    """Return the last of `tensors` that is the user's own, None where none is."""
    selectors = prepared.selectors(prepared.graph)
    for name in reversed(tensors):
        try:
            if name in selectors.tensors(name):
                return name
        except ConfigError:  # a tensor that normalisation made
            continue
    return None
