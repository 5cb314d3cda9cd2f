"""Which forms are taken: each by its own price, all together by the verdict and by the time of the whole graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .....graph import ir
from ...._target import Fitted
from ....latency import Latency, TimeSaved
from ....objective import ACCURACY, MEMORY, PLAIN, objective_of
from ...packer.arguments.mending import rank
from ...packer.arguments.speed import weight
from ...packing import prices_of
from ...prices import ARCS
from ..read_graph import ReadGraph
from .copies import enlarged
from .costs import Costs
from .form import CheaperForm
from .layers import factor_depthwise, row_pointwise
from .moves import join_turned, part_turned, part_whole, transposed
from .sheet import Sheet

__all__ = ["cheaper"]

_Rewrite = Callable[[Sheet, ir.Node], CheaperForm | None]

#: In the order in which they are offered: what makes others needless first.
_REWRITES: tuple[_Rewrite, ...] = (
    part_whole, factor_depthwise, row_pointwise, enlarged, join_turned, part_turned, transposed,
)  # fmt: skip

#: The share of a node's cycles that a form must save, and the share of the whole graph's that all must: for less a
#: graph stays as it was made, which is easier to read.
_LEAST, _WORTH = 0.02, 0.05


@dataclass(frozen=True)
class _Told:
    """What is known of a graph: how good the verdict is, how long it takes, and the shared memory that it needs.

    first : how long it takes under the first arguments that are right.
    """

    rank: int
    first: Latency
    time: Latency
    weight: float
    memory: int

    @classmethod
    def of(cls, read: ReadGraph) -> _Told | None:
        """Judge the part for the chip; None where that does not come out right."""
        choice = read.chosen
        said, time = choice.verdict, choice.verdict.weighed
        if not said.chip_ready or time is None or said.memory is None:
            return None
        first = None if choice.first is None else choice.first.weighed
        return cls(rank(said), first or time, time, weight(time, read.target), said.memory.need)

    def beats(self, other: _Told, objective: str) -> bool:
        """Whether it is promised as well and clearly takes less time, with no more bytes whose price is not known."""
        mine, others = (sum(work.bytes for work in told.time.unpriced) for told in (self, other))
        if objective == MEMORY and self.memory > other.memory:
            return False
        return self.rank <= other.rank and self.weight < (1.0 - _WORTH) * other.weight and mine <= others


def cheaper(read: ReadGraph) -> tuple[ir.Graph, list[Fitted], TimeSaved | None]:
    """Return the integer graph `read` with nodes in forms that take fewer cycles, what was done, and what that saves.

    The same graph where nodes keep their forms, where it is not right on the chip, and where no form saves anything.
    All forms are taken together where the whole is promised so, else kind by kind. With `ACCURACY` nothing is judged
    where forms cannot save enough, and nothing is decided by another chip's prices.
    """
    graph, target, objective = read.graph, read.target, objective_of(read.graph)
    sheet = Sheet(graph, target, Costs(prices_of(target) or ARCS))
    if objective == PLAIN or (objective == ACCURACY and not _promising(sheet)):
        return graph, [], None
    before = now = _Told.of(read)
    if before is None or now is None:
        return graph, [], None
    done: list[Fitted] = []
    every: list[Fitted] = []
    kinds: list[Sequence[_Rewrite]] = [_REWRITES, *((rewrite,) for rewrite in _REWRITES)]
    for some in kinds:
        trial = ir.clone(graph)
        made = _rewritten(sheet.other(trial), some)
        if some is not _REWRITES and made == every:  # judged already
            continue
        after = _Told.of(read.other(trial)) if made else None
        if after is not None and after.beats(now, objective):
            graph, now = trial, after
            done += made
        if some is _REWRITES:
            every = made
            if done or not made:
                break
    if objective == ACCURACY and not done:
        return graph, [], None
    saved = TimeSaved(round(before.first.high), round(now.time.high), target.name, prices_of(target) is None)
    return graph, done, saved


def _promising(sheet: Sheet) -> bool:
    """Whether forms may save enough of a graph on a chip whose prices are known, by the prices of single nodes.

    Nothing is written. What only a Slice read may go with it.
    """
    if prices_of(sheet.target) is None:
        return False
    saved = 0.0

    def known(nodes: Iterable[ir.Node]) -> float:
        return sum(cycles for node in nodes if (cycles := sheet.costs.node(node)) < math.inf)

    for node in sheet.graph.graph:
        for rewrite in _REWRITES:
            form = rewrite(sheet, node)
            if form is not None:
                gone = [node, *([ir.producer(node.inputs[0])] if rewrite is part_whole else [])]
                saved += max(known([each for each in gone if each is not None]) - form.cycles, 0.0)
    return saved > _WORTH * known(sheet.graph.graph) if saved else False


def _rewritten(sheet: Sheet, rewrites: Sequence[_Rewrite]) -> list[Fitted]:
    """Write every node in its cheapest form, in place; return what was done."""
    done = []
    for rewrite in rewrites:
        for node in list(sheet.graph.graph):
            form = rewrite(sheet, node)
            now = sheet.costs.node(node) if form is not None else 0.0
            if form is not None and now - form.cycles > _LEAST * now:
                name = str(node.name)
                form.write()
                done.append(Fitted(name, form.what, "exact"))
    if done:
        sheet.close()
    return done
