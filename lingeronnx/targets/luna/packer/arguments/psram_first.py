"""The other way round: all large tensors in PSRAM, but for those that their nodes want in shared memory.

Other candidates begin with few tensors outside. A graph with many layers that are too large has
none among them that fits, and moving one tensor after the other takes a trial for each. Here what
the verdict speaks against comes back.
"""

from __future__ import annotations

from .... import Target
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..memory.plan import get_shared_memory_limit
from ..options import PackerOptions
from .candidates import (
    ArgumentCandidate,
    find_reshape_source,
    include_reshape_aliases,
    is_valid_option_name,
)
from .local_search import get_blamed_nodes
from .speed import EvaluatedCandidate

__all__ = ["move_back_to_shared", "place_large_tensors_in_psram"]

_SMALL_TENSOR_DIVISOR = 100  # tensors of less than such a part of the shared memory stay there
_MAX_ROUNDS = 12  # in which tensors come back


def place_large_tensors_in_psram(
    ready: PreparedGraph, target: Target, base: PackerOptions, known: EvaluatedCandidate
) -> EvaluatedCandidate:
    """Return that candidate for a graph that was read with `base`, and the verdict.

    Or `known`, which is not right.
    With prefetching where that is right; without its buffers less is needed. Where nothing is
    right, what the fewest nodes stand against: a graph that lacks room for one layer is not said to
    be wrong at all of them.
    """
    if ready.net is None:
        return known
    best = known
    for prefetch in (True, False):
        found = move_back_to_shared(ready, target, base, prefetch)
        if found[1].is_chip_ready:
            return found
        best = min(best, found, key=lambda tried: len(get_blamed_nodes(tried[1])))
    return best


def move_back_to_shared(
    prepared: PreparedGraph, target: Target, base: PackerOptions, prefetch: bool
) -> EvaluatedCandidate:
    """Return the candidate with or without prefetching, and the verdict.

    For a graph that is planned.
    """
    net = prepared.net
    assert net is not None
    large = [
        t.name
        for t in net.iterate_tensors()
        if _SMALL_TENSOR_DIVISOR * t.size_bytes > get_shared_memory_limit(target, base)
    ]

    def judged(inside: set[str]) -> EvaluatedCandidate:
        names = include_reshape_aliases(net, [name for name in large if name not in inside])
        candidate = ArgumentCandidate(
            tuple(n for n in names if is_valid_option_name(n)), prefetch=prefetch
        )
        return candidate, evaluate_plan(prepared, target, candidate.to_options(base))

    inside: set[str] = set()
    candidate, said = judged(inside)
    for _ in range(_MAX_ROUNDS):
        back = _find_tensors_to_return(said, set(candidate.psram_tensors))
        if not back:
            break
        inside |= back
        candidate, said = judged(inside)
    return candidate, said


def _find_tensors_to_return(verdict: DetailedVerdict, psram: set[str]) -> set[str]:
    """Return the tensors in `psram` of nodes that anything but the size of the plan is said against.

    What such a node writes, with what that is reshaped from; where nothing of it is in PSRAM, what
    the node reads.
    """
    assert verdict.graph is not None
    net, minding, back = verdict.graph, get_blamed_nodes(verdict), set[str]()
    for step in net.steps:
        if step.origin in minding:
            for names in (step.outputs, step.inputs):
                moved = {name for n in names for name in (n, find_reshape_source(net, n))} & psram
                if moved:
                    back |= moved
                    break
    return back
