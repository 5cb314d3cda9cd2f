"""Faster arguments than the first that are right.

Constants in shared memory, fewer tensors outside, prefetching.
None makes a promise weaker, and none leaves more work without a price. Time is the upper end of the
range; what has neither price nor bound counts as copied from external memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....formats import LAYER_NORM
from .... import Target
from ....latency import Latency
from ...kernel_costs import ARCS
from ...packer_profile import get_kernel_costs
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..memory.plan import get_shared_memory_limit, plan_memory
from ..options import PackerOptions
from .candidates import ArgumentCandidate, include_reshape_aliases, is_valid_option_name
from .local_search import rank_verdict

__all__ = [
    "EvaluatedCandidate",
    "estimate_max_saving",
    "find_faster_arguments",
    "get_comparison_cycles",
]

#: A candidate and the verdict under it.
EvaluatedCandidate = tuple[ArgumentCandidate, DetailedVerdict]

_MAX_TENSORS_PER_MOVE = 6  # tensors that are tried for each move
_MAX_MOVES = 4


def get_comparison_cycles(latency: Latency, target: Target) -> float:
    """Return the cycles that arguments and forms are compared by."""
    copies = (get_kernel_costs(target) or ARCS).copies["memcpy_from_psram"]
    return latency.high + sum(
        copies.cycles(work.bytes) for work in latency.unpriced if work.bound is None and work.bytes
    )


def find_faster_arguments(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    current: EvaluatedCandidate,
    min_residency_gain: float | None,
) -> EvaluatedCandidate:
    """Return the fastest of `current` and what lies near it.

    The same where nothing is known of its time.
    min_residency_gain : the share of the time that constants in shared memory must save; None: they
    stay outside.
    """
    if not current[1].is_chip_ready or current[1].comparison_latency is None:
        return current
    for _ in range(_MAX_MOVES):
        better = _find_better(prepared, target, base, current, _iterate_neighbors(current), 1.0)
        if better is None:
            break
        current = better
    net = current[1].graph
    if (
        min_residency_gain is None
        or net is None
        or any(step.op == LAYER_NORM.name for step in net.steps)
    ):
        return current  # a LayerNormInt may write behind its plan, where the constants would lie
    if current[0].prefetch and estimate_max_saving(
        current[1], target
    ) <= min_residency_gain * _get_verdict_cycles(current[1], target):
        return current
    kept = replace(current[0], shared=True)
    return (
        _find_better(
            prepared,
            target,
            base,
            current,
            iter(dict.fromkeys([kept, replace(kept, psram_tensors=())])),
            1.0 - min_residency_gain,
        )
        or current
    )


def estimate_max_saving(verdict: DetailedVerdict, target: Target) -> float:
    """Return the cycles that constants in shared memory save at most, where they are prefetched.

    Kernels take as long as before: only waits, copies of data, and what has no bound can go.
    """
    time = verdict.comparison_latency
    return (
        0.0
        if time is None
        else time.waits + time.moved + get_comparison_cycles(time, target) - time.high
    )


def _find_better(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    current: EvaluatedCandidate,
    trials: Iterator[ArgumentCandidate],
    max_time_share: float,
) -> EvaluatedCandidate | None:
    """Return the fastest of `trials` that is as safe as `current` and takes less than that share of its time."""
    best, least = None, max_time_share * _get_verdict_cycles(current[1], target)
    for candidate in trials:
        options = candidate.to_options(base)
        memory = (
            plan_memory(prepared.net, target, options, get_shared_memory_limit(target, base) + 1)
            if prepared.net is not None
            else None
        )
        if memory is None:
            continue
        said = evaluate_plan(prepared, target, options, memory)
        if (
            said.is_chip_ready
            and rank_verdict(said) <= rank_verdict(current[1])
            and _get_verdict_cycles(said, target) < least
        ):
            best, least = (candidate, said), _get_verdict_cycles(said, target)
    return best


def _get_verdict_cycles(verdict: DetailedVerdict, target: Target) -> float:
    time = verdict.comparison_latency
    return float("inf") if time is None else get_comparison_cycles(time, target)


def _iterate_neighbors(current: EvaluatedCandidate) -> Iterator[ArgumentCandidate]:
    """Yield candidates with one tensor less in external memory.

    Without prefetching also those with, and one more.
    """
    candidate, said = current
    if said.graph is None or candidate.all_psram:
        return
    sizes = {t.name: t.size_bytes for t in said.graph.iterate_tensors()}
    for name in sorted(candidate.psram_tensors, key=lambda name: -sizes.get(name, 0))[
        :_MAX_TENSORS_PER_MOVE
    ]:
        gone = {name, *include_reshape_aliases(said.graph, [name])}
        yield replace(
            candidate, psram_tensors=tuple(n for n in candidate.psram_tensors if n not in gone)
        )
    if candidate.prefetch:
        return
    hidden = replace(candidate, prefetch=True)
    yield hidden
    others = [
        name for name in sizes if name not in candidate.psram_tensors and is_valid_option_name(name)
    ]
    for name in sorted(others, key=lambda name: -sizes[name])[:_MAX_TENSORS_PER_MOVE]:
        yield replace(
            hidden,
            psram_tensors=(*candidate.psram_tensors, *include_reshape_aliases(said.graph, [name])),
        )
