"""The other way round: all large tensors in PSRAM, but for those that their nodes want in shared memory.

Other candidates begin with few tensors outside. A graph with many layers that are too large has none among them that
fits, and moving one tensor after the other takes a trial for each. Here what the verdict speaks against comes back.
"""

from __future__ import annotations

from .... import Target
from ..judge import Judged, Ready, verdict
from ..memory.plan import room
from ..options import Options
from .candidates import Candidate, can_be_named, followed, root
from .mending import against
from .speed import Found

__all__ = ["outside", "returned"]

_SMALL = 100  # tensors of less than such a part of the shared memory stay there
_ROUNDS = 12  # in which tensors come back


def outside(ready: Ready, target: Target, base: Options, known: Found) -> Found:
    """Return that candidate for a graph that was read with `base`, and the verdict; or `known`, which is not right.

    With prefetching where that is right; without its buffers less is needed. Where nothing is right, what the fewest
    nodes stand against: a graph that lacks room for one layer is not said to be wrong at all of them.
    """
    if ready.net is None:
        return known
    best = known
    for prefetch in (True, False):
        found = returned(ready, target, base, prefetch)
        if found[1].chip_ready:
            return found
        best = min(best, found, key=lambda tried: len(against(tried[1])))
    return best


def returned(ready: Ready, target: Target, base: Options, prefetch: bool) -> Found:
    """Return the candidate with or without prefetching, and the verdict; for a graph that is planned."""
    net = ready.net
    assert net is not None
    large = [t.name for t in net.values() if _SMALL * t.bytes > room(target, base)]

    def judged(inside: set[str]) -> Found:
        names = followed(net, [name for name in large if name not in inside])
        candidate = Candidate(tuple(n for n in names if can_be_named(n)), prefetch=prefetch)
        return candidate, verdict(ready, target, candidate.options(base))

    inside: set[str] = set()
    candidate, said = judged(inside)
    for _ in range(_ROUNDS):
        back = _minded(said, set(candidate.psram))
        if not back:
            break
        inside |= back
        candidate, said = judged(inside)
    return candidate, said


def _minded(said: Judged, psram: set[str]) -> set[str]:
    """Return the tensors in `psram` of nodes that anything but the size of the plan is said against.

    What such a node writes, with what that is reshaped from; where nothing of it is in PSRAM, what the node reads.
    """
    assert said.net is not None
    net, minding, back = said.net, against(said), set[str]()
    for step in net.steps:
        if step.origin in minding:
            for names in (step.outputs, step.inputs):
                moved = {name for n in names for name in (n, root(net, n))} & psram
                if moved:
                    back |= moved
                    break
    return back
