"""Local search for correct arguments: move tensors to other memories and evaluate the verdict."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ...targets import Target
from ...targets.verdict import VerdictFinding
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..packer.memory.graph_facts import GraphFacts
from ..packer.memory.overruns import UNCONFIRMED_RULE, find_overruns
from ..packer.memory.plan import (
    Allocation,
    get_shared_memory_limit,
    plan_memory,
    resolve_placements,
    sum_live_bytes,
)
from ..packer.options import SHARE, PackerOptions
from ..packer.packer_graph import PackerGraph
from ..packer_profile import get_packer_profile
from .candidates import (
    ArgumentCandidate,
    find_multirow_linear_outputs,
    find_reshape_source,
    find_reshape_sources,
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

RANK_OVERRUN = 1  # correct, but writes past the memory plan
RANK_ASSUMED = 2  # expected to be correct, not verified
RANK_WRONG = 3  # packs, but computes wrong results
RANK_REFUSED = 4  # refused by the packer, for instance because it does not fit

#: Limits of `iterate_improvements`. The number of trials is chosen so that about this many nodes
#: are evaluated in total, within a minimum and a maximum.
_MAX_EVALUATED_NODES, _MIN_TRIALS, _MAX_TRIALS = 30000, 40, 600

#: Maximum tensors of a node that are moved together, and of other nodes that are moved alone.
_MAX_NODE_TENSORS, _MAX_OTHER_TENSORS = 4, 48

#: Rounds of `clear_overrun_regions`: moving a tensor may move another one into the overrun.
_MAX_CLEARING_ROUNDS = 8

#: Maximum trials of `iterate_spills`, and nodes that are planned in all of them. A graph with
#: hundreds of tiles gets few trials; `place_large_tensors_in_psram` handles it at once.
_MAX_SPILLS, _MAX_SPILL_WORK = 96, 96_000


def rank_verdict(verdict: DetailedVerdict) -> int:
    """Return the rank of `verdict`, lower is better: 0 if correct without warnings, else RANK_*.

    RANK_REFUSED if it does not pack, RANK_WRONG if it packs but is incorrect, RANK_ASSUMED if it is
    correct but depends on unmeasured facts, RANK_OVERRUN if it is correct but nodes write past the
    plan. The first that applies counts.
    """
    if not verdict.is_chip_ready:
        return RANK_WRONG if verdict.is_packable else RANK_REFUSED
    if verdict.assumptions:
        return RANK_ASSUMED
    return RANK_OVERRUN if _get_overrun_warnings(verdict) else 0


def iterate_spills(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> Iterator[ArgumentCandidate]:
    """Yield candidates that move tensors of the step with most live bytes to PSRAM, one by one.

    A tensor moves if that makes the plan smaller and adds no findings. The first pass moves the
    first such tensor, the second (thorough) the one that makes the plan smallest, also together
    with outputs of nodes that would become wrong. A pass yields its last candidate, with and
    without prefetching, and the search ends when one is correct; trials are limited.
    """
    max_trials = 0
    if prepared.net is not None:
        max_trials = min(_MAX_SPILLS, _MAX_SPILL_WORK // len(prepared.net.steps))
    for thorough in (False, True):
        trials = iter(range(max_trials))
        for prefetch in (True, False):
            candidate = ArgumentCandidate(prefetch=prefetch)
            verdict = evaluate_plan(prepared, target, candidate.to_options(base))
            while (
                spilled := _spill_one_tensor(
                    prepared, target, base, candidate, verdict, thorough, trials
                )
            ) is not None:
                candidate, verdict = spilled
            if candidate.psram_tensors:
                yield candidate
            if verdict.is_chip_ready:
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
    """Return `candidate` with one more tensor moved to PSRAM, and its verdict; None if none helps.

    A move helps if the plan needs less memory and has no more findings. Each tensor tried consumes
    an item of `trials`; the first that helps is taken, with `thorough` the one with the least
    memory, where outputs of nodes that would become wrong move along. Also None if `verdict` has no
    plan or its plan fits.
    """
    if verdict.memory_plan is None or verdict.memory_plan.fits:
        return None
    net = _require_net(verdict)
    assert prepared.facts is not None
    best, best_bytes = None, verdict.memory_plan.required_bytes
    for name, _ in zip(_get_spill_candidates(verdict, thorough), trials, strict=False):
        spilled, names = candidate, [name]
        for _ in range(1 + thorough):
            psram_tensors = dict.fromkeys(
                (*spilled.psram_tensors, *include_reshape_aliases(net, names))
            )
            spilled = replace(spilled, psram_tensors=tuple(psram_tensors))
            options = spilled.to_options(base)
            memory_plan = plan_memory(prepared.facts, options, best_bytes)
            if memory_plan is None:  # not smaller; evaluating the verdict would take longer
                break
            spilled_verdict = evaluate_plan(prepared, target, options, memory_plan)
            if _count_findings(spilled_verdict) <= _count_findings(verdict):
                best, best_bytes = (spilled, spilled_verdict), memory_plan.required_bytes
                break
            # A node may become correct again if its outputs are moved as well.
            newly_blamed = get_blamed_nodes(spilled_verdict) - get_blamed_nodes(verdict)
            names = _get_outputs_of(net, newly_blamed)
        if best is not None and not thorough:
            break
    return best


def get_blamed_nodes(verdict: DetailedVerdict) -> set[str]:
    """Return the names of the nodes with findings in `verdict`, except mere overrun warnings."""
    return {finding.node for finding in verdict.findings if finding.level != "plan"}


def _get_outputs_of(net: PackerGraph, nodes: Collection[str]) -> list[str]:
    """Return the outputs of all steps whose `origin`, a node of the user's graph, is in `nodes`.

    Names that option -m cannot contain are omitted.
    """
    outputs: list[str] = []
    for step in net.steps:
        if step.origin in nodes:
            outputs += (name for name in step.outputs if is_valid_option_name(name))
    return outputs


def clear_overrun_regions(
    prepared: PreparedGraph, target: Target, base: PackerOptions, start: ArgumentCandidate
) -> Iterator[ArgumentCandidate]:
    """Yield `start` with the tensors that overruns overwrite moved to PSRAM, once per round.

    The tensors of each round are added to those of earlier ones, because moving may place others in
    the overwritten region. Ends when no tensor is left, after `_MAX_CLEARING_ROUNDS`, or without a
    plan.
    """
    if prepared.facts is None:
        return
    candidate = start
    for _ in range(_MAX_CLEARING_ROUNDS):
        options = candidate.to_options(base)
        verdict = evaluate_plan(prepared, target, options)
        overwritten: list[str] = []
        for names in _find_overwritten_tensors(prepared.facts, verdict, options).values():
            overwritten += names
        psram_tensors = dict.fromkeys(
            (
                *candidate.psram_tensors,
                *include_reshape_aliases(_require_net(verdict), overwritten),
            )
        )
        if len(psram_tensors) == len(candidate.psram_tensors):
            return
        candidate = replace(candidate, psram_tensors=tuple(psram_tensors))
        yield candidate


def _find_overwritten_tensors(
    facts: GraphFacts, verdict: DetailedVerdict, options: PackerOptions
) -> dict[str, list[str]]:
    """Return node name -> tensors that the node overwrites past its work area.

    Every node that writes past its work area is a key, with an empty list if it overwrites no
    tensor that could move. Tensors are traced back through reshapes; names that -m cannot contain
    are left out. `verdict` is one of the graph of `facts` and must have a plan.
    """
    assert verdict.memory_plan is not None
    net = facts.net
    overruns = find_overruns(
        net,
        verdict.memory_plan,
        get_packer_profile(facts.target),
        resolve_placements(facts, options),
    )
    overwritten: dict[str, list[str]] = {}
    for overrun in overruns:
        sources = [find_reshape_source(net, name) for name in overrun.overwritten]
        overwritten[overrun.step.origin] = [n for n in sources if is_valid_option_name(n)]
    return overwritten


#: Rank, number of objections and number of tensors that they list; lower is better.
_Score = tuple[int, int, int]


class _BestFirstQueue:
    """Priority queue of evaluated candidates, the best first; each is evaluated only once."""

    def __init__(self, prepared: PreparedGraph, target: Target, base: PackerOptions) -> None:
        """Make an empty queue of candidates for `prepared`.

        `base` has the options all of them share.
        """
        self._prepared = prepared
        self._target = target
        self._base = base
        self._heap: list[tuple[_Score, int, ArgumentCandidate, DetailedVerdict]] = []
        self._seen: set[tuple[bool, bool, frozenset[str]]] = set()
        self._best_score: _Score | None = None

    @property
    def trial_count(self) -> int:
        """The number of different candidates added so far, also of those that do not fit."""
        return len(self._seen)

    def add(self, candidate: ArgumentCandidate) -> bool:
        """Evaluate `candidate` unless it was added before; return whether it is the best so far.

        Two candidates with equal prefetch, constant memory and PSRAM tensors are the same. Returns
        False for a repeated one and for one that does not fit in shared memory, which is not
        queued.
        """
        key = (candidate.prefetch, candidate.shared, frozenset(candidate.psram_tensors))
        if key in self._seen:
            return False
        self._seen.add(key)
        scored = _score_candidate(self._prepared, self._target, self._base, candidate)
        if scored is None:
            return False
        score, verdict = scored
        heapq.heappush(self._heap, (score, len(self._seen), candidate, verdict))
        is_best = self._best_score is None or score < self._best_score
        if is_best:
            self._best_score = score
        return is_best

    def pop(self) -> tuple[ArgumentCandidate, DetailedVerdict] | None:
        """Remove and return (best candidate, its verdict); None if the queue is empty."""
        if not self._heap:
            return None
        _, _, candidate, verdict = heapq.heappop(self._heap)
        return candidate, verdict


def iterate_improvements(
    prepared: PreparedGraph, target: Target, base: PackerOptions, start: ArgumentCandidate
) -> Iterator[ArgumentCandidate]:
    """Yield candidates with ever better scores by moving tensors of nodes with findings.

    A best-first search from `start`, with and without prefetching and constants in shared memory:
    the best candidate not yet expanded is expanded, even if it is worse than its parent, because
    one move may need another. Moves toggle tensors between PSRAM and shared memory; a start with
    all tensors in PSRAM begins with only those that must be. Ends when the best has no objections,
    when none is left, or after a limited number of evaluations. Yields nothing if preparing the
    graph gave findings.
    """
    assert prepared.facts is not None
    assert prepared.net is not None
    if prepared.findings:  # no placement resolves these
        return
    if start.all_psram:  # single tensors are moved: start with those that must be in PSRAM
        required = include_reshape_aliases(
            prepared.net, find_multirow_linear_outputs(prepared.net, target)
        )
        start = ArgumentCandidate(tuple(name for name in required if is_valid_option_name(name)))
    queue = _BestFirstQueue(prepared, target, base)
    for shared, prefetch in itertools.product((start.shared, False), (start.prefetch, False)):
        variant = replace(start, shared=shared, prefetch=prefetch)
        if queue.add(variant) and variant != start:
            yield variant
    max_trials = _MAX_EVALUATED_NODES // len(prepared.net.steps)
    max_trials = min(max(max_trials, _MIN_TRIALS), _MAX_TRIALS)
    while queue.trial_count < max_trials and (expanded := queue.pop()) is not None:
        candidate, verdict = expanded
        objections = _get_objections(verdict)
        if not objections:
            return
        options = candidate.to_options(base)
        for names in _iterate_moves(prepared.facts, verdict, options, objections[0].node):
            psram_tensors = tuple(_toggle_names(candidate.psram_tensors, names))
            moved = replace(candidate, psram_tensors=psram_tensors)
            if queue.add(moved):
                yield moved


def _iterate_moves(
    facts: GraphFacts, verdict: DetailedVerdict, options: PackerOptions, node: str
) -> Iterator[list[str]]:
    """Yield the lists of tensors to move to another memory because `node` has a finding.

    First combinations of its tensors and those that it overwrites; then, if it writes past its work
    area, single tensors of other nodes.
    """
    overwritten = _find_overwritten_tensors(facts, verdict, options)
    yield from _iterate_tensor_moves(verdict, node, overwritten.get(node, []))
    if node in overwritten:
        yield from _iterate_other_tensors(_require_net(verdict), node)


def _score_candidate(
    prepared: PreparedGraph, target: Target, base: PackerOptions, candidate: ArgumentCandidate
) -> tuple[_Score, DetailedVerdict] | None:
    """Return (score, verdict) of a candidate, or None if it does not fit in shared memory.

    The score is (rank of the verdict, number of objections, commas in their values, which count
    listed tensors); smaller is better. Objections are findings, or for a correct graph its
    assumptions and overrun warnings.
    """
    assert prepared.facts is not None
    options = candidate.to_options(base)
    max_bytes = get_shared_memory_limit(target, base) + 1
    memory_plan = plan_memory(prepared.facts, options, max_bytes)
    if memory_plan is None:
        return None
    verdict = evaluate_plan(prepared, target, options, memory_plan)
    objections = _get_objections(verdict)
    listed_tensors = sum(objection.value.count(",") for objection in objections)
    return (rank_verdict(verdict), len(objections), listed_tensors), verdict


def _get_objections(verdict: DetailedVerdict) -> list[VerdictFinding]:
    """Return the findings of `verdict` that concern correctness (any level but "plan").

    If there are none, its assumptions and the measured overrun warnings.
    """
    findings = [finding for finding in verdict.findings if finding.level != "plan"]
    return findings or [*verdict.assumptions, *_get_overrun_warnings(verdict)]


def _get_overrun_warnings(verdict: DetailedVerdict) -> list[VerdictFinding]:
    """Return the findings of level "plan": writes past the plan, without those never measured."""
    return [f for f in verdict.findings if f.level == "plan" and f.rule != UNCONFIRMED_RULE]


def _iterate_tensor_moves(
    verdict: DetailedVerdict, node: str, overwritten: Sequence[str]
) -> Iterator[list[str]]:
    """Yield combinations of 1 to 4 tensors of `node` and of `overwritten`, small ones first.

    At most four of each are combined; tensors that are reshaped from them are included. An input is
    tried both from the source of its reshapes on and alone. Names that -m cannot contain are left
    out.
    """
    net = _require_net(verdict)
    node_tensors: dict[str, None] = {}
    for step in net.steps:
        if step.origin != node:
            continue
        for name in (*step.inputs, *step.outputs):
            if not net.tensors[name].is_constant:
                node_tensors |= dict.fromkeys((find_reshape_source(net, name), name))
    own_names = [name for name in node_tensors if is_valid_option_name(name)]
    movable = list(
        dict.fromkeys((*own_names[:_MAX_NODE_TENSORS], *overwritten[:_MAX_NODE_TENSORS]))
    )
    for count in range(1, _MAX_NODE_TENSORS + 1):
        for names in itertools.combinations(movable, count):
            yield [n for n in include_reshape_aliases(net, names) if is_valid_option_name(n)]


def _iterate_other_tensors(net: PackerGraph, node: str) -> Iterator[list[str]]:
    """Yield the outputs of nodes other than `node` one by one, each with its reshaped aliases.

    In another memory, some of them make the common work area larger. At most `_MAX_OTHER_TENSORS`.
    """
    outputs = _get_outputs_of(net, {step.origin for step in net.steps if step.origin != node})
    for name in outputs[:_MAX_OTHER_TENSORS]:
        yield include_reshape_aliases(net, [name])


def _toggle_names(names: Sequence[str], toggled: Sequence[str]) -> list[str]:
    """Return `names` without those in `toggled`, then those of `toggled` that were not in it."""
    return [n for n in names if n not in toggled] + [n for n in toggled if n not in names]


def _require_net(verdict: DetailedVerdict) -> PackerGraph:
    """Return the graph of a verdict that must have one (asserted)."""
    assert verdict.graph is not None
    return verdict.graph


def _count_findings(verdict: DetailedVerdict) -> int:
    """Return the number of findings, without overrun warnings and those on the size of the plan."""
    return sum(f.level != "plan" and f.node != "shared memory" for f in verdict.findings)


def _get_spill_candidates(verdict: DetailedVerdict, thorough: bool) -> list[str]:
    """Return the tensors in shared memory that are live at the step with most live bytes.

    Tensors that the step does not use come first, and large ones before small ones. With
    `thorough`, the tensors at the step with the most reserved bytes follow, where a tensor made in
    place reserves a block for the lifetime of its root. Names that -m cannot contain are left out.
    """
    assert verdict.memory_plan is not None
    net = _require_net(verdict)
    allocations = {
        name: allocation
        for name, allocation in verdict.memory_plan.allocations.items()
        if allocation.memory == SHARE
    }
    peak_tensors = _get_tensors_at_peak(net, allocations)
    if thorough:
        lifetimes: dict[str, tuple[int, int]] = {}
        sources = find_reshape_sources(net)
        roots = {name: sources.get(name, name) for name in allocations}
        for name, root in roots.items():
            allocation = allocations[name]
            first, last = lifetimes.get(root, (allocation.first_step, allocation.last_step))
            lifetimes[root] = (
                min(first, allocation.first_step),
                max(last, allocation.last_step),
            )
        reserved_blocks = {}
        for name, allocation in allocations.items():
            first, last = lifetimes[roots[name]]
            reserved_blocks[name] = allocation._replace(first_step=first, last_step=last)
        peak_tensors |= _get_tensors_at_peak(net, reserved_blocks)
    return [name for name in peak_tensors if is_valid_option_name(name)]


def _get_tensors_at_peak(
    net: PackerGraph, allocations: Mapping[str, Allocation]
) -> dict[str, None]:
    """Return the tensors that are live at the step where most bytes of `allocations` are in use.

    They are the keys of a dict with None values: first tensors that this step does not use, then by
    decreasing size. Buffers and work areas are left out.
    """
    lifetimes = [(a.size, a.first_step, a.last_step) for a in allocations.values()]
    live_bytes = sum_live_bytes(len(net.steps), lifetimes)
    peak_index = live_bytes.index(max(live_bytes))
    peak_step = net.steps[peak_index]
    used_names = {*peak_step.inputs, *peak_step.outputs}
    live_tensors = [
        name
        for name, allocation in allocations.items()
        if allocation.kind == "tensor"
        and allocation.first_step <= peak_index <= allocation.last_step
    ]
    return dict.fromkeys(
        sorted(live_tensors, key=lambda name: (name in used_names, -allocations[name].size))
    )
