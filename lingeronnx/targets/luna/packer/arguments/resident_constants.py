"""Which of several parts keep their constants in shared memory.

What saves most for its bytes, as long as all fit.
Parts run one after the other and share one region, as large as the largest needs. A part whose
constants lie in shared memory needs a region of its own, since they stay there while the others
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .....graph import ir
from .....graph.name_mapping import apply_file_names
from .... import Target
from ....objective import MEMORY, PARTS_KEY, PARTS_RESIDENT, get_objective
from ....verdict import PackerArguments
from ...packer_profile import get_kernel_costs
from ..names import build_safe_names
from .selection import (
    EvaluatedArguments,
    get_min_residency_gain,
    has_resident_constants,
    select_fastest_arguments,
)
from .speed import estimate_max_saving, get_comparison_cycles

__all__ = ["PartMemoryDemand", "assign_resident_constants", "select_resident_parts"]

_REGION_ALIGNMENT = 64  # bytes that each region is rounded up to


@dataclass(frozen=True)
class PartMemoryDemand:
    """What a part needs of shared memory in turn with others, in bytes, and with a region of its own.

    saved_cycles : cycles that its own region saves; nothing where it cannot have one.
    """

    common_bytes: int
    resident_bytes: int = 0
    saved_cycles: float = 0.0


def select_resident_parts(regions: Sequence[PartMemoryDemand], room: int) -> list[int]:
    """Return the indices of the parts that get a region of their own, in order.

    All regions fit in `room` bytes.
    Taken one after the other, those first that save most for each byte.
    """
    found: list[int] = []
    left = sorted(
        range(len(regions)),
        key=lambda i: -regions[i].saved_cycles / max(regions[i].resident_bytes, 1),
    )
    while True:  # what is taken may leave more room: it no longer needs the common region
        fits = (
            i
            for i in left
            if i not in found
            and regions[i].saved_cycles > 0
            and _compute_required_bytes(regions, [*found, i]) <= room
        )
        index = next(fits, None)
        if index is None:
            return sorted(found)
        found.append(index)


def _compute_required_bytes(regions: Sequence[PartMemoryDemand], chosen: Iterable[int]) -> int:
    """Return the bytes of the common region and of those of the chosen parts."""
    own = set(chosen)
    common = max(
        (_round_up(region.common_bytes) for i, region in enumerate(regions) if i not in own),
        default=0,
    )
    return common + sum(_round_up(regions[i].resident_bytes) for i in own)


def _round_up(size: int) -> int:
    return -(-size // _REGION_ALIGNMENT) * _REGION_ALIGNMENT


def assign_resident_constants(
    graphs: Sequence[ir.Model], target: Target
) -> list[PackerArguments | None]:
    """Let some of the parts of one graph keep their constants in shared memory, which is written into them, in place.

    None where the chip's prices are not known, where memory is the objective, and where nobody
    knows what a part needs. A part that is not right on the chip is not packed, and takes nothing.
    Return each part's arguments, which are chosen for that; nothing for a part whose names have to
    change before.
    """
    if target.shared_memory is None or get_kernel_costs(target) is None:
        return []
    tried = [_PartTrial.evaluate(graph, target) for graph in graphs]
    regions = [one.demand for one in tried]
    known = [region for region in regions if region is not None]
    own = select_resident_parts(known, target.shared_memory) if len(known) == len(regions) else []
    for index in own:
        graphs[index].metadata_props[PARTS_KEY] = PARTS_RESIDENT
    choices = [
        one.resident_arguments if i in own else one.external_arguments
        for i, one in enumerate(tried)
    ]
    return [
        choice if one.has_safe_names else None for choice, one in zip(choices, tried, strict=True)
    ]


@dataclass(frozen=True)
class _PartTrial:
    """A part with its constants outside, and where that may be worth it with them in shared memory.

    demand : what it needs; None where nobody knows. named : whether its names can stand in a file
    as they are.
    """

    demand: PartMemoryDemand | None
    external_arguments: EvaluatedArguments
    resident_arguments: EvaluatedArguments | None
    has_safe_names: bool

    @classmethod
    def evaluate(cls, graph: ir.Model, target: Target) -> _PartTrial:
        """Choose a part's arguments, with its constants outside and beside it with them inside."""
        names = build_safe_names(graph)
        part, objective = apply_file_names(ir.clone(graph), names), get_objective(graph)
        named = not (names.tensors or names.nodes)
        before = select_fastest_arguments(part, target)
        if not before.verdict.is_chip_ready:  # it is not packed
            return cls(PartMemoryDemand(0), before, None, named)
        need, time = _get_shared_bytes(before), before.verdict.comparison_latency
        if need is None or time is None:
            return cls(None, before, None, named)
        worth = get_min_residency_gain(objective) * get_comparison_cycles(time, target)
        if objective == MEMORY or estimate_max_saving(before.verdict, target) <= worth:
            return cls(PartMemoryDemand(need), before, None, named)
        part.metadata_props[PARTS_KEY] = PARTS_RESIDENT
        after = select_fastest_arguments(part, target)
        own, faster = _get_shared_bytes(after), after.verdict.comparison_latency
        if not has_resident_constants(after.argv) or own is None or faster is None:
            return cls(PartMemoryDemand(need), before, None, named)
        return cls(
            PartMemoryDemand(
                need,
                own,
                get_comparison_cycles(time, target) - get_comparison_cycles(faster, target),
            ),
            before,
            after,
            named,
        )


def _get_shared_bytes(judgement: EvaluatedArguments) -> int | None:
    cost = judgement.verdict.cost
    return None if cost is None else cost.shared
