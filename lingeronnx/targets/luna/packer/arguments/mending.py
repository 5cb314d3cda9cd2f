"""From a candidate that does not do to one that does: tensors are moved one after the other, and the verdict asked."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from .... import Target
from ....verdict import VerdictFinding
from ...packing import packing
from ..judge import Judged, Ready, verdict
from ..memory.overruns import UNSURE, written_past
from ..memory.plan import Spot, places_of, plan_memory, room, sums
from ..net import Net
from ..options import SHARE, Options
from .candidates import Candidate, can_be_named, followed, root, rows

__all__ = ["BELIEVED", "PAST", "REFUSED", "WRONG", "against", "cleared", "mended", "rank", "spilled"]

PAST = 1  # the rank of what is right and writes behind its plan
BELIEVED = 2  # of what is right as far as is known
WRONG = 3  # of what packs and gives other integers
REFUSED = 4  # of what the packer refuses, as it does what does not fit


def rank(judged: Judged) -> int:
    """Return how good a verdict is: 0 for right, 1 for right and past the plan, then the ranks above."""
    if judged.chip_ready:
        return BELIEVED if judged.beliefs else PAST if _past(judged) else 0
    return WRONG if judged.packs else REFUSED


def spilled(ready: Ready, target: Target, base: Options) -> Iterator[Candidate]:
    """Yield candidates that move one tensor after the other out of the fullest node, where that does no harm.

    Each time the first tensor that leaves a smaller plan; then, thoroughly, the one that leaves the smallest, also with
    what is written by nodes that would be wrong then: a sum may want operand and result outside. None where nothing
    but the shared memory stands against the graph, or where no tensor may go.
    """
    most = 0 if ready.net is None else min(_SPILLS, _SPILLED_NODES // len(ready.net.steps))
    for thorough in (False, True):
        trials = iter(range(most))
        for prefetch in (True, False):
            candidate = Candidate(prefetch=prefetch)
            said = verdict(ready, target, candidate.options(base))
            while (better := _spill(ready, target, base, candidate, said, thorough, trials)) is not None:
                candidate, said = better
            if candidate.psram:
                yield candidate
            if said.chip_ready:
                return


def _spill(
    ready: Ready,
    target: Target,
    base: Options,
    candidate: Candidate,
    said: Judged,
    thorough: bool,
    trials: Iterator[int],
) -> tuple[Candidate, Judged] | None:
    """Return `candidate` with one more tensor moved: a smaller plan, and no more findings. None where it fits."""
    if said.memory is None or said.memory.fits:
        return None
    best, need = None, said.memory.need
    for name, _ in zip(_movable(said, thorough), trials, strict=False):
        moved, names = candidate, [name]
        for _ in range(1 + thorough):
            moved = replace(moved, psram=tuple(dict.fromkeys((*moved.psram, *followed(_net(said), names)))))
            memory = plan_memory(_net(said), target, moved.options(base), need)
            if memory is None:  # it needs no less: known before all that a verdict asks
                break
            after = verdict(ready, target, moved.options(base), memory)
            if _harm(after) <= _harm(said):
                best, need = (moved, after), memory.need
                break
            names = _written_by(_net(said), against(after) - against(said))  # a node may mind no more with these
        if best is not None and not thorough:
            break
    return best


def against(said: Judged) -> set[str]:
    """Return the nodes that something is said against."""
    return {f.node for f in said.findings if f.level != "plan"}


def _written_by(net: Net, nodes: Collection[str]) -> list[str]:
    """Return what some nodes of the user's graph write."""
    return [n for step in net.steps if step.origin in nodes for n in step.outputs if can_be_named(n)]


def cleared(ready: Ready, target: Target, base: Options, start: Candidate) -> Iterator[Candidate]:
    """Yield `start` with what lies behind the work area moved to PSRAM, and so on while something lies there."""
    candidate = start
    for _ in range(_CLEARINGS):
        said = verdict(ready, target, candidate.options(base))
        if said.memory is None:
            return
        behind = [name for names in _behind(said, target, candidate.options(base)).values() for name in names]
        names = dict.fromkeys((*candidate.psram, *followed(_net(said), behind)))
        if len(names) == len(candidate.psram):
            return
        candidate = replace(candidate, psram=tuple(names))
        yield candidate


def _behind(said: Judged, target: Target, options: Options) -> dict[str, list[str]]:
    """Return {node that writes past its work area: what lies there}, before it was reshaped."""
    assert said.memory is not None
    net = _net(said)
    past = written_past(net, said.memory, packing(target).areas, places_of(net, options))
    return {f.step.origin: [n for n in (root(net, hit) for hit in f.hit) if can_be_named(n)] for f in past}


def mended(ready: Ready, target: Target, base: Options, start: Candidate) -> Iterator[Candidate]:
    """Yield better and better candidates, found by moving the tensors of a node that something is said of.

    What is reshaped moves along, and what lies behind a work area may move as well. Of all that was tried the best is
    gone on from, be it worse than where it came from: one move may need another. With prefetching and without.
    """
    assert ready.net is not None
    if ready.findings:  # no place makes up for these
        return
    if start.all_psram:  # named tensors are moved: begin with those that must be
        start = Candidate(tuple(n for n in followed(ready.net, rows(ready.net, target)) if can_be_named(n)))
    open_ends: list[tuple[tuple[int, int, int], int, Candidate, Judged]] = []
    tried: set[tuple[bool, bool, frozenset[str]]] = set()
    least: tuple[int, int, int] | None = None

    def look(candidate: Candidate) -> bool:
        """Judge a candidate that is new; tell whether it is the best."""
        nonlocal least
        key = (candidate.prefetch, candidate.shared, frozenset(candidate.psram))
        if key in tried:
            return False
        tried.add(key)
        weighed = _weighed(ready, target, base, candidate)
        if weighed is None:
            return False
        heapq.heappush(open_ends, (weighed[0], len(tried), candidate, weighed[1]))
        better, least = least is None or weighed[0] < least, min(weighed[0], least or weighed[0])
        return better

    for shared, prefetch in itertools.product((start.shared, False), (start.prefetch, False)):
        begin = replace(start, shared=shared, prefetch=prefetch)
        if look(begin) and begin != start:
            yield begin
    most = min(max(_TRIED_NODES // len(ready.net.steps), _FEWEST_TRIALS), _MOST_TRIALS)
    while open_ends and len(tried) < most:
        _, _, candidate, said = heapq.heappop(open_ends)
        doubts = _doubts(said)
        if not doubts:
            return
        node, past = doubts[0].node, _behind(said, target, candidate.options(base))
        others = _others(_net(said), node) if node in past else iter(())
        for names in itertools.chain(_moved(said, node, past.get(node, [])), others):
            other = replace(candidate, psram=tuple(_toggled(candidate.psram, names)))
            if look(other):
                yield other


def _weighed(
    ready: Ready, target: Target, base: Options, candidate: Candidate
) -> tuple[tuple[int, int, int], Judged] | None:
    """Return the rank of a candidate, how much there is to be said and how many tensors that names, with the verdict.

    None for one that does not fit.
    """
    assert ready.net is not None
    options = candidate.options(base)
    memory = plan_memory(ready.net, target, options, room(target, base) + 1)
    if memory is None:
        return None
    said = verdict(ready, target, options, memory)
    doubts = _doubts(said)
    return (rank(said), len(doubts), sum(f.value.count(",") for f in doubts)), said


def _doubts(said: Judged) -> list[VerdictFinding]:
    """Return what speaks against a verdict, or what a right one hangs on, or writes behind its plan."""
    return [f for f in said.findings if f.level != "plan"] or [*said.beliefs, *_past(said)]


def _past(said: Judged) -> list[VerdictFinding]:
    """Return the warnings of writes behind the plan, but for those that nobody measured."""
    return [f for f in said.findings if f.level == "plan" and f.rule != UNSURE]


def _moved(said: Judged, node: str, behind: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tensors of a node and those `behind` in all combinations, the fewest first, with what is reshaped.

    What a node reads moves as a whole, or from the last reshape on.
    """
    net = _net(said)
    steps = [step for step in net.steps if step.origin == node]
    names = [n for step in steps for n in (*step.inputs, *step.outputs) if not net.tensors[n].constant]
    own = dict.fromkeys(n for name in names for n in (root(net, name), name) if can_be_named(n))
    ends = list(dict.fromkeys((*list(own)[:_SIDES], *behind[:_SIDES])))
    for count in range(1, _SIDES + 1):
        for some in itertools.combinations(ends, count):
            yield [n for n in followed(net, some) if can_be_named(n)]


def _others(net: Net, node: str) -> Iterator[list[str]]:
    """Yield the tensors of all other nodes one by one: written elsewhere, some have a larger work area planned."""
    names = [n for step in net.steps if step.origin != node for n in step.outputs if can_be_named(n)]
    yield from (followed(net, [name]) for name in names[:_OTHERS])


def _toggled(names: Sequence[str], moved: Sequence[str]) -> list[str]:
    """Return `names` with what is in `moved` taken out where it is in, else added."""
    return [n for n in names if n not in moved] + [n for n in moved if n not in names]


#: Nodes that may be judged in all trials, the bounds of the trials, tensors of a node that are moved, and others.
_TRIED_NODES, _FEWEST_TRIALS, _MOST_TRIALS, _SIDES, _OTHERS = 30000, 40, 600, 4, 48

#: Rounds of moving what lies behind a work area: what comes to lie there next may be in the way, too.
_CLEARINGS = 8

#: Trials of single tensors, and the nodes that are planned in all of them: of a graph in hundreds of tiles there are
#: few, since `outside` answers for it at once.
_SPILLS, _SPILLED_NODES = 96, 96_000


def _net(said: Judged) -> Net:
    assert said.net is not None
    return said.net


def _harm(said: Judged) -> int:
    """Return the number of findings, but for the size of the plan."""
    return sum(f.level != "plan" and f.node != "shared memory" for f in said.findings)


def _movable(said: Judged, thorough: bool) -> list[str]:
    """Return the tensors in shared memory at its fullest node: first those it does not use, the largest first.

    thorough : then those at the node where most blocks are taken. What is made in place may have a block that it does
    not use, for as long as the tensor lives that it is made of.
    """
    assert said.memory is not None
    net = _net(said)
    spots = {n: s for n, s in said.memory.spots.items() if s.place == SHARE}
    fullest = _fullest(net, spots)
    if thorough:
        lives: dict[str, tuple[int, int]] = {}
        roots = {name: root(net, name) for name in spots}
        for name, origin in roots.items():
            first, last = lives.get(origin, (spots[name].first, spots[name].last))
            lives[origin] = min(first, spots[name].first), max(last, spots[name].last)
        blocks = {n: s._replace(first=lives[roots[n]][0], last=lives[roots[n]][1]) for n, s in spots.items()}
        fullest |= _fullest(net, blocks)
    return [name for name in fullest if can_be_named(name)]


def _fullest(net: Net, spots: Mapping[str, Spot]) -> dict[str, None]:
    """Return the tensors at the node where most bytes of `spots` are in use."""
    living = sums(len(net.steps), [(s.size, s.first, s.last) for s in spots.values()])
    index = living.index(max(living))
    used = {*net.steps[index].inputs, *net.steps[index].outputs}
    alive = [n for n, s in spots.items() if s.kind == "tensor" and s.first <= index <= s.last]
    return dict.fromkeys(sorted(alive, key=lambda name: (name in used, -spots[name].size)))
