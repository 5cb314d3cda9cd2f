"""Tile many cascades of one graph, for networks most of whose layers are too large.

Each iteration tiles a layer with the most live bytes, assuming that every tensor that may be in
external memory is there: the arguments that are tried last when those of the resulting graph are
selected. The live bytes must become somewhat smaller than the shared memory, because a plan places
blocks end to end and needs more. If it needs too much, the search is repeated with a smaller
fraction. Other cascades are tiled then, and shorter ones, whose tiles overlap less.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ....ir import ir
from ....operators.integer_ops import CONV2D
from ....targets._target import AppliedRewrite
from ...arguments.psram_first import move_back_to_shared
from ...evaluation import DetailedVerdict
from ..packer_view import PackerGraphView
from .cascades import WINDOW_OPERATORS, is_tileable
from .output_channel_splits import replace_slices_by_convs
from .schedules import TileSchedule, apply_schedule, iterate_schedules
from .window_merging import merge_tiled_windows

__all__ = ["SEARCH_BUDGET_NODES", "TilingState", "search_iteratively"]

_MEMORY_FRACTIONS = (0.75, 0.6, 0.5)  # of the shared memory, as goals for the live bytes
#: Nodes of all graphs that one search evaluates: one to two minutes of work.
SEARCH_BUDGET_NODES = 100_000
_NEAR_FIT_RATIO = 1.5  # of the shared memory: a plan that needs more is not worth another fraction
_MAX_ROUNDS = 40
_MAX_FAILED_LAYERS = 24  # layers without a schedule that helps
_WORK_AREA_DIVISOR = 4  # a work area is always live; it may take this part of the goal at most
_MAX_LOOKBACK_NODES = 8  # start nodes before a layer
_MAX_SCHEDULES_PER_START = 6
_TRIALS = 16  # schedules per layer, after which the best one is used


@dataclass
class _SearchBudget:
    """Number of nodes that the search may still evaluate."""

    remaining_nodes: int


@dataclass(frozen=True)
class TilingState:
    """A graph during the search, and its verdict with all possible tensors in external memory.

    Attributes
    ----------
    view
        The graph, tiled so far.
    verdict
        Its verdict.
    original_names
        The packer's names of the layers of the original graph.
    untiled
        Names of the layers that are not tiled yet.
    memory_fraction
        Fraction of the shared memory that may be in use.
    budget
        Remaining evaluations, shared by all states of a search.
    """

    view: PackerGraphView
    verdict: DetailedVerdict
    original_names: frozenset[str]
    untiled: frozenset[str]
    memory_fraction: float
    budget: _SearchBudget

    @classmethod
    def for_untiled_graph(
        cls, view: PackerGraphView, memory_fraction: float, budget: _SearchBudget
    ) -> TilingState | None:
        """Evaluate a graph without tiles; return its state, or None if it cannot be planned.

        `memory_fraction` is the part of the shared memory that may be in use.
        """
        verdict = _evaluate(view, budget)
        if verdict is None:
            return None
        names = frozenset(str(node.name) for node in view.graph.graph)
        packer_names = frozenset(view.node_names.get(name, name) for name in names)
        return cls(view, verdict, packer_names, names, memory_fraction, budget)

    def evaluate_with(self, schedule: TileSchedule) -> TilingState | None:
        """Return the state of the graph with one more schedule; None if it cannot be planned.

        Does not modify this state, but uses its budget.
        """
        view = apply_schedule(self.view, schedule)
        verdict = _evaluate(view, self.budget)
        if verdict is None:
            return None
        untiled = self.untiled - {str(node.name) for node in schedule.run.nodes}
        return replace(self, view=view, verdict=verdict, untiled=untiled)

    @cached_property
    def incorrect_nodes(self) -> frozenset[str]:
        """Names of nodes that are incorrect wherever their tensors are placed.

        They are those of all findings except overrun warnings (level "plan") and findings on the
        size of a memory.
        """
        memories = ("shared memory", "psram")
        return frozenset(
            finding.node
            for finding in self.verdict.findings
            if finding.level != "plan" and finding.node not in memories
        )

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes of shared memory in use at each step of the packer's graph."""
        assert self.verdict.graph is not None
        assert self.verdict.memory_plan is not None
        return self.verdict.memory_plan.compute_live_bytes(len(self.verdict.graph.steps))

    @cached_property
    def live_bytes_goal(self) -> int:
        """Bytes of shared memory that may be live at one step.

        It is the fraction of the memory, or less if live bytes are within that and the plan still
        needs too much.
        """
        plan = self.verdict.memory_plan
        assert plan is not None
        max_live_bytes = max(self.live_bytes)
        goal_bytes = int(self.memory_fraction * plan.limit_bytes)
        if max_live_bytes > goal_bytes:
            return goal_bytes
        return min(goal_bytes, plan.limit_bytes * max_live_bytes // max(plan.required_bytes, 1))

    @property
    def is_near_fit(self) -> bool:
        """Whether no node is incorrect and the plan needs at most 1.5 times the shared memory.

        False also if external memory is missing.
        """
        plan = self.verdict.memory_plan
        assert plan is not None
        if self.incorrect_nodes or self.missing_external_bytes:
            return False
        return plan.required_bytes <= _NEAR_FIT_RATIO * plan.limit_bytes

    @cached_property
    def missing_external_bytes(self) -> int:
        """Bytes by which the plan exceeds the external memory.

        0 if it fits or there is no limit.
        """
        plan, max_bytes = self.verdict.memory_plan, self.view.target.external_memory
        assert plan is not None
        return 0 if max_bytes is None else max(plan.external_bytes - max_bytes, 0)

    def measure_overload(self, goal_bytes: int) -> tuple[int, int, int, int]:
        """Measure how far the graph is from fitting; smaller tuples are better.

        Returns
        -------
        tuple of int
            Number of incorrect nodes, missing bytes of external memory, live bytes above
            `goal_bytes` summed over the layers (negative if below), bytes of large work areas.
        """
        assert self.verdict.graph is not None
        assert self.verdict.memory_plan is not None
        excess_by_layer: dict[str, int] = {}
        for size_bytes, step in zip(self.live_bytes, self.verdict.graph.steps, strict=True):
            # All other tiles count as one layer: they are as crowded as the first, named one.
            layer = step.origin if step.origin in self.original_names else ""
            excess_bytes = size_bytes - goal_bytes
            excess_by_layer[layer] = max(excess_by_layer.get(layer, 0), excess_bytes)
        areas = self.verdict.memory_plan.work_areas.values()
        return (
            len(self.incorrect_nodes),
            self.missing_external_bytes,
            sum(excess_by_layer.values()),
            sum(size_bytes for size_bytes in areas if 2 * size_bytes > max(areas)),
        )

    def iterate_candidates(self) -> Iterator[ir.Node]:
        """Yield untiled layers to tile: incorrect ones, large work areas, then most live bytes.

        A work area counts if it exceeds 1 / `_WORK_AREA_DIVISOR` of the goal, live bytes above the
        goal, large first. Each layer comes once; incorrect ones are sorted by name.
        """
        net, plan = self.verdict.graph, self.verdict.memory_plan
        assert net is not None
        assert plan is not None
        large_area_nodes = [
            name
            for name in sorted(plan.work_areas, key=lambda name: -plan.work_areas[name])
            if _WORK_AREA_DIVISOR * plan.work_areas[name] > self.live_bytes_goal
        ]
        crowded_nodes = [
            net.steps[i].origin
            for i in sorted(range(len(net.steps)), key=lambda i: -self.live_bytes[i])
            if self.live_bytes[i] > self.live_bytes_goal
        ]
        candidates = [*sorted(self.incorrect_nodes), *large_area_nodes, *crowded_nodes]
        layer_by_packer_name = self._map_untiled_layers()
        for name in dict.fromkeys(candidates):
            if name in layer_by_packer_name:
                yield layer_by_packer_name[name]

    def _map_untiled_layers(self) -> dict[str, ir.Node]:
        """Return packer's name -> node, for tileable nodes that no schedule has tiled yet."""
        names = self.view.node_names
        return {
            names.get(str(node.name), str(node.name)): node
            for node in self.view.graph.graph
            if is_tileable(node) and str(node.name) in self.untiled
        }


def search_iteratively(
    view: PackerGraphView,
) -> tuple[PackerGraphView, list[TileSchedule], list[AppliedRewrite]] | None:
    """Tile a graph, one cascade after the other, until it is ready for the chip.

    If that fails, tries again with windows that are tiled already merged, and with convolutions in
    place of Slices of convolutions.

    Returns
    -------
    view : PackerGraphView
        The tiled graph; without tiles if it is ready with tensors in external memory.
    schedules : list of TileSchedule
        The tilings.
    rewrites : list of AppliedRewrite
        Other changes.
    None is returned if the search fails.
    """
    result = _search_from(view)
    if result is not None:
        return *result, []
    merged = merge_tiled_windows(view.graph)
    graph = view.graph.clone() if merged is None else merged
    rewrites = replace_slices_by_convs(graph)
    if merged is None and not rewrites:
        return None
    result = _search_from(view.for_graph(graph, ignore_node_limits=True))
    return None if result is None else (*result, rewrites)


def _search_from(view: PackerGraphView) -> tuple[PackerGraphView, list[TileSchedule]] | None:
    """Return (tiled graph, schedules), or None if no tiling makes the graph ready for the chip.

    Tries one fraction of the shared memory after the other, until the graph is far from fitting.
    None at once if no memory holds the constants, or if a node that is no window is incorrect
    wherever its tensors are placed.
    """
    if not view.has_room_for_constants:
        return None
    budget = _SearchBudget(SEARCH_BUDGET_NODES)
    untiled_state = TilingState.for_untiled_graph(view, _MEMORY_FRACTIONS[0], budget)
    if untiled_state is None or untiled_state.incorrect_nodes - _get_window_names(view):
        return None  # tiles only help windows over maps that are too large
    for fraction in _MEMORY_FRACTIONS:
        state, schedules = _tile_until_fit(replace(untiled_state, memory_fraction=fraction))
        if state.verdict.is_chip_ready:
            return state.view, schedules
        if not state.is_near_fit:
            break
    return None


def _tile_until_fit(state: TilingState) -> tuple[TilingState, list[TileSchedule]]:
    """Tile one layer after the other until the graph is ready, or no further schedule helps.

    Ends also after `_MAX_ROUNDS` schedules, `_MAX_FAILED_LAYERS` layers without a schedule, or the
    node budget. Returns the last state and the applied schedules, also if the graph is not ready
    then.
    """
    schedules: list[TileSchedule] = []
    failed_layers: set[str] = set()
    while not state.verdict.is_chip_ready and len(schedules) < _MAX_ROUNDS:
        candidates = (
            layer for layer in state.iterate_candidates() if str(layer.name) not in failed_layers
        )
        layer = next(candidates, None)
        if layer is None or len(failed_layers) == _MAX_FAILED_LAYERS:
            break
        if state.budget.remaining_nodes < 0:
            break
        result = _find_schedule(state, layer)
        if result is None:
            failed_layers.add(str(layer.name))
        else:
            state, schedule = result
            schedules.append(schedule)
    return state, schedules


def _get_window_names(view: PackerGraphView) -> set[str]:
    """Return the packer's names of the convolutions and pools of a graph."""
    names = [str(node.name) for node in view.graph.graph if node.op_type in WINDOW_OPERATORS]
    return {view.node_names.get(name, name) for name in names}


def _evaluate(view: PackerGraphView, budget: _SearchBudget) -> DetailedVerdict | None:
    """Evaluate a graph with all possible tensors in external memory and without prefetch.

    These arguments need the least memory. Reduces `budget` by the number of steps; None if the
    graph cannot be planned or the budget is used up.
    """
    if budget.remaining_nodes < 0 or view.prepared.net is None:
        return None
    budget.remaining_nodes -= len(view.prepared.net.steps)
    return move_back_to_shared(view.prepared, view.target, view.base_options, prefetch=False)[1]


def _find_schedule(state: TilingState, layer: ir.Node) -> tuple[TilingState, TileSchedule] | None:
    """Return (state, schedule) of the schedule around `layer` that reduces the overload most.

    At most `_TRIALS` schedules are tried; ends with the first that begins with a convolution and
    meets the goal. None if no schedule reduces the overload without making more nodes incorrect.
    """
    goal_bytes = state.live_bytes_goal
    overload, best = state.measure_overload(goal_bytes), None
    min_overload = overload
    for schedule in itertools.islice(_iterate_trials(state, layer), _TRIALS):
        tiled = state.evaluate_with(schedule)
        if tiled is None or not tiled.incorrect_nodes <= state.incorrect_nodes:
            continue
        tiled_overload = tiled.measure_overload(goal_bytes)
        if tiled_overload >= overload:
            continue
        if tiled_overload < min_overload:
            best, min_overload = (tiled, schedule), tiled_overload
        nodes = schedule.run.nodes
        layer_names = {str(node.name) for node in nodes}
        if nodes[0].op_type == CONV2D.name and _is_within_goal(tiled, layer_names, goal_bytes):
            break
    return best


def _iterate_trials(state: TilingState, layer: ir.Node) -> Iterator[TileSchedule]:
    """Yield schedules that contain `layer` and tile only layers not tiled before.

    They start up to `_MAX_LOOKBACK_NODES` nodes before it, at convolutions first, because their
    output is large; at most `_MAX_SCHEDULES_PER_START` from each.
    """
    nodes = list(state.view.graph.graph)
    index, external_bytes = nodes.index(layer), state.view.target.external_memory or 0
    starts = range(index, max(index - _MAX_LOOKBACK_NODES, 0) - 1, -1)
    for start in sorted(starts, key=lambda start: nodes[start].op_type != CONV2D.name):
        schedules = iterate_schedules(
            state.view.graph, start, layer, state.live_bytes_goal, external_bytes
        )
        for schedule in itertools.islice(schedules, _MAX_SCHEDULES_PER_START):
            if all(str(node.name) in state.untiled for node in schedule.run.nodes):
                yield schedule


def _is_within_goal(state: TilingState, layers: Collection[str], goal_bytes: int) -> bool:
    """Whether the first tiles of `layers` are correct and use at most `goal_bytes`.

    That holds for the live bytes at each of their steps, and for their largest work area times
    `_WORK_AREA_DIVISOR`. The first tile keeps its layer's name, by which findings and plan entries
    are looked up.
    """
    graph, plan = state.verdict.graph, state.verdict.memory_plan
    assert graph is not None
    assert plan is not None
    packer_names = {state.view.node_names.get(layer, layer) for layer in layers}
    if not packer_names.isdisjoint(state.incorrect_nodes):
        return False
    max_work_area_bytes = max((plan.work_areas.get(name, 0) for name in packer_names), default=0)
    if _WORK_AREA_DIVISOR * max_work_area_bytes > goal_bytes:
        return False
    return all(
        size_bytes <= goal_bytes
        for size_bytes, step in zip(state.live_bytes, graph.steps, strict=True)
        if step.origin in packer_names
    )
