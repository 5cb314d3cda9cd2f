"""Arguments found from the other end: all large tensors in PSRAM, except those that must not be.

Other searches begin with few tensors in PSRAM. If many layers are too large for shared memory, none
of their candidates fits, and moving single tensors takes one trial each. Here all large tensors
start in PSRAM, and the tensors of nodes with findings return to shared memory.
"""

from __future__ import annotations

from ...targets import Target
from ..evaluation import DetailedVerdict, PreparedGraph, evaluate_plan
from ..packer.memory.plan import get_shared_memory_limit
from ..packer.options import PackerOptions
from .candidates import (
    ArgumentCandidate,
    find_reshape_source,
    include_reshape_aliases,
    is_valid_option_name,
)
from .local_search import get_blamed_nodes
from .speed import EvaluatedCandidate

__all__ = ["move_back_to_shared", "place_large_tensors_in_psram"]

_SMALL_TENSOR_DIVISOR = 100  # tensors below this fraction of the shared memory stay there
_MAX_ROUNDS = 12  # of returning tensors to shared memory


def place_large_tensors_in_psram(
    prepared: PreparedGraph, target: Target, base: PackerOptions, known: EvaluatedCandidate
) -> EvaluatedCandidate:
    """Place the large tensors in PSRAM, with prefetching if that is correct, else without.

    If neither is correct, returns the candidate with the fewest blamed nodes among the two and
    `known`: a graph that lacks memory for one layer should not be reported as wrong everywhere.
    Returns `known` if preparing gave no graph.

    Parameters
    ----------
    prepared
        The graph, prepared with `base`.
    known
        A candidate that is not correct.
    """
    if prepared.net is None:
        return known
    best = known
    for prefetch in (True, False):
        trial = move_back_to_shared(prepared, target, base, prefetch)
        if trial.verdict.is_chip_ready:
            return trial
        best = min(best, trial, key=lambda other: len(get_blamed_nodes(other.verdict)))
    return best


def move_back_to_shared(
    prepared: PreparedGraph, target: Target, base: PackerOptions, prefetch: bool
) -> EvaluatedCandidate:
    """Place large tensors in PSRAM, then move those of nodes with findings back to shared memory.

    Tensors are large if `_SMALL_TENSOR_DIVISOR` times their size exceeds the shared memory. They
    move back in up to `_MAX_ROUNDS` rounds, each followed by an evaluation, until no node with
    findings has one in PSRAM. Returns the last candidate with its verdict, correct or not;
    `prepared.net` must not be None.
    """
    net = prepared.net
    assert net is not None
    limit_bytes = get_shared_memory_limit(target, base)
    large = [
        tensor.name
        for tensor in net.iterate_tensors()
        if _SMALL_TENSOR_DIVISOR * tensor.size_bytes > limit_bytes
    ]

    def evaluate(shared: set[str]) -> EvaluatedCandidate:
        """Evaluate the candidate with all large tensors in PSRAM except those in `shared`.

        Tensors whose names -m cannot contain stay in shared memory too.
        """
        names = include_reshape_aliases(net, [name for name in large if name not in shared])
        psram_tensors = tuple(name for name in names if is_valid_option_name(name))
        candidate = ArgumentCandidate(psram_tensors, prefetch=prefetch)
        verdict = evaluate_plan(prepared, target, candidate.to_options(base))
        return EvaluatedCandidate(candidate, verdict)

    shared: set[str] = set()
    trial = evaluate(shared)
    for _ in range(_MAX_ROUNDS):
        returning = _find_tensors_to_return(trial.verdict, set(trial.candidate.psram_tensors))
        if not returning:
            break
        shared |= returning
        trial = evaluate(shared)
    return trial


def _find_tensors_to_return(verdict: DetailedVerdict, psram_tensors: set[str]) -> set[str]:
    """Return those of `psram_tensors` to move back to shared memory, of nodes with findings.

    For each step of such a node its outputs, including the tensors that they are reshaped from; if
    none of them is in PSRAM, its inputs.
    """
    net = verdict.graph
    assert net is not None
    blamed_nodes = get_blamed_nodes(verdict)
    returning: set[str] = set()
    for step in net.steps:
        if step.origin not in blamed_nodes:
            continue
        for names in (step.outputs, step.inputs):
            sources = {find_reshape_source(net, name) for name in names}
            in_psram = (sources | set(names)) & psram_tensors
            if in_psram:
                returning |= in_psram
                break
    return returning
