"""Which of several parts keep their constants in shared memory: what saves most for its bytes, as long as all fit.

Parts run one after the other and share one region, as large as the largest needs. A part whose constants lie in shared
memory needs a region of its own, since they stay there while the others run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .....graph import ir
from .....graph.names import written
from .... import Target
from ....objective import MEMORY, PARTS, PARTS_KEPT, objective_of
from ....verdict import ArgumentChoice
from ...packing import prices_of
from ..names import safe_names
from .choice import Judgement, choose, keeping, worth_keeping
from .speed import savable, weight

__all__ = ["Region", "keep_constants", "kept"]

_ALIGNED = 64  # bytes that each region is rounded up to


@dataclass(frozen=True)
class Region:
    """What a part needs of shared memory in turn with others, in bytes, and with a region of its own.

    saved : cycles that its own region saves; nothing where it cannot have one.
    """

    common: int
    own: int = 0
    saved: float = 0.0


def kept(regions: Sequence[Region], room: int) -> list[int]:
    """Return the indices of the parts that get a region of their own, in order; all regions fit in `room` bytes.

    Taken one after the other, those first that save most for each byte.
    """
    found: list[int] = []
    left = sorted(range(len(regions)), key=lambda i: -regions[i].saved / max(regions[i].own, 1))
    while True:  # what is taken may leave more room: it no longer needs the common region
        fits = (i for i in left if i not in found and regions[i].saved > 0 and _need(regions, [*found, i]) <= room)
        index = next(fits, None)
        if index is None:
            return sorted(found)
        found.append(index)


def _need(regions: Sequence[Region], chosen: Iterable[int]) -> int:
    """Return the bytes of the common region and of those of the chosen parts."""
    own = set(chosen)
    common = max((_up(region.common) for i, region in enumerate(regions) if i not in own), default=0)
    return common + sum(_up(regions[i].own) for i in own)


def _up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def keep_constants(graphs: Sequence[ir.Graph], target: Target) -> list[ArgumentChoice | None]:
    """Let some of the parts of one graph keep their constants in shared memory, which is written into them, in place.

    None where the chip's prices are not known, where memory is the objective, and where nobody knows what a part needs.
    A part that is not right on the chip is not packed, and takes nothing. Return each part's arguments, which are
    chosen for that; nothing for a part whose names have to change before.
    """
    if target.shared_memory is None or prices_of(target) is None:
        return []
    tried = [_Tried.of(graph, target) for graph in graphs]
    regions = [one.region for one in tried]
    known = [region for region in regions if region is not None]
    own = kept(known, target.shared_memory) if len(known) == len(regions) else []
    for index in own:
        graphs[index].metadata_props[PARTS] = PARTS_KEPT
    choices = [one.after if i in own else one.before for i, one in enumerate(tried)]
    return [choice if one.named else None for choice, one in zip(choices, tried, strict=True)]


@dataclass(frozen=True)
class _Tried:
    """A part with its constants outside, and where that may be worth it with them in shared memory.

    region : what it needs; None where nobody knows. named : whether its names can stand in a file as they are.
    """

    region: Region | None
    before: Judgement
    after: Judgement | None
    named: bool

    @classmethod
    def of(cls, graph: ir.Graph, target: Target) -> _Tried:
        """Choose a part's arguments, with its constants outside and beside it with them inside."""
        names = safe_names(graph)
        part, objective = written(ir.clone(graph), names), objective_of(graph)
        named = not (names.tensors or names.nodes)
        before = choose(part, target)
        if not before.verdict.chip_ready:  # it is not packed
            return cls(Region(0), before, None, named)
        need, time = _shared(before), before.verdict.weighed
        if need is None or time is None:
            return cls(None, before, None, named)
        worth = worth_keeping(objective) * weight(time, target)
        if objective == MEMORY or savable(before.verdict, target) <= worth:
            return cls(Region(need), before, None, named)
        part.metadata_props[PARTS] = PARTS_KEPT
        after = choose(part, target)
        own, faster = _shared(after), after.verdict.weighed
        if not keeping(after.words) or own is None or faster is None:
            return cls(Region(need), before, None, named)
        return cls(Region(need, own, weight(time, target) - weight(faster, target)), before, after, named)


def _shared(judgement: Judgement) -> int | None:
    cost = judgement.verdict.cost
    return None if cost is None else cost.shared
