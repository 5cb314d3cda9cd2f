"""Selection of the packer's arguments for a graph.

The candidates are those that were measured to help: each is a set of tensors to place in PSRAM,
with or without prefetching, and settings that help single operators. If none is correct, tensors
are moved one after the other. Every candidate is checked by the verdict on the whole graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx

from ...common.escaping import join_shell
from ...ir import ir
from ...targets import Target
from ...targets.objective import TIME, can_keep_constants_resident, get_objective
from ...targets.verdict import PackerArguments
from ..evaluation import (
    DetailedVerdict,
    PreparedGraph,
    evaluate_plan,
    prepare_graph,
    read_known_file,
)
from ..packer.memory.lower_bounds import compute_min_shared_bytes
from ..packer.memory.plan import MemoryPlan, get_shared_memory_limit, plan_memory
from ..packer.options import SHARE, PackerOptions
from ..packer_profile import get_kernel_costs, get_packer_profile
from ..result_cache import ResultCache
from .candidates import ArgumentCandidate, iterate_candidates
from .local_search import (
    RANK_ASSUMED,
    RANK_OVERRUN,
    RANK_REFUSED,
    RANK_WRONG,
    clear_overrun_regions,
    iterate_improvements,
    iterate_spills,
    rank_verdict,
)
from .psram_first import place_large_tensors_in_psram
from .speed import EvaluatedCandidate, find_faster_arguments

__all__ = [
    "EvaluatedArguments",
    "format_command",
    "get_min_residency_gain",
    "has_resident_constants",
    "make_base_options",
    "select_argv",
    "select_fastest_arguments",
    "select_safest_arguments",
    "select_safest_for",
]

#: Fraction of the time that resident constants must save, unless the objective is time, because
#: they occupy shared memory permanently.
_MIN_RESIDENCY_GAIN = 0.05


@dataclass(frozen=True)
class EvaluatedArguments(PackerArguments):
    """Chosen arguments with the detailed verdict.

    first : verdict with the first correct arguments, if faster ones were searched for.
    """

    verdict: DetailedVerdict
    first: DetailedVerdict | None = None


#: The comparison of graph forms evaluates two graphs, and each part of a partitioned graph is
#: evaluated again when the memory of the other parts is known.
_CACHE: ResultCache[EvaluatedArguments] = ResultCache()


def select_argv(graph: ir.Model | onnx.ModelProto, target: Target) -> list[str]:
    """Select the fastest correct packer arguments for `graph`, without file names.

    If none is correct, the best ones are returned.

    Raises
    ------
    ConfigError
        If the target has no packer.
    """
    return list(select_fastest_arguments(graph, target).argv)


def select_fastest_arguments(
    graph: ir.Model | onnx.ModelProto, target: Target, prepared: PreparedGraph | None = None
) -> EvaluatedArguments:
    """Select the fastest packer arguments with which `graph` is correct; cached by content.

    On a chip whose own kernel costs are unknown the first correct arguments are taken, unless the
    objective of the model is time. If no arguments are correct, the best ones are returned.

    Parameters
    ----------
    prepared
        The graph, if it was prepared before with `make_base_options`.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    objective = get_objective(proto)
    can_keep_resident = can_keep_constants_resident(proto)
    settings = (objective, can_keep_resident, proto.opset_import)
    cache_key = proto.graph.SerializeToString(deterministic=True) + str(settings).encode()
    return _CACHE.get_or_compute(
        cache_key,
        target,
        lambda: _select_fastest(proto, target, objective, can_keep_resident, prepared),
    )


def _select_fastest(
    proto: onnx.ModelProto,
    target: Target,
    objective: str,
    can_keep_resident: bool,
    prepared: PreparedGraph | None,
) -> EvaluatedArguments:
    """Select the fastest correct packer arguments of `proto`, without a cache.

    The first correct arguments are improved only if kernel costs of the chip are known or
    `objective` is TIME. `can_keep_resident` allows constants in shared memory; `prepared` None
    prepares the graph here. If none is correct, the best ones are returned.
    """
    base = make_base_options(proto, target)
    if prepared is None:
        prepared = prepare_graph(read_known_file(proto), target, base)
    first = _find_first_correct(prepared, target, base)
    if not first.verdict.is_chip_ready:
        first = place_large_tensors_in_psram(prepared, target, base, first)
    if get_kernel_costs(target) is None and objective != TIME:
        return EvaluatedArguments(first.candidate.to_argv(base), first.verdict)
    min_gain = get_min_residency_gain(objective) if can_keep_resident else None
    fastest = find_faster_arguments(prepared, target, base, first, min_gain)
    return EvaluatedArguments(fastest.candidate.to_argv(base), fastest.verdict, first.verdict)


def select_safest_arguments(
    graph: ir.Model | onnx.ModelProto, target: Target
) -> EvaluatedArguments:
    """Select the first arguments, in the order of the candidates, with which `graph` is correct.

    They are not improved for speed. If none is correct, the best ones are returned.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    base = make_base_options(proto, target)
    return select_safest_for(prepare_graph(proto, target, base), target, base)


def make_base_options(proto: onnx.ModelProto, target: Target) -> PackerOptions:
    """Return the options that every candidate has: the chip, and 1 for each symbolic dimension."""
    symbol_sizes: dict[str, int] = {}
    for value in proto.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                symbol_sizes[dimension.dim_param] = 1
    return PackerOptions(platform=get_packer_profile(target).name, symbol_sizes=symbol_sizes)


def select_safest_for(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> EvaluatedArguments:
    """Select the first correct arguments of a graph that was prepared with `base`.

    They are not improved for speed. If none is correct, the best ones are returned.
    """
    first = _find_first_correct(prepared, target, base)
    return EvaluatedArguments(first.candidate.to_argv(base), first.verdict)


def get_min_residency_gain(objective: str) -> float:
    """Return the fraction of the time that constants in shared memory must save to be placed there.

    0 for the objective "time", otherwise 0.05, because they occupy shared memory permanently.
    """
    return 0.0 if objective == TIME else _MIN_RESIDENCY_GAIN


def has_resident_constants(argv: Iterable[str]) -> bool:
    """Whether the packer's arguments `argv` place all constants in shared memory."""
    return f"params:{SHARE}" in " ".join(argv)


class _ScoredCandidate(NamedTuple):
    """An evaluated candidate.

    key : rank, number of findings, and index; lower is better.
    """

    key: tuple[int, int, int]
    candidate: ArgumentCandidate
    verdict: DetailedVerdict

    @property
    def rank(self) -> int:
        """The rank of the verdict: 0 if correct without warnings, else a constant RANK_*."""
        return self.key[0]


def _find_first_correct(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> EvaluatedCandidate:
    """Return the first candidate that is correct without warnings, or else the best one.

    "Best" is the lowest rank, then the fewest findings. If no listed candidate is correct without
    warnings, tensors are moved in searches that start with the best one.

    Parameters
    ----------
    prepared
        The graph, prepared with `base`.
    """
    best, oversized = _evaluate_fitting_candidates(prepared, target, base)
    if best is None or best.rank == RANK_REFUSED:
        best = _evaluate_oversized_candidates(prepared, target, base, oversized, best)
    for iterate_further in (clear_overrun_regions, iterate_improvements):
        if best.rank not in (RANK_OVERRUN, RANK_ASSUMED, RANK_WRONG):
            continue
        further = iterate_further(prepared, target, base, best.candidate)
        for index, candidate in enumerate(further):
            trial = _evaluate_candidate(prepared, target, base, index, candidate)
            if trial.key < best.key:
                best = trial
    return EvaluatedCandidate(best.candidate, best.verdict)


def _evaluate_candidate(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    index: int,
    candidate: ArgumentCandidate,
    memory_plan: MemoryPlan | None = None,
) -> _ScoredCandidate:
    """Evaluate a candidate to a trial with the key (rank, number of findings, `index`).

    `memory_plan` is its plan if the caller has it, None to plan here.
    """
    verdict = evaluate_plan(prepared, target, candidate.to_options(base), memory_plan)
    return _ScoredCandidate(
        (rank_verdict(verdict), len(verdict.findings), index), candidate, verdict
    )


def _evaluate_fitting_candidates(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> tuple[_ScoredCandidate | None, list[tuple[int, ArgumentCandidate]]]:
    """Evaluate the candidates that fit in shared memory until one is correct without warnings.

    Returns the best trial (None if none fits), and (index, candidate) of those that do not fit.
    Without a prepared graph all are evaluated.
    """
    best: _ScoredCandidate | None = None
    oversized: list[tuple[int, ArgumentCandidate]] = []
    max_bytes = get_shared_memory_limit(target, base) + 1
    candidates = itertools.chain(
        iterate_candidates(prepared, target), _iterate_feasible_spills(prepared, target, base)
    )
    for index, candidate in enumerate(candidates):
        memory_plan = None
        if prepared.facts is not None:
            options = candidate.to_options(base)
            memory_plan = plan_memory(prepared.facts, options, max_bytes)
            if memory_plan is None:
                oversized.append((index, candidate))
                continue
        trial = _evaluate_candidate(prepared, target, base, index, candidate, memory_plan)
        if best is None or trial.key < best.key:
            best = trial
        if trial.rank == 0:
            break
    return best, oversized


def _iterate_feasible_spills(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> Iterator[ArgumentCandidate]:
    """Yield candidates that move single tensors to PSRAM until the graph fits.

    Yields nothing if a node needs more shared memory than there is, whatever its placement.
    """
    if prepared.net is not None:
        min_bytes = max(compute_min_shared_bytes(prepared.net, target).values(), default=0)
        if min_bytes > get_shared_memory_limit(target, base):
            return
    yield from iterate_spills(prepared, target, base)


def _evaluate_oversized_candidates(
    prepared: PreparedGraph,
    target: Target,
    base: PackerOptions,
    oversized: Sequence[tuple[int, ArgumentCandidate]],
    best: _ScoredCandidate | None,
) -> _ScoredCandidate:
    """Return the best of `best` and the candidates that do not fit, which the packer refuses.

    `oversized` are (index, candidate) pairs in order; the search stops when no further one can be
    better. One of `best` and `oversized` must not be empty.
    """
    # Each has at least one finding besides those of the prepared graph: that it does not fit.
    min_findings = len(dict.fromkeys(prepared.findings)) + 1
    for index, candidate in oversized:
        if best is not None and best.key < (RANK_REFUSED, min_findings, index):
            break
        trial = _evaluate_candidate(prepared, target, base, index, candidate)
        if best is None or trial.key < best.key:
            best = trial
    assert best is not None
    return best


def format_command(argv: Iterable[str], graph: str, package: str, program: str = "tpacker") -> str:
    """Format the command line that packs file `graph` into file `package`, quoted for a shell."""
    return join_shell([program, "-g", graph, *argv, "-o", package])
