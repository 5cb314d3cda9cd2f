"""Search for faster arguments, starting from the first correct ones.

Constants in shared memory, fewer tensors in PSRAM, and prefetching are tried. No change may worsen
the rank of the verdict. Times are upper bounds of the latency range; work that has neither a cost
nor a bound counts as a copy from external memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ...operators.integer_ops import LAYER_NORM
from ...targets import Target
from ...targets.latency import Latency
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..kernel_costs import ARCS
from ..packer.memory.plan import get_shared_memory_limit, plan_memory
from ..packer.options import PackerOptions
from ..packer_profile import get_kernel_costs
from .candidates import ArgumentCandidate, include_reshape_aliases, is_valid_option_name
from .local_search import rank_verdict

__all__ = [
    "EvaluatedCandidate",
    "estimate_max_saving",
    "find_faster_arguments",
    "get_comparison_cycles",
]

_MAX_TENSORS_PER_MOVE = 6  # tensors that are tried for each move
_MAX_MOVES = 4


class EvaluatedCandidate(NamedTuple):
    """A candidate and the verdict on the graph with its arguments."""

    candidate: ArgumentCandidate
    verdict: DetailedVerdict


def get_comparison_cycles(latency: Latency, target: Target) -> float:
    """Return the cycles by which arguments and graph forms are compared.

    It is the upper bound of `latency`, plus copies from PSRAM for the bytes of work with neither
    cost nor bound. Copies cost as on the target, or as on arcs if its costs are unknown.
    """
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
    """Search the neighbors of `current` for faster arguments that are as safe; return the fastest.

    At most `_MAX_MOVES` moves of tensors or prefetching, then constants in shared memory, unless
    the graph has a LayerNormInt.

    Parameters
    ----------
    prepared
        The graph, prepared with `base`.
    current
        Start of the search; returned unchanged if it is not correct or its latency is unknown.
    min_residency_gain
        Fraction of the time that constants in shared memory must save; None leaves them in PSRAM.
    """
    if not current.verdict.is_chip_ready or current.verdict.comparison_latency is None:
        return current
    for _ in range(_MAX_MOVES):
        neighbors = _iterate_neighbors(current)
        better = _find_better(prepared, target, base, current, neighbors, 1.0)
        if better is None:
            break
        current = better
    net = current.verdict.graph
    if min_residency_gain is None or net is None:
        return current
    if any(step.op == LAYER_NORM.name for step in net.steps):
        return current  # a LayerNormInt may write past its plan, where the constants would be
    min_saving = min_residency_gain * _get_verdict_cycles(current.verdict, target)
    if current.candidate.prefetch and estimate_max_saving(current.verdict, target) <= min_saving:
        return current
    resident = replace(current.candidate, shared=True)
    candidates = dict.fromkeys([resident, replace(resident, psram_tensors=())])
    max_time_fraction = 1.0 - min_residency_gain
    better = _find_better(prepared, target, base, current, candidates, max_time_fraction)
    return current if better is None else better


def estimate_max_saving(verdict: DetailedVerdict, target: Target) -> float:
    """Estimate the cycles that constants in shared memory can save at most, if prefetched now.

    The time of the kernels does not change: only waits, copies of data, and work without a bound
    can be saved. 0 if the latency of `verdict` is unknown.
    """
    latency = verdict.comparison_latency
    if latency is None:
        return 0.0
    return latency.waits + latency.moved + get_comparison_cycles(latency, target) - latency.high


def _find_better(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    current: EvaluatedCandidate,
    candidates: Iterable[ArgumentCandidate],
    max_time_fraction: float,
) -> EvaluatedCandidate | None:
    """Return the fastest of `candidates` that is correct and as safe as `current`, or None.

    It must fit in shared memory, have no worse rank, and take less than `max_time_fraction` of the
    cycles of `current`. None also if preparing gave no graph.
    """
    if prepared.facts is None:
        return None
    best = None
    best_cycles = max_time_fraction * _get_verdict_cycles(current.verdict, target)
    max_bytes = get_shared_memory_limit(target, base) + 1
    for candidate in candidates:
        options = candidate.to_options(base)
        memory_plan = plan_memory(prepared.facts, options, max_bytes)
        if memory_plan is None:
            continue
        verdict = evaluate_plan(prepared, target, options, memory_plan)
        cycles = _get_verdict_cycles(verdict, target)
        if (
            verdict.is_chip_ready
            and rank_verdict(verdict) <= rank_verdict(current.verdict)
            and cycles < best_cycles
        ):
            best, best_cycles = EvaluatedCandidate(candidate, verdict), cycles
    return best


def _get_verdict_cycles(verdict: DetailedVerdict, target: Target) -> float:
    """Return the cycles for comparison of a verdict; infinity if its latency is unknown."""
    latency = verdict.comparison_latency
    return float("inf") if latency is None else get_comparison_cycles(latency, target)


def _iterate_neighbors(current: EvaluatedCandidate) -> Iterator[ArgumentCandidate]:
    """Yield candidates with one tensor (and its aliases) less in PSRAM, the largest first.

    If `current` does not prefetch, then also the candidate that does, alone and with one more
    tensor in PSRAM. At most `_MAX_TENSORS_PER_MOVE` tensors each; nothing without a graph or if all
    tensors are in PSRAM.
    """
    candidate, net = current.candidate, current.verdict.graph
    if net is None or candidate.all_psram:
        return
    sizes = {tensor.name: tensor.size_bytes for tensor in net.iterate_tensors()}
    by_size = sorted(candidate.psram_tensors, key=lambda name: -sizes.get(name, 0))
    for name in by_size[:_MAX_TENSORS_PER_MOVE]:
        removed = {name, *include_reshape_aliases(net, [name])}
        remaining = tuple(other for other in candidate.psram_tensors if other not in removed)
        yield replace(candidate, psram_tensors=remaining)
    if candidate.prefetch:
        return
    prefetching = replace(candidate, prefetch=True)
    yield prefetching
    shared_tensors = [
        name for name in sizes if name not in candidate.psram_tensors and is_valid_option_name(name)
    ]
    for name in sorted(shared_tensors, key=lambda name: -sizes[name])[:_MAX_TENSORS_PER_MOVE]:
        added = include_reshape_aliases(net, [name])
        yield replace(prefetching, psram_tensors=(*candidate.psram_tensors, *added))
