"""Scales of activations, chosen by the error that they leave at the model's outputs.

The calibrator gives each tensor the scale with the least error of its own. What counts is what is
left of that error behind the layers that read it, and how it joins what the tensors around it
leave. So, one shared scale after the other, the next finer and the next coarser scale are tried on
the integer graph, and kept where the outputs come clearly nearer, until nothing moves. The weights
stay as they are meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...plan import Plan
from ...targets import Target
from ..assign.legalize import UnsupportedScaleError, legalize
from ..assign.shared_scales import SharedScaleGroup
from ..partition import Partition

__all__ = ["find_searchable_scales", "rescale_tensors", "search_scales_by_output_error"]

_SWEEPS = 3
_FREE_SCALE_STEP = 2.0**0.25  # a step where any scale can be held


def search_scales_by_output_error(
    partition: Partition,
    plan: Plan,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    fixed: frozenset[str],
    is_better: Callable[[Plan], bool],
) -> Plan:
    """Return `plan` with other scales of activations of at most 8 bits, or `plan` itself.

    is_better : whether a plan is clearly better than the last one that was, at first `plan`. fixed
    : tensors whose scale is not to be moved.
    """
    step = 2.0 if plan.mode == "q-value" else _FREE_SCALE_STEP
    best = plan
    free = [names for _, names in find_searchable_scales(plan, shared_groups, fixed)]
    still: dict[int, Plan] = {}
    for _ in range(_SWEEPS):
        before = best
        for number, names in enumerate(free):
            if still.get(number) is best:
                continue
            for factor in (step, 1 / step):
                while (
                    better_plan := rescale_tensors(
                        best, names, factor, partition, shared_groups, target
                    )
                ) is not None:
                    if not is_better(better_plan):
                        break
                    best = better_plan
            still[number] = best
        if best is before:
            break
    return best


def find_searchable_scales(
    plan: Plan, shared_groups: Sequence[SharedScaleGroup], fixed: frozenset[str]
) -> list[tuple[SharedScaleGroup, list[str]]]:
    """Return the shared scales of at most 8 bits without a tensor of `fixed`, each with its tensors in the plan."""
    free = [
        (group, [n for n in group.tensors if n in plan.tensors])
        for group in shared_groups
        if fixed.isdisjoint(group.tensors)
    ]
    return [
        (group, names)
        for group, names in free
        if names and all(plan.tensors[n].bits <= 8 for n in names)
    ]


def rescale_tensors(
    plan: Plan,
    names: Sequence[str],
    factor: float,
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
) -> Plan | None:
    """Return `plan` with `factor` times the scales of `names`.

    None where the platform does not hold these.
    """
    wanted = {
        name: plan.tensors[name].mapped(lambda scale: float(np.float32(scale * factor)))
        for name in names
    }
    try:
        legal, _ = legalize(
            plan.with_tensors({**plan.tensors, **wanted}), partition, shared_groups, target
        )
    except UnsupportedScaleError:
        return None
    return legal if all(legal.tensors[name] == q for name, q in wanted.items()) else None
