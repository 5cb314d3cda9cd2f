"""Choose which cascades to tile, and into how many tiles, by evaluating schedules."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....ir import ir
from ....operators.integer_ops import ADD, AVG_POOL2D, BATCH_NORM2D, CONCAT, CONV2D
from ....targets import Target
from ....targets._target import AppliedRewrite
from ...arguments.selection import EvaluatedArguments
from ...evaluation import DetailedVerdict, evaluate_plan
from ...packer.limits.limit_tables import TILING_LIMITS
from ...packer.memory.lower_bounds import compute_min_shared_bytes
from ...packer.memory.plan import get_shared_memory_limit
from ...packer.options import PSRAM
from ...packer.packer_graph import PackerGraph
from ..packer_view import PackerGraphView
from .cascades import find_cascades, sample_bytes
from .iterative_search import search_iteratively
from .schedules import TileSchedule, apply_schedule, iterate_schedules

__all__ = ["tile_large_layers"]

_MAX_TRIALS = 32  # schedules per start node that are evaluated under few arguments
_MAX_FULL_EVALUATIONS = 2  # of these, under all arguments; 1 for earlier start nodes
_MAX_TILED_CASCADES = 8  # per graph
_SPATIAL_OPERATORS = (CONV2D.name, "MaxPool", AVG_POOL2D.name, ADD.name, "Relu")
_TILEABLE_OPERATORS = (*_SPATIAL_OPERATORS, BATCH_NORM2D.name)  # these need not fit untiled
_MAX_LOOKBACK_NODES = 4  # start nodes before an oversized layer; also the number of crowded layers


class _TiledGraph(NamedTuple):
    """A graph with one more tiled cascade, and the schedule of the cascade."""

    view: PackerGraphView
    schedule: TileSchedule

    @property
    def is_ready(self) -> bool:
        """Whether the graph is ready for the chip under its best arguments."""
        return self.view.may_be_ready and self.view.safest_arguments.verdict.is_chip_ready

    def list_new_names(self, untiled: PackerGraphView) -> set[str | None]:
        """Return the names of the layers of the tiles, which no later cascade contains.

        The iqCat that joins tiles of rows, and their Slices, end every cascade. Tiles of columns
        only are left out: a later cascade may contain them. `untiled` is the graph before.
        """
        if len(self.schedule.rows.tiles) == 1:
            return set()
        names: set[str | None] = {
            node.name
            for node in self.view.graph.graph
            if node.op_type not in ("Slice", CONCAT.name)
        }
        names -= {node.name for node in untiled.graph.graph}
        return names | {node.name for node in self.schedule.run.nodes}


def tile_large_layers(view: PackerGraphView) -> tuple[PackerGraphView, list[AppliedRewrite]]:
    """Tile cascades of layers until the graph fits in the chip's shared memory.

    At most `_MAX_TILED_CASCADES` are tiled one by one; then an iterative search is tried. A graph
    that still does not fit is returned tiled only if its tiles have no findings.

    Returns
    -------
    view : PackerGraphView
        The tiled graph; the argument itself if it fits already, or if no tiling helps.
    rewrites : list of AppliedRewrite
        Descriptions of the tilings.
    """
    if view.target.shared_memory is None or _has_unfittable_node(view):
        return view, []
    result = _tile_one_by_one(view, gives_up=True)
    if result.is_ready:
        return result.view, result.rewrites
    if not result.was_tried:
        return view, []
    iterative_result = _tile_iteratively(view)
    if iterative_result is not None:
        return iterative_result
    if result.gave_up:
        result = _tile_one_by_one(view, gives_up=False)
    if not result.rewrites or not _has_improved(result.view.safest_arguments, result.untiled):
        return view, []
    return result.view, result.rewrites


@dataclass
class _OneByOneResult:
    """A graph in which cascades were tiled one after the other.

    Attributes
    ----------
    untiled
        Names of the layers of the original graph that are not tiled.
    rewrites
        Descriptions of the tilings.
    is_ready
        Whether the graph is ready for the chip.
    was_tried
        Whether there was a layer to tile.
    gave_up
        Whether the search ended because no further tiling can make the graph ready.
    """

    view: PackerGraphView
    untiled: set[str | None]
    rewrites: list[AppliedRewrite]
    is_ready: bool = False
    was_tried: bool = True
    gave_up: bool = False


def _tile_one_by_one(view: PackerGraphView, gives_up: bool) -> _OneByOneResult:
    """Tile at most `_MAX_TILED_CASCADES` cascades, until the graph is ready for the chip.

    With `gives_up`, ends as soon as the tiles so far cannot be correct in the shared memory.
    """
    result = _OneByOneResult(view, {node.name for node in view.graph.graph}, [])
    tile_names: set[str | None] = set()
    for _ in range(_MAX_TILED_CASCADES):
        layers = _select_layers_to_tile(result.view, result.untiled, is_tiled=bool(result.rewrites))
        if not result.rewrites and not layers:
            result.was_tried = False
            break
        if not view.has_room_for_constants:
            break
        tiled = _tile_first_possible(result.view, layers)
        if tiled is None:
            break
        tile_names |= tiled.list_new_names(result.view)
        result.view = tiled.view
        result.untiled -= {node.name for node in tiled.schedule.run.nodes}
        result.rewrites.append(tiled.schedule.describe())
        if tiled.is_ready:
            result.is_ready = True
            break
        others = [node for node in tiled.view.graph.graph if node.name not in tile_names]
        if gives_up and not tiled.view.may_be_ready_without(others):
            result.gave_up = True
            break
    return result


def _tile_iteratively(
    view: PackerGraphView,
) -> tuple[PackerGraphView, list[AppliedRewrite]] | None:
    """Return (tiled graph, descriptions of all changes) of the iterative search.

    None if it fails.
    """
    result = search_iteratively(view)
    if result is None:
        return None
    tiled_view, schedules, preparations = result
    return tiled_view, [*preparations, *(schedule.describe() for schedule in schedules)]


def _tile_first_possible(view: PackerGraphView, layers: list[ir.Node]) -> _TiledGraph | None:
    """Return the graph tiled around the first of `layers` that has a schedule; None if none has."""
    for layer in layers:
        tiled = _find_schedule(view, layer)
        if tiled is not None:
            return tiled
    return None


def _select_layers_to_tile(
    view: PackerGraphView, untiled: Collection[str | None], is_tiled: bool
) -> list[ir.Node]:
    """Return the next layers to try to tile: the first oversized one, or else a few crowded ones.

    `untiled` are the names outside tiles; empty if the oversized layer is tiled already. `is_tiled`
    tells whether the graph has tiles, or is the original graph.
    """
    oversized = _find_oversized_layer(view.graph, view.target)
    if oversized is None:
        return _find_crowded_layers(view, untiled, is_tiled)
    return [oversized] if oversized.name in untiled else []


def _has_unfittable_node(view: PackerGraphView) -> bool:
    """Whether a node that cannot be tiled exceeds shared memory in any placement.

    False if the graph could not be read.
    """
    net, target, names = view.prepared.net, view.target, view.node_names
    if net is None:
        return False
    fixed_nodes = {
        names.get(str(node.name), str(node.name))
        for node in view.graph.graph
        if node.op_type not in _TILEABLE_OPERATORS
    }
    limit_bytes = get_shared_memory_limit(target, view.base_options)
    return any(
        required_bytes > limit_bytes and origin in fixed_nodes
        for origin, required_bytes in compute_min_shared_bytes(net, target).items()
    )


def _has_improved(arguments: EvaluatedArguments, untiled: Collection[str | None]) -> bool:
    """Whether the tiled graph is ready, or fits and its tiles have no findings of their own.

    `untiled` are the names of the nodes outside the tiles; overrun warnings do not count.
    """
    verdict = arguments.verdict
    if verdict.is_chip_ready:
        return True
    if verdict.memory_plan is None or not verdict.memory_plan.fits:
        return False
    return all(f.level == "plan" or f.node in untiled for f in verdict.findings)


def _find_oversized_layer(graph: ir.Model, target: Target) -> ir.Node | None:
    """Return the first layer whose data exceed the shared memory or a limit that tiling satisfies.

    Only operators on images are checked, the limits for a Conv2dInt only. None if there is none.
    """
    shared_bytes = target.shared_memory or 0
    for node in graph.graph:
        if node.op_type not in _SPATIAL_OPERATORS:
            continue
        if _measure_activation_bytes(node) > shared_bytes:
            return node
        if node.op_type == CONV2D.name and any(limit(node, target) for limit in TILING_LIMITS):
            return node
    return None


def _measure_activation_bytes(node: ir.Node) -> int:
    """Return the int8 bytes per sample of the distinct non-constant operands of `node`.

    Operands are inputs and outputs.
    """
    activations = {
        value
        for value in (*node.inputs, *node.outputs)
        if value is not None and ir.const_value(value) is None
    }
    return sum(map(sample_bytes, activations))


def _find_crowded_layers(
    view: PackerGraphView, untiled: Collection[str | None], is_tiled: bool
) -> list[ir.Node]:
    """Return up to four untiled layers to tile if the default plan exceeds the shared memory.

    Layers with findings under the best arguments of a tiled graph come first, then those with the
    most live bytes. Empty if the plan fits, if there is none, or if the original graph is correct
    with other arguments.
    """
    names = view.node_names
    verdict = evaluate_plan(view.prepared, view.target, view.base_options)
    if verdict.memory_plan is None or verdict.memory_plan.fits:
        return []
    if not is_tiled and view.safest_arguments.verdict.is_chip_ready:
        return []
    findings = view.safest_arguments.verdict.findings if is_tiled else ()
    nodes_with_findings = [finding.node for finding in findings if finding.level != "plan"]
    layer_by_packer_name = {
        names.get(str(node.name), str(node.name)): node
        for node in view.graph.graph
        if node.name in untiled and node.op_type in _SPATIAL_OPERATORS
    }
    ranking = dict.fromkeys([*nodes_with_findings, *_rank_nodes_by_live_bytes(verdict)])
    layers = [layer_by_packer_name[name] for name in ranking if name in layer_by_packer_name]
    return layers[:_MAX_LOOKBACK_NODES]


def _rank_nodes_by_live_bytes(verdict: DetailedVerdict) -> list[str]:
    """Return the node names in descending order of the shared memory in use while they run.

    `verdict` must have a memory plan and a graph.
    """
    assert verdict.memory_plan is not None
    assert verdict.graph is not None
    steps = verdict.graph.steps
    live_bytes = verdict.memory_plan.compute_live_bytes(len(steps))
    bytes_by_node = {
        step.origin: size_bytes for step, size_bytes in zip(steps, live_bytes, strict=True)
    }
    return sorted(bytes_by_node, key=lambda origin: -bytes_by_node[origin])


def _find_schedule(view: PackerGraphView, required_node: ir.Node) -> _TiledGraph | None:
    """Tile a cascade around `required_node`; None if no schedule can fit.

    Cascades start at the node or up to `_MAX_LOOKBACK_NODES` before it. Returns the first schedule
    that makes the graph ready for the chip, or else the first whose tiles fit, which may be one of
    several that are needed.
    """
    first_valid: _TiledGraph | None = None
    nodes = list(view.graph.graph)
    index = nodes.index(required_node)
    for start in range(index, max(index - _MAX_LOOKBACK_NODES, 0) - 1, -1):
        max_evaluations = _MAX_FULL_EVALUATIONS if start == index else 1
        cascades = find_cascades(nodes, start, required_node)
        if not cascades:
            continue
        if not view.may_be_ready_without(cascades[-1].nodes):  # it contains the shorter ones
            if first_valid is not None:
                continue
            max_evaluations = 1
        tiled = _find_schedule_from(view, start, required_node, max_evaluations)
        if tiled is not None and tiled.is_ready:
            return tiled
        first_valid = first_valid or tiled
    return first_valid


def _find_schedule_from(
    view: PackerGraphView, start: int, required_node: ir.Node, max_evaluations: int
) -> _TiledGraph | None:
    """Return the graph tiled by the first chip-ready schedule of a cascade from node `start`.

    Of at most `_MAX_TRIALS` schedules with `required_node`, `max_evaluations` whose tiles can fit
    are evaluated under all arguments. If none is chip-ready, the first evaluated; None without any.
    """
    first_valid: _TiledGraph | None = None
    evaluations = 0
    schedules = iterate_schedules(view.graph, start, required_node, view.target.shared_memory or 0)
    for schedule in itertools.islice(schedules, _MAX_TRIALS):
        tiled_view = apply_schedule(view, schedule)
        tiled_names = {node.name for node in schedule.run.nodes}
        untiled = {node.name for node in view.graph.graph} - tiled_names
        if not _can_fit(
            tiled_view, {tiled_view.node_names.get(str(name), name) for name in untiled}
        ):
            continue
        tiled = _TiledGraph(tiled_view, schedule)
        if tiled.is_ready:
            return tiled
        first_valid = first_valid or tiled
        evaluations += 1
        if evaluations == max_evaluations:
            break
    return first_valid


def _can_fit(view: PackerGraphView, untiled: Collection[str | None]) -> bool:
    """Whether the tiles of a graph fit without findings, for one of several PSRAM placements.

    Findings on overruns and on the size of shared memory apart, only nodes in `untiled` may have
    some; and the plan must fit, or the node with the most live bytes must be in `untiled`.
    """
    net = view.prepared.net
    if net is None:
        return False
    for placed_in_psram in _list_psram_candidates(view, net):
        placements = dict.fromkeys(placed_in_psram, PSRAM)
        verdict = evaluate_plan(
            view.prepared, view.target, replace(view.base_options, placements=placements)
        )
        plan = verdict.memory_plan
        if plan is None:
            continue
        nodes_with_findings = {f.node for f in verdict.findings if f.level != "plan"}
        if not nodes_with_findings - {"shared memory"} <= set(untiled):
            continue
        if plan.fits or _rank_nodes_by_live_bytes(verdict)[0] in untiled:
            return True
    return False


def _list_psram_candidates(view: PackerGraphView, net: PackerGraph) -> list[set[str]]:
    """Return three sets of tensors to try in PSRAM: around the tiles, with tile results, and none.

    Around are the graph inputs, the inputs of Slices and the outputs of the graph's iqCats, without
    outputs of Slices.
    """
    concat_names = {
        view.node_names.get(str(node.name), node.name)
        for node in view.graph.graph
        if node.op_type == CONCAT.name
    }
    boundary, slice_results, tile_results = set(net.inputs), set[str](), set[str]()
    for step in net.steps:
        if step.op == "Slice":
            boundary.add(step.inputs[0])
            slice_results.add(step.outputs[0])
        # Not the concatenations that the packer inserts where it splits a convolution.
        if step.origin in concat_names:
            boundary.add(step.outputs[0])
            tile_results.update(step.inputs)
    boundary -= slice_results
    return [boundary, boundary | tile_results, set()]
