"""Faster arguments than the first that are right: constants in shared memory, fewer tensors outside, prefetching.

None makes a promise weaker, and none leaves more work without a price. Time is the upper end of the range; what has
neither price nor bound counts as copied from external memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....formats import LAYER_NORM
from .... import Target
from ....latency import Latency
from ...packing import prices_of
from ...prices import ARCS
from ..judge import Judged, Ready, verdict
from ..memory.plan import plan_memory, room
from ..options import Options
from .candidates import Candidate, can_be_named, followed
from .mending import rank

__all__ = ["Found", "faster", "savable", "weight"]

#: A candidate and the verdict under it.
Found = tuple[Candidate, Judged]

_NAMES = 6  # tensors that are tried for each move
_MOVES = 4


def weight(time: Latency, target: Target) -> float:
    """Return the cycles that arguments and forms are compared by."""
    copies = (prices_of(target) or ARCS).copies["memcpy_from_psram"]
    return time.high + sum(copies.cycles(work.bytes) for work in time.unpriced if work.bound is None and work.bytes)


def faster(ready: Ready, target: Target, base: Options, found: Found, worth: float | None) -> Found:
    """Return the fastest of `found` and what lies near it; the same where nothing is known of its time.

    worth : the share of the time that constants in shared memory must save; None: they stay outside.
    """
    if not found[1].chip_ready or found[1].weighed is None:
        return found
    for _ in range(_MOVES):
        better = _better(ready, target, base, found, _moved(found), 1.0)
        if better is None:
            break
        found = better
    net = found[1].net
    if worth is None or net is None or any(step.op == LAYER_NORM.name for step in net.steps):
        return found  # a LayerNormInt may write behind its plan, where the constants would lie
    if found[0].prefetch and savable(found[1], target) <= worth * _weight(found[1], target):
        return found
    kept = replace(found[0], shared=True)
    return (
        _better(ready, target, base, found, iter(dict.fromkeys([kept, replace(kept, psram=())])), 1.0 - worth) or found
    )


def savable(said: Judged, target: Target) -> float:
    """Return the cycles that constants in shared memory save at most, where they are prefetched.

    Kernels take as long as before: only waits, copies of data, and what has no bound can go.
    """
    time = said.weighed
    return 0.0 if time is None else time.waits + time.moved + weight(time, target) - time.high


def _better(
    ready: Ready, target: Target, base: Options, found: Found, trials: Iterator[Candidate], share: float
) -> Found | None:
    """Return the fastest of `trials` that is promised as well as `found` and takes less than that share of its time."""
    best, least = None, share * _weight(found[1], target)
    for candidate in trials:
        options = candidate.options(base)
        memory = plan_memory(ready.net, target, options, room(target, base) + 1) if ready.net is not None else None
        if memory is None:
            continue
        said = verdict(ready, target, options, memory)
        if said.chip_ready and rank(said) <= rank(found[1]) and _weight(said, target) < least:
            best, least = (candidate, said), _weight(said, target)
    return best


def _weight(said: Judged, target: Target) -> float:
    time = said.weighed
    return float("inf") if time is None else weight(time, target)


def _moved(found: Found) -> Iterator[Candidate]:
    """Yield candidates with one tensor less in external memory; without prefetching also those with, and one more."""
    candidate, said = found
    if said.net is None or candidate.all_psram:
        return
    sizes = {t.name: t.bytes for t in said.net.values()}
    for name in sorted(candidate.psram, key=lambda name: -sizes.get(name, 0))[:_NAMES]:
        gone = {name, *followed(said.net, [name])}
        yield replace(candidate, psram=tuple(n for n in candidate.psram if n not in gone))
    if candidate.prefetch:
        return
    hidden = replace(candidate, prefetch=True)
    yield hidden
    others = [name for name in sizes if name not in candidate.psram and can_be_named(name)]
    for name in sorted(others, key=lambda name: -sizes[name])[:_NAMES]:
        yield replace(hidden, psram=(*candidate.psram, *followed(said.net, [name])))
