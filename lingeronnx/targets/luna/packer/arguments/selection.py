"""The packer's arguments for a graph.

The cheapest that the verdict calls right, over the whole graph at once.
The candidates are those that were measured to help; each is a set of tensors to be placed in PSRAM,
with or without prefetching, and what else helps single operators. Where none does, tensors are
moved one after the other. None is taken on trust: the verdict decides.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from .....graph import ir
from .... import Target
from ....objective import TIME, can_keep_constants_resident, get_objective
from ....verdict import PackerArguments
from ...packer_profile import get_kernel_costs, get_packer_profile
from ...result_cache import ResultCache
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan, prepare_graph
from ..memory.lower_bounds import compute_min_shared_bytes
from ..memory.plan import MemoryPlan, get_shared_memory_limit, plan_memory
from ..options import SHARE, PackerOptions
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

#: The share of the time that constants in shared memory must save, unless time is all: they lie there for good.
_MIN_RESIDENCY_GAIN = 0.05


@dataclass(frozen=True)
class EvaluatedArguments(PackerArguments):
    """A choice with all that is known of it.

    first : the verdict under the first arguments that were right, where faster ones were found.
    """

    verdict: DetailedVerdict
    first: DetailedVerdict | None = None


#: The choice of forms asks for two graphs, and of a program in parts each part is asked for again when it is known what
#: the others need.
_CACHE: ResultCache[EvaluatedArguments] = ResultCache()


def select_argv(graph: ir.Model | onnx.ModelProto, target: Target) -> list[str]:
    """Return the words to pack `graph` with, without files.

    ConfigError for a row without a packer.
    """
    return list(select_fastest_arguments(graph, target).argv)


def select_fastest_arguments(
    graph: ir.Model | onnx.ModelProto, target: Target, prepared: PreparedGraph | None = None
) -> EvaluatedArguments:
    """Return the fastest arguments under which `graph` is right, and the verdict.

    prepared : the graph, where it was read before with `make_base_options`. On a chip whose prices
    are those of another one the first stay, unless time is the objective.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    objective, keeps = get_objective(proto), can_keep_constants_resident(proto)
    body = (
        proto.graph.SerializeToString(deterministic=True)
        + str((objective, keeps, proto.opset_import)).encode()
    )
    return _CACHE.get_or_compute(
        body, target, lambda: _select_fastest(proto, target, objective, keeps, prepared)
    )


def _select_fastest(
    proto: onnx.ModelProto,
    target: Target,
    objective: str,
    can_keep_resident: bool,
    prepared: PreparedGraph | None,
) -> EvaluatedArguments:
    base = make_base_options(proto, target)
    prepared = prepare_graph(proto, target, base) if prepared is None else prepared
    first = _find_first_correct(prepared, target, base)
    if not first[1].is_chip_ready:
        first = place_large_tensors_in_psram(prepared, target, base, first)
    if get_kernel_costs(target) is None and objective != TIME:
        return EvaluatedArguments(first[0].to_argv(base), first[1])
    worth = None if not can_keep_resident else get_min_residency_gain(objective)
    candidate, said = find_faster_arguments(prepared, target, base, first, worth)
    return EvaluatedArguments(candidate.to_argv(base), said, first[1])


def select_safest_arguments(
    graph: ir.Model | onnx.ModelProto, target: Target
) -> EvaluatedArguments:
    """Return the first arguments under which `graph` is right, and the verdict."""
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    base = make_base_options(proto, target)
    return select_safest_for(prepare_graph(proto, target, base), target, base)


def make_base_options(proto: onnx.ModelProto, target: Target) -> PackerOptions:
    """Return the arguments that a graph needs whatever is chosen.

    The chip, and 1 for every open size.
    """
    sizes = {
        d.dim_param: 1
        for v in proto.graph.input
        for d in v.type.tensor_type.shape.dim
        if d.dim_param
    }
    return PackerOptions(platform=get_packer_profile(target).name, symbol_sizes=sizes)


def select_safest_for(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> EvaluatedArguments:
    """Return the first arguments under which a graph that was read with `base` is right, and the verdict."""
    candidate, said = _find_first_correct(prepared, target, base)
    return EvaluatedArguments(candidate.to_argv(base), said)


def get_min_residency_gain(objective: str) -> float:
    """Return the share of the time that constants in shared memory must save."""
    return 0.0 if objective == TIME else _MIN_RESIDENCY_GAIN


def has_resident_constants(argv: Iterable[str]) -> bool:
    """Whether constants lie in shared memory under the packer's arguments `argv`."""
    return f"params:{SHARE}" in " ".join(argv)


def _find_first_correct(
    prepared: PreparedGraph, target: Target, base: PackerOptions
) -> EvaluatedCandidate:
    """Return the first candidate under which a graph that was read with `base` is right, and the verdict.

    A verdict without a warning goes before one with; where nothing is right, the one with the
    fewest findings is given.
    """
    best: tuple[tuple[int, int, int], EvaluatedCandidate] | None = None
    start = ArgumentCandidate()  # of the best
    late: list[
        tuple[int, ArgumentCandidate]
    ] = []  # what does not fit is judged where nothing else packs

    def judged(
        number: int, candidate: ArgumentCandidate, memory: MemoryPlan | None = None
    ) -> tuple[tuple[int, int, int], EvaluatedCandidate]:
        said = evaluate_plan(prepared, target, candidate.to_options(base), memory)
        return (rank_verdict(said), len(said.findings), number), (candidate, said)

    def more() -> Iterator[ArgumentCandidate]:
        """Yield what lies further away, unless a node has no room wherever its tensors lie."""
        if prepared.net is None or max(
            compute_min_shared_bytes(prepared.net, target).values(), default=0
        ) <= get_shared_memory_limit(target, base):
            yield from iterate_spills(prepared, target, base)

    for number, candidate in enumerate(
        itertools.chain(iterate_candidates(prepared, target), more())
    ):
        memory = None
        if prepared.net is not None:
            memory = plan_memory(
                prepared.net,
                target,
                candidate.to_options(base),
                get_shared_memory_limit(target, base) + 1,
            )
            if memory is None:
                late.append((number, candidate))
                continue
        tried = judged(number, candidate, memory)
        if best is None or tried[0] < best[0]:
            best, start = tried, candidate
        if tried[0][0] == 0:
            break
    if best is None or best[0][0] == RANK_REFUSED:
        least = len(dict.fromkeys(prepared.findings)) + 1  # that it does not fit is said of each
        for number, candidate in late:
            if best is not None and best[0] < (RANK_REFUSED, least, number):
                break
            tried = judged(number, candidate)
            if best is None or tried[0] < best[0]:
                best = tried
    assert best is not None
    for further in (clear_overrun_regions, iterate_improvements):
        if best[0][0] in (RANK_OVERRUN, RANK_ASSUMED, RANK_WRONG):
            for number, one in enumerate(further(prepared, target, base, start)):
                tried = judged(number, one)
                if tried[0] < best[0]:
                    best, start = tried, one
    return best[1]


def format_command(argv: Iterable[str], graph: str, package: str, program: str = "tpacker") -> str:
    """Return the packer's call for the files `graph` and `package`, quoted for a shell."""
    return shlex.join([program, "-g", graph, *argv, "-o", package])
