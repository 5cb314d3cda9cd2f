"""Many runs of one graph in tiles: for networks of which most layers are too large.

Each round cuts a layer at which most bytes live, where all that may lie in external memory does:
the arguments that are tried last when they are chosen for the graph that comes of it. What lives at
once has to become somewhat less than the shared memory, for a plan lays blocks end to end, and
takes more than that: where it takes too much, all is tried again with less. Then other runs are
cut, and shorter ones, whose tiles overlap less.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .....formats import CONV2D
from .....graph import ir
from ...._target import AppliedRewrite
from ...packer.arguments.psram_first import move_back_to_shared
from ...packer.evaluation import DetailedVerdict
from ..packer_view import PackerGraphView
from .cascades import WINDOW_OPERATORS, is_tileable
from .output_channel_splits import replace_slices_by_convs
from .schedules import TileSchedule, apply_schedule, iterate_schedules
from .window_merging import merge_tiled_windows

__all__ = ["SEARCH_BUDGET_NODES", "TilingState", "search_iteratively"]

_MEMORY_FRACTIONS = (0.75, 0.6, 0.5)  # of the shared memory is what tiles are made for
#: Nodes of all graphs that are judged in the search of one graph: one to two minutes of work.
SEARCH_BUDGET_NODES = 100_000
_NEAR_FIT_RATIO = (
    1.5  # times the shared memory: what a plan may need for another try with less to be worth it
)
_MAX_ROUNDS = 40
_MAX_FAILED_LAYERS = 24  # layers without a cut that helps
# a work area lives all the time, and shall be no larger than such a part of what may live at once
_WORK_AREA_DIVISOR = 4
_MAX_LOOKBACK_NODES = 8  # nodes to go back from such a layer
_MAX_SCHEDULES_PER_START = 6  # of the runs that begin with one node
_TRIALS = 16  # of a layer, after which the best of them is taken


@dataclass
class _SearchBudget:
    """The nodes that may still be judged."""

    remaining_nodes: int


@dataclass(frozen=True)
class TilingState:
    """A graph that is being cut, and what is said where all that may lie outside does.

    names : of the layers before the first cut, in the packer's words. whole : of those that are not
    cut yet, in the graph's. part : of the shared memory that may be in use. work : what may still
    be judged, of this graph and all others.
    """

    view: PackerGraphView
    verdict: DetailedVerdict
    names: frozenset[str]
    untiled: frozenset[str]
    part: float
    budget: _SearchBudget

    @classmethod
    def first(cls, read: PackerGraphView, part: float, work: _SearchBudget) -> TilingState | None:
        """Return what is said of a graph without a cut; None where it is not judged."""
        said = _evaluate(read, work)
        names = [str(node.name) for node in read.graph.graph]
        theirs = frozenset(read.node_names.get(name, name) for name in names)
        return None if said is None else cls(read, said, theirs, frozenset(names), part, work)

    def evaluate_with(self, cut: TileSchedule) -> TilingState | None:
        """Return what is said with one more cut; None where that is not judged."""
        read = apply_schedule(self.view, cut)
        said = _evaluate(read, self.budget)
        left = self.untiled - {str(node.name) for node in cut.run.nodes}
        return None if said is None else replace(self, view=read, verdict=said, untiled=left)

    @cached_property
    def incorrect_nodes(self) -> frozenset[str]:
        """What is not right wherever its tensors lie."""
        memories = ("shared memory", "psram")
        return frozenset(
            f.node for f in self.verdict.findings if f.level != "plan" and f.node not in memories
        )

    @cached_property
    def live_bytes(self) -> list[int]:
        """The bytes of shared memory that are in use at each step."""
        assert self.verdict.graph is not None
        assert self.verdict.memory_plan is not None
        return self.verdict.memory_plan.compute_live_bytes(len(self.verdict.graph.steps))

    @cached_property
    def live_bytes_goal(self) -> int:
        """The bytes that shall live at once.

        A part of the memory, and less where a plan still needs too much.
        """
        memory = self.verdict.memory_plan
        assert memory is not None
        most, goal = max(self.live_bytes), int(self.part * memory.limit_bytes)
        return (
            goal
            if most > goal
            else min(goal, memory.limit_bytes * most // max(memory.required_bytes, 1))
        )

    @property
    def is_near(self) -> bool:
        """Whether somewhat less is all that lacks.

        Nothing is wrong, and a plan takes little more than there is.
        """
        memory = self.verdict.memory_plan
        assert memory is not None
        return (
            not self.incorrect_nodes
            and not self.missing_external_bytes
            and memory.required_bytes <= _NEAR_FIT_RATIO * memory.limit_bytes
        )

    @cached_property
    def missing_external_bytes(self) -> int:
        """The bytes that external memory lacks."""
        memory, most = self.verdict.memory_plan, self.view.target.external_memory
        assert memory is not None
        return 0 if most is None else max(memory.external_bytes - most, 0)

    def measure_overload(self, goal: int) -> tuple[int, int, int, int]:
        """Return how far it is from fitting.

        Nodes that are wrong, bytes that external memory lacks, bytes above `goal`, bytes of large
        work areas.
        """
        assert self.verdict.graph is not None
        assert self.verdict.memory_plan is not None
        areas = self.verdict.memory_plan.work_areas.values()
        above: dict[str, int] = {}
        for size, step in zip(self.live_bytes, self.verdict.graph.steps, strict=True):
            name = (
                step.origin if step.origin in self.names else ""
            )  # tiles are as crowded as the first of them
            above[name] = max(above.get(name, 0), size - goal)
        return (
            len(self.incorrect_nodes),
            self.missing_external_bytes,
            sum(above.values()),
            sum(size for size in areas if 2 * size > max(areas)),
        )

    def iterate_candidates(self) -> Iterator[ir.Node]:
        """Yield whole layers to cut.

        What is wrong, what has a large work area, and the fullest ones.
        """
        net, memory = self.verdict.graph, self.verdict.memory_plan
        assert net is not None
        assert memory is not None
        names = self.view.node_names
        by_name = {
            names.get(str(node.name), str(node.name)): node
            for node in self.view.graph.graph
            if is_tileable(node)
        }
        full = [
            i
            for i in sorted(range(len(net.steps)), key=lambda i: -self.live_bytes[i])
            if self.live_bytes[i] > self.live_bytes_goal
        ]
        areas = [
            n
            for n in sorted(memory.work_areas, key=lambda n: -memory.work_areas[n])
            if _WORK_AREA_DIVISOR * memory.work_areas[n] > self.live_bytes_goal
        ]
        for name in dict.fromkeys(
            [*sorted(self.incorrect_nodes), *areas, *(net.steps[i].origin for i in full)]
        ):
            if name in by_name and str(by_name[name].name) in self.untiled:
                yield by_name[name]


def search_iteratively(
    read: PackerGraphView,
) -> tuple[PackerGraphView, list[TileSchedule], list[AppliedRewrite]] | None:
    """Return `read` in tiles with which it is ready, the cuts, and what else was done.

    None where none are found.
    Without a cut where it is ready as it is, with all outside that may. Where that fails, a graph
    is cut whose windows are whole, and which has no Slices behind convolutions.
    """
    found = _search_from(read)
    if found is not None:
        return *found, []
    whole = merge_tiled_windows(read.graph)
    copy = ir.clone(read.graph) if whole is None else whole
    done = replace_slices_by_convs(copy)
    if whole is None and not done:
        return None
    found = _search_from(read.for_graph(copy, ignore_node_limits=True))
    return None if found is None else (*found, done)


def _search_from(read: PackerGraphView) -> tuple[PackerGraphView, list[TileSchedule]] | None:
    """Return a graph in tiles with which it is ready, and the cuts; None where none are found."""
    first = TilingState.first(read, _MEMORY_FRACTIONS[0], _SearchBudget(SEARCH_BUDGET_NODES))
    if first is None or first.incorrect_nodes - _get_window_names(read):
        return None  # no cut mends more than maps that a window does not take
    for part in _MEMORY_FRACTIONS:
        now, done = _tile_until_fit(replace(first, part=part))
        if now.verdict.is_chip_ready:
            return now.view, done
        if not now.is_near:
            break
    return None


def _tile_until_fit(now: TilingState) -> tuple[TilingState, list[TileSchedule]]:
    """Return a graph without a cut in tiles, as far as they are found within its part of the shared memory."""
    done: list[TileSchedule] = []
    in_vain: set[str] = set()
    while not now.verdict.is_chip_ready and len(done) < _MAX_ROUNDS:
        layer = next(
            (layer for layer in now.iterate_candidates() if str(layer.name) not in in_vain), None
        )
        if layer is None or len(in_vain) == _MAX_FAILED_LAYERS or now.budget.remaining_nodes < 0:
            break
        found = _find_schedule(now, layer)
        if found is None:
            in_vain.add(str(layer.name))
        else:
            now, cut = found
            done.append(cut)
    return now, done


def _get_window_names(read: PackerGraphView) -> set[str]:
    """Return the packer's names of the convolutions and pools."""
    names = [str(node.name) for node in read.graph.graph if node.op_type in WINDOW_OPERATORS]
    return {read.node_names.get(name, name) for name in names}


def _evaluate(read: PackerGraphView, work: _SearchBudget) -> DetailedVerdict | None:
    """Return what is said where all that may lie outside does, without prefetching, which needs least.

    None where the graph is not planned, and once enough was judged.
    """
    if work.remaining_nodes < 0 or read.prepared.net is None:
        return None
    work.remaining_nodes -= len(read.prepared.net.steps)
    return move_back_to_shared(read.prepared, read.target, read.base_options, prefetch=False)[1]


def _find_schedule(now: TilingState, layer: ir.Node) -> tuple[TilingState, TileSchedule] | None:
    """Return the first cut that begins with a convolution and is within the goal, else the best that helps."""
    before, best = now.measure_overload(now.live_bytes_goal), None
    for cut in itertools.islice(_iterate_trials(now, layer), _TRIALS):
        after = now.evaluate_with(cut)
        if (
            after is None
            or not after.incorrect_nodes <= now.incorrect_nodes
            or after.measure_overload(now.live_bytes_goal) >= before
        ):
            continue
        if best is None or after.measure_overload(now.live_bytes_goal) < best[0].measure_overload(
            now.live_bytes_goal
        ):
            best = after, cut
        members = {str(node.name) for node in cut.run.nodes}
        if cut.run.nodes[0].op_type == CONV2D.name and _is_within_goal(
            after, members, now.live_bytes_goal
        ):
            break
    return best


def _iterate_trials(now: TilingState, layer: ir.Node) -> Iterator[TileSchedule]:
    """Yield cuts around a layer.

    First those that begin with a convolution, since what one writes is large.
    """
    nodes = list(now.view.graph.graph)
    where, outside = nodes.index(layer), now.view.target.external_memory or 0
    starts = range(where, max(where - _MAX_LOOKBACK_NODES, 0) - 1, -1)
    for start in sorted(starts, key=lambda start: nodes[start].op_type != CONV2D.name):
        for cut in itertools.islice(
            iterate_schedules(now.view.graph, start, layer, now.live_bytes_goal, outside),
            _MAX_SCHEDULES_PER_START,
        ):
            if all(str(node.name) in now.untiled for node in cut.run.nodes):
                yield cut


def _is_within_goal(after: TilingState, members: Collection[str], goal: int) -> bool:
    """Whether the first tiles of `members`, which keep their names, are right, and what lives there is not too much."""
    assert after.verdict.graph is not None
    assert after.verdict.memory_plan is not None
    names, areas = (
        {after.view.node_names.get(name, name) for name in members},
        after.verdict.memory_plan.work_areas,
    )
    steps = zip(after.live_bytes, after.verdict.graph.steps, strict=True)
    return (
        names.isdisjoint(after.incorrect_nodes)
        and all(_WORK_AREA_DIVISOR * areas.get(name, 0) <= goal for name in names)
        and all(size <= goal for size, step in steps if step.origin in names)
    )
