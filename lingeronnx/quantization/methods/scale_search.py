"""Search activation scales by the error at the model's outputs.

The calibrator gives each tensor the scale with its own least error. But only the error that remains
after the following layers, combined with the errors of other tensors, counts. So for one shared
scale after the other, the next finer and the next coarser scale are tried on the integer graph, and
kept if the outputs clearly improve, until nothing changes. The weights are not changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ir.plan import Plan
from ...targets import Target
from ..partition import Partition
from ..scales.feasible import UnsupportedScaleError, legalize
from ..scales.shared_scales import SharedScaleGroup

__all__ = ["find_searchable_scales", "rescale_tensors", "search_scales_by_output_error"]

_SWEEPS = 3
_FREE_SCALE_STEP = 2.0**0.25  # step of scales that need not be powers of two


def search_scales_by_output_error(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    fixed: frozenset[str],
    is_better: Callable[[Plan], bool],
) -> Plan:
    """Search better scales for activations of at most 8 bits, one shared scale after the other.

    Each is multiplied and then divided by a step (2 for powers of two, else 2^(1/4)) as long as the
    plan gets better, in up to 3 sweeps.

    Parameters
    ----------
    partition, plan
        The float graph and its plan.
    shared_groups
        Groups of tensors that share a scale.
    target
        The target.
    fixed
        Tensors whose scales must not change; the other tensors of their groups do not either.
    is_better
        Returns whether a plan is clearly better than the last one for which it returned True, at
        first `plan`.

    Returns
    -------
    Plan
        The best plan, or `plan` itself.
    """
    step = 2.0 if plan.mode == "q-value" else _FREE_SCALE_STEP
    best = plan
    groups = [names for _, names in find_searchable_scales(plan, shared_groups, fixed)]
    searched: dict[int, Plan] = {}  # best plan when a group was searched last
    for _ in range(_SWEEPS):
        before = best
        for index, names in enumerate(groups):
            if searched.get(index) is best:
                continue
            for factor in (step, 1 / step):
                candidate = rescale_tensors(best, names, factor, partition, shared_groups, target)
                while candidate is not None and is_better(candidate):
                    best = candidate
                    candidate = rescale_tensors(
                        best, names, factor, partition, shared_groups, target
                    )
            searched[index] = best
        if best is before:
            break
    return best


def find_searchable_scales(
    plan: Plan, shared_groups: Sequence[SharedScaleGroup], fixed: frozenset[str]
) -> list[tuple[SharedScaleGroup, list[str]]]:
    """Return the groups that share a scale without `fixed` tensors and tensors above 8 bits.

    Each is paired with the names of its tensors that are in the plan, at least one.
    """
    searchable = []
    for group in shared_groups:
        names = [name for name in group.tensors if name in plan.tensors]
        if not names or not fixed.isdisjoint(group.tensors):
            continue
        if all(plan.tensors[name].bits <= 8 for name in names):
            searchable.append((group, names))
    return searchable


def rescale_tensors(
    plan: Plan,
    names: Sequence[str],
    factor: float,
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
) -> Plan | None:
    """Return the legalized plan with the scales of `names` multiplied by `factor`, or None.

    None if the limits of the target would change these scales or do not allow them. `plan` is not
    modified.
    """

    def multiply(scale: float) -> float:
        """Return `scale` times the factor, rounded to float32."""
        return float(np.float32(scale * factor))

    rescaled = {name: plan.tensors[name].mapped(multiply) for name in names}
    candidate = plan.with_tensors({**plan.tensors, **rescaled})
    try:
        legal, _ = legalize(candidate, partition, shared_groups, target)
    except UnsupportedScaleError:
        return None
    is_unchanged = all(legal.tensors[name] == qparams for name, qparams in rescaled.items())
    return legal if is_unchanged else None
