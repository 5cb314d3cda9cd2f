"""The packer's arguments for a graph: the cheapest that the verdict calls right, over the whole graph at once.

The candidates are those that were measured to help; each is a set of tensors to be placed in PSRAM, with or without
prefetching, and what else helps single operators. Where none does, tensors are moved one after the other. None is taken
on trust: the verdict decides.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from .....graph import ir
from .... import Target
from ....objective import TIME, keeps_constants, objective_of
from ....verdict import ArgumentChoice
from ...packing import packing, prices_of
from ...remembered import Remembered
from ..judge import Judged, Ready, make_ready, verdict
from ..memory.needs import least_needs
from ..memory.plan import MemoryPlan, plan_memory, room
from ..options import SHARE, Options
from .candidates import Candidate, candidates
from .mending import BELIEVED, PAST, REFUSED, WRONG, cleared, mended, rank, spilled
from .outside import outside
from .speed import Found, faster

__all__ = [
    "Judgement", "arguments", "choose", "chosen", "keeping", "plain_options", "safest", "shell", "worth_keeping",
]  # fmt: skip

#: The share of the time that constants in shared memory must save, unless time is all: they lie there for good.
_WORTH = 0.05


@dataclass(frozen=True)
class Judgement(ArgumentChoice):
    """A choice with all that is known of it.

    first : the verdict under the first arguments that were right, where faster ones were found.
    """

    verdict: Judged
    first: Judged | None = None


#: The choice of forms asks for two graphs, and of a program in parts each part is asked for again when it is known what
#: the others need.
_ASKED: Remembered[Judgement] = Remembered()


def arguments(graph: ir.Graph | onnx.ModelProto, target: Target) -> list[str]:
    """Return the words to pack `graph` with, without files; ConfigError for a row without a packer."""
    return list(choose(graph, target).words)


def choose(graph: ir.Graph | onnx.ModelProto, target: Target, ready: Ready | None = None) -> Judgement:
    """Return the fastest arguments under which `graph` is right, and the verdict.

    ready : the graph, where it was read before with `plain_options`. On a chip whose prices are those of another one
    the first stay, unless time is the objective.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    objective, keeps = objective_of(proto), keeps_constants(proto)
    body = proto.graph.SerializeToString(deterministic=True) + str((objective, keeps, proto.opset_import)).encode()
    return _ASKED.ask(body, target, lambda: _chosen(proto, target, objective, keeps, ready))


def _chosen(proto: onnx.ModelProto, target: Target, objective: str, keeps: bool, ready: Ready | None) -> Judgement:
    base = plain_options(proto, target)
    ready = make_ready(proto, target, base) if ready is None else ready
    first = _first(ready, target, base)
    if not first[1].chip_ready:
        first = outside(ready, target, base, first)
    if prices_of(target) is None and objective != TIME:
        return Judgement(first[0].words(base), first[1])
    worth = None if not keeps else worth_keeping(objective)
    candidate, said = faster(ready, target, base, first, worth)
    return Judgement(candidate.words(base), said, first[1])


def safest(graph: ir.Graph | onnx.ModelProto, target: Target) -> Judgement:
    """Return the first arguments under which `graph` is right, and the verdict."""
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    base = plain_options(proto, target)
    return chosen(make_ready(proto, target, base), target, base)


def plain_options(proto: onnx.ModelProto, target: Target) -> Options:
    """Return the arguments that a graph needs whatever is chosen: the chip, and 1 for every open size."""
    sizes = {d.dim_param: 1 for v in proto.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    return Options(platform=packing(target).name, sizes=sizes)


def chosen(ready: Ready, target: Target, base: Options) -> Judgement:
    """Return the first arguments under which a graph that was read with `base` is right, and the verdict."""
    candidate, said = _first(ready, target, base)
    return Judgement(candidate.words(base), said)


def worth_keeping(objective: str) -> float:
    """Return the share of the time that constants in shared memory must save."""
    return 0.0 if objective == TIME else _WORTH


def keeping(words: Iterable[str]) -> bool:
    """Whether constants lie in shared memory under the packer's arguments `words`."""
    return f"params:{SHARE}" in " ".join(words)


def _first(ready: Ready, target: Target, base: Options) -> Found:
    """Return the first candidate under which a graph that was read with `base` is right, and the verdict.

    A verdict without a warning goes before one with; where nothing is right, the one with the fewest findings is given.
    """
    best: tuple[tuple[int, int, int], Found] | None = None
    start = Candidate()  # of the best
    late: list[tuple[int, Candidate]] = []  # what does not fit is judged where nothing else packs

    def judged(
        number: int, candidate: Candidate, memory: MemoryPlan | None = None
    ) -> tuple[tuple[int, int, int], Found]:
        said = verdict(ready, target, candidate.options(base), memory)
        return (rank(said), len(said.findings), number), (candidate, said)

    def more() -> Iterator[Candidate]:
        """Yield what lies further away, unless a node has no room wherever its tensors lie."""
        if ready.net is None or max(least_needs(ready.net, target).values(), default=0) <= room(target, base):
            yield from spilled(ready, target, base)

    for number, candidate in enumerate(itertools.chain(candidates(ready, target), more())):
        memory = None
        if ready.net is not None:
            memory = plan_memory(ready.net, target, candidate.options(base), room(target, base) + 1)
            if memory is None:
                late.append((number, candidate))
                continue
        tried = judged(number, candidate, memory)
        if best is None or tried[0] < best[0]:
            best, start = tried, candidate
        if tried[0][0] == 0:
            break
    if best is None or best[0][0] == REFUSED:
        least = len(dict.fromkeys(ready.findings)) + 1  # that it does not fit is said of each
        for number, candidate in late:
            if best is not None and best[0] < (REFUSED, least, number):
                break
            tried = judged(number, candidate)
            if best is None or tried[0] < best[0]:
                best = tried
    assert best is not None
    for further in (cleared, mended):
        if best[0][0] in (PAST, BELIEVED, WRONG):
            for number, one in enumerate(further(ready, target, base, start)):
                tried = judged(number, one)
                if tried[0] < best[0]:
                    best, start = tried, one
    return best[1]


def shell(words: Iterable[str], graph: str, package: str, program: str = "tpacker") -> str:
    """Return the packer's call for the files `graph` and `package`, quoted for a shell."""
    return shlex.join([program, "-g", graph, *words, "-o", package])
