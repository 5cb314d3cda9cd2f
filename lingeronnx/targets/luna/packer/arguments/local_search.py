"""From a candidate that does not do to one that does.

Tensors are moved one after the other, and the verdict asked.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from .... import Target
from ....verdict import VerdictFinding
from ...packer_profile import get_packer_profile
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..memory.overruns import UNCONFIRMED_RULE, find_overruns
from ..memory.plan import (
    Allocation,
    get_shared_memory_limit,
    plan_memory,
    resolve_placements,
    sum_live_bytes,
)
from ..options import SHARE, PackerOptions
from ..packer_graph import PackerGraph
from .candidates import (
    ArgumentCandidate,
    find_multirow_linear_outputs,
    find_reshape_source,
    include_reshape_aliases,
    is_valid_option_name,
)

__all__ = [
    "RANK_ASSUMED",
    "RANK_OVERRUN",
    "RANK_REFUSED",
    "RANK_WRONG",
    "clear_overrun_regions",
    "get_blamed_nodes",
    "iterate_improvements",
    "iterate_spills",
    "rank_verdict",
]

RANK_OVERRUN = 1  # the rank of what is right and writes behind its plan
RANK_ASSUMED = 2  # of what is right as far as is known
RANK_WRONG = 3  # of what packs and gives other integers
RANK_REFUSED = 4  # of what the packer refuses, as it does what does not fit


def rank_verdict(verdict: DetailedVerdict) -> int:
    """Return how good a verdict is.

    0 for right, 1 for right and past the plan, then the ranks above.
    """
    if verdict.is_chip_ready:
        return (
            RANK_ASSUMED
            if verdict.assumptions
            else RANK_OVERRUN
            if _get_overrun_warnings(verdict)
            else 0
        )
    return RANK_WRONG if verdict.is_packable else RANK_REFUSED


def iterate_spills(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> Iterator[ArgumentCandidate]:
    """Yield candidates that move one tensor after the other out of the fullest node, where that does no harm.

    Each time the first tensor that leaves a smaller plan; then, thoroughly, the one that leaves the
    smallest, also with what is written by nodes that would be wrong then: a sum may want operand
    and result outside. None where nothing but the shared memory stands against the graph, or where
    no tensor may go.
    """
    most = (
        0 if prepared.net is None else min(_MAX_SPILLS, _MAX_SPILL_WORK // len(prepared.net.steps))
    )
    for thorough in (False, True):
        trials = iter(range(most))
        for prefetch in (True, False):
            candidate = ArgumentCandidate(prefetch=prefetch)
            said = evaluate_plan(prepared, target, candidate.to_options(base))
            while (
                better := _spill_one_tensor(
                    prepared, target, base, candidate, said, thorough, trials
                )
            ) is not None:
                candidate, said = better
            if candidate.psram_tensors:
                yield candidate
            if said.is_chip_ready:
                return


def _spill_one_tensor(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    candidate: ArgumentCandidate,
    verdict: DetailedVerdict,
    thorough: bool,
    trials: Iterator[int],
) -> tuple[ArgumentCandidate, DetailedVerdict] | None:
    """Return `candidate` with one more tensor moved: a smaller plan, and no more findings.

    None where it fits.
    """
    if verdict.memory_plan is None or verdict.memory_plan.fits:
        return None
    best, need = None, verdict.memory_plan.required_bytes
    for name, _ in zip(_get_spill_candidates(verdict, thorough), trials, strict=False):
        moved, names = candidate, [name]
        for _ in range(1 + thorough):
            moved = replace(
                moved,
                psram_tensors=tuple(
                    dict.fromkeys(
                        (
                            *moved.psram_tensors,
                            *include_reshape_aliases(_require_net(verdict), names),
                        )
                    )
                ),
            )
            memory = plan_memory(_require_net(verdict), target, moved.to_options(base), need)
            if memory is None:  # it needs no less: known before all that a verdict asks
                break
            after = evaluate_plan(prepared, target, moved.to_options(base), memory)
            if _count_findings(after) <= _count_findings(verdict):
                best, need = (moved, after), memory.required_bytes
                break
            names = _get_outputs_of(
                _require_net(verdict), get_blamed_nodes(after) - get_blamed_nodes(verdict)
            )  # a node may mind no more with these
        if best is not None and not thorough:
            break
    return best


def get_blamed_nodes(verdict: DetailedVerdict) -> set[str]:
    """Return the nodes that something is said against."""
    return {f.node for f in verdict.findings if f.level != "plan"}


def _get_outputs_of(net: PackerGraph, nodes: Collection[str]) -> list[str]:
    """Return what some nodes of the user's graph write."""
    return [
        n
        for step in net.steps
        if step.origin in nodes
        for n in step.outputs
        if is_valid_option_name(n)
    ]


def clear_overrun_regions(
    prepared: PreparedGraph, target: Target, base: PackerOptions, start: ArgumentCandidate
) -> Iterator[ArgumentCandidate]:
    """Yield `start` with what lies behind the work area moved to PSRAM, and so on while something lies there."""
    candidate = start
    for _ in range(_MAX_CLEARING_ROUNDS):
        said = evaluate_plan(prepared, target, candidate.to_options(base))
        if said.memory_plan is None:
            return
        behind = [
            name
            for names in _find_overrun_tensors(said, target, candidate.to_options(base)).values()
            for name in names
        ]
        names = dict.fromkeys(
            (*candidate.psram_tensors, *include_reshape_aliases(_require_net(said), behind))
        )
        if len(names) == len(candidate.psram_tensors):
            return
        candidate = replace(candidate, psram_tensors=tuple(names))
        yield candidate


def _find_overrun_tensors(
    verdict: DetailedVerdict, target: Target, options: PackerOptions
) -> dict[str, list[str]]:
    """Return {node that writes past its work area: what lies there}, before it was reshaped."""
    assert verdict.memory_plan is not None
    net = _require_net(verdict)
    past = find_overruns(
        net,
        verdict.memory_plan,
        get_packer_profile(target).work_area_table,
        resolve_placements(net, options),
    )
    return {
        f.step.origin: [
            n
            for n in (find_reshape_source(net, hit) for hit in f.overwritten)
            if is_valid_option_name(n)
        ]
        for f in past
    }


def iterate_improvements(
    prepared: PreparedGraph, target: Target, base: PackerOptions, start: ArgumentCandidate
) -> Iterator[ArgumentCandidate]:
    """Yield better and better candidates, found by moving the tensors of a node that something is said of.

    What is reshaped moves along, and what lies behind a work area may move as well. Of all that was
    tried the best is gone on from, be it worse than where it came from: one move may need another.
    With prefetching and without.
    """
    assert prepared.net is not None
    if prepared.findings:  # no place makes up for these
        return
    if start.all_psram:  # named tensors are moved: begin with those that must be
        start = ArgumentCandidate(
            tuple(
                n
                for n in include_reshape_aliases(
                    prepared.net, find_multirow_linear_outputs(prepared.net, target)
                )
                if is_valid_option_name(n)
            )
        )
    open_ends: list[tuple[tuple[int, int, int], int, ArgumentCandidate, DetailedVerdict]] = []
    tried: set[tuple[bool, bool, frozenset[str]]] = set()
    least: tuple[int, int, int] | None = None

    def look(candidate: ArgumentCandidate) -> bool:
        """Judge a candidate that is new; tell whether it is the best."""
        nonlocal least
        key = (candidate.prefetch, candidate.shared, frozenset(candidate.psram_tensors))
        if key in tried:
            return False
        tried.add(key)
        weighed = _score_candidate(prepared, target, base, candidate)
        if weighed is None:
            return False
        heapq.heappush(open_ends, (weighed[0], len(tried), candidate, weighed[1]))
        better, least = least is None or weighed[0] < least, min(weighed[0], least or weighed[0])
        return better

    for shared, prefetch in itertools.product((start.shared, False), (start.prefetch, False)):
        begin = replace(start, shared=shared, prefetch=prefetch)
        if look(begin) and begin != start:
            yield begin
    most = min(max(_TRIED_NODES // len(prepared.net.steps), _FEWEST_TRIALS), _MOST_TRIALS)
    while open_ends and len(tried) < most:
        _, _, candidate, said = heapq.heappop(open_ends)
        doubts = _get_objections(said)
        if not doubts:
            return
        node, past = doubts[0].node, _find_overrun_tensors(said, target, candidate.to_options(base))
        others = _iterate_other_tensors(_require_net(said), node) if node in past else iter(())
        for names in itertools.chain(_iterate_tensor_moves(said, node, past.get(node, [])), others):
            other = replace(
                candidate, psram_tensors=tuple(_toggle_names(candidate.psram_tensors, names))
            )
            if look(other):
                yield other


def _score_candidate(
    prepared: PreparedGraph, target: Target, base: PackerOptions, candidate: ArgumentCandidate
) -> tuple[tuple[int, int, int], DetailedVerdict] | None:
    """Return the rank of a candidate, how much there is to be said and how many tensors that names, with the verdict.

    None for one that does not fit.
    """
    assert prepared.net is not None
    options = candidate.to_options(base)
    memory = plan_memory(prepared.net, target, options, get_shared_memory_limit(target, base) + 1)
    if memory is None:
        return None
    said = evaluate_plan(prepared, target, options, memory)
    doubts = _get_objections(said)
    return (rank_verdict(said), len(doubts), sum(f.value.count(",") for f in doubts)), said


def _get_objections(verdict: DetailedVerdict) -> list[VerdictFinding]:
    """Return what speaks against a verdict, or what a right one hangs on, or writes behind its plan."""
    return [f for f in verdict.findings if f.level != "plan"] or [
        *verdict.assumptions,
        *_get_overrun_warnings(verdict),
    ]


def _get_overrun_warnings(verdict: DetailedVerdict) -> list[VerdictFinding]:
    """Return the warnings of writes behind the plan, but for those that nobody measured."""
    return [f for f in verdict.findings if f.level == "plan" and f.rule != UNCONFIRMED_RULE]


def _iterate_tensor_moves(
    verdict: DetailedVerdict, node: str, overwritten: Sequence[str]
) -> Iterator[list[str]]:
    """Yield the tensors of a node and those `overwritten` in all combinations, the fewest first, with what is reshaped.

    What a node reads moves as a whole, or from the last reshape on.
    """
    net = _require_net(verdict)
    steps = [step for step in net.steps if step.origin == node]
    names = [
        n for step in steps for n in (*step.inputs, *step.outputs) if not net.tensors[n].is_constant
    ]
    own = dict.fromkeys(
        n
        for name in names
        for n in (find_reshape_source(net, name), name)
        if is_valid_option_name(n)
    )
    ends = list(dict.fromkeys((*list(own)[:_SIDES], *overwritten[:_SIDES])))
    for count in range(1, _SIDES + 1):
        for some in itertools.combinations(ends, count):
            yield [n for n in include_reshape_aliases(net, some) if is_valid_option_name(n)]


def _iterate_other_tensors(net: PackerGraph, node: str) -> Iterator[list[str]]:
    """Yield the tensors of all other nodes one by one.

    Written elsewhere, some have a larger work area planned.
    """
    names = [
        n
        for step in net.steps
        if step.origin != node
        for n in step.outputs
        if is_valid_option_name(n)
    ]
    yield from (include_reshape_aliases(net, [name]) for name in names[:_OTHERS])


def _toggle_names(names: Sequence[str], moved: Sequence[str]) -> list[str]:
    """Return `names` with what is in `moved` taken out where it is in, else added."""
    return [n for n in names if n not in moved] + [n for n in moved if n not in names]


#: Nodes that may be judged in all trials, the bounds of the trials, tensors of a node that are moved, and others.
_TRIED_NODES, _FEWEST_TRIALS, _MOST_TRIALS, _SIDES, _OTHERS = 30000, 40, 600, 4, 48

#: Rounds of moving what lies behind a work area: what comes to lie there next may be in the way, too.
_MAX_CLEARING_ROUNDS = 8

#: Trials of single tensors, and the nodes that are planned in all of them: of a graph in hundreds of tiles there are
#: few, since `outside` answers for it at once.
_MAX_SPILLS, _MAX_SPILL_WORK = 96, 96_000


def _require_net(verdict: DetailedVerdict) -> PackerGraph:
    assert verdict.graph is not None
    return verdict.graph


def _count_findings(verdict: DetailedVerdict) -> int:
    """Return the number of findings, but for the size of the plan."""
    return sum(f.level != "plan" and f.node != "shared memory" for f in verdict.findings)


def _get_spill_candidates(verdict: DetailedVerdict, thorough: bool) -> list[str]:
    """Return the tensors in shared memory at its fullest node.

    First those it does not use, the largest first.
    thorough : then those at the node where most blocks are taken. What is made in place may have a
    block that it does not use, for as long as the tensor lives that it is made of.
    """
    assert verdict.memory_plan is not None
    net = _require_net(verdict)
    spots = {n: s for n, s in verdict.memory_plan.allocations.items() if s.memory == SHARE}
    fullest = _get_tensors_at_peak(net, spots)
    if thorough:
        lives: dict[str, tuple[int, int]] = {}
        roots = {name: find_reshape_source(net, name) for name in spots}
        for name, origin in roots.items():
            first, last = lives.get(origin, (spots[name].first_step, spots[name].last_step))
            lives[origin] = min(first, spots[name].first_step), max(last, spots[name].last_step)
        blocks = {
            n: s._replace(first_step=lives[roots[n]][0], last_step=lives[roots[n]][1])
            for n, s in spots.items()
        }
        fullest |= _get_tensors_at_peak(net, blocks)
    return [name for name in fullest if is_valid_option_name(name)]


def _get_tensors_at_peak(net: PackerGraph, spots: Mapping[str, Allocation]) -> dict[str, None]:
    """Return the tensors at the node where most bytes of `spots` are in use."""
    living = sum_live_bytes(
        len(net.steps), [(s.size, s.first_step, s.last_step) for s in spots.values()]
    )
    index = living.index(max(living))
    used = {*net.steps[index].inputs, *net.steps[index].outputs}
    alive = [
        n for n, s in spots.items() if s.kind == "tensor" and s.first_step <= index <= s.last_step
    ]
    return dict.fromkeys(sorted(alive, key=lambda name: (name in used, -spots[name].size)))
