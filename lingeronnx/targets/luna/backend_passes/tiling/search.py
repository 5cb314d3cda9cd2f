"""Which run of layers is cut into how many tiles.

Tried out with the packer's rules and its memory plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from .....formats import ADD, AVG_POOL2D, BATCH_NORM2D, CONCAT, CONV2D
from .....graph import ir
from .... import Target
from ...._target import AppliedRewrite
from ...packer.arguments.selection import EvaluatedArguments
from ...packer.evaluation import DetailedVerdict, evaluate_plan
from ...packer.limits.limit_tables import TILING_LIMITS
from ...packer.memory.lower_bounds import compute_min_shared_bytes
from ...packer.memory.plan import get_shared_memory_limit
from ...packer.options import PSRAM
from ..packer_view import PackerGraphView
from .cascades import sample_bytes
from .iterative_search import search_iteratively
from .schedules import TileSchedule, apply_schedule, iterate_schedules

__all__ = ["tile_large_layers"]

_MAX_TRIALS = 32  # of the runs that begin with one node, under few arguments
_MAX_FULL_EVALUATIONS = 2  # of these, under all arguments; 1 of runs that begin further back
_MAX_TILED_CASCADES = 8  # runs of one graph
_SPATIAL_OPERATORS = (CONV2D.name, "MaxPool", AVG_POOL2D.name, ADD.name, "Relu")
_TILEABLE_OPERATORS = (*_SPATIAL_OPERATORS, BATCH_NORM2D.name)  # what may have no room by itself
_MAX_LOOKBACK_NODES = (
    4  # nodes to go back from the one that is too large, and of those that are merely crowded
)


def tile_large_layers(view: PackerGraphView) -> tuple[PackerGraphView, list[AppliedRewrite]]:
    """Return the integer graph `view` for its chip with runs of layers cut until it fits, and what was done.

    The same graph where it fits as it is, or where no cut helps.
    """
    if view.target.shared_memory is None or _has_unfittable_node(view):
        return view, []
    work, whole = view, {node.name for node in view.graph.graph}
    now: EvaluatedArguments | None = None
    done: list[AppliedRewrite] = []
    for _ in range(_MAX_TILED_CASCADES):
        wanted = _select_layers_to_tile(work, whole, now)
        if now is None and not wanted:
            return view, []
        best_cut = next(
            (best for node in wanted if (best := _find_schedule(work, node)) is not None), None
        )
        if best_cut is None:
            break
        work, now, cut = best_cut
        whole -= {node.name for node in cut.run.nodes}
        done.append(cut.describe())
        if now.verdict.is_chip_ready:
            return work, done
    many = search_iteratively(view)
    if many is not None:
        work, cuts_made, before = many
        return work, [*before, *(cut.describe() for cut in cuts_made)]
    return (work, done) if now is not None and _has_improved(now, whole) else (view, [])


def _select_layers_to_tile(
    read: PackerGraphView, untiled: Collection[str | None], best: EvaluatedArguments | None
) -> list[ir.Node]:
    """Return the layers of `untiled` to cut.

    The first that is too large, else a few that are crowded.
    """
    large = _find_oversized_layer(read.graph, read.target)
    return (
        _find_crowded_layers(read, untiled, best)
        if large is None
        else [large]
        if large.name in untiled
        else []
    )


def _has_unfittable_node(view: PackerGraphView) -> bool:
    """Whether a node that is never cut has no room, wherever its tensors lie."""
    net, target, names = view.prepared.net, view.target, view.node_names
    if net is None:
        return False
    kept = {
        names.get(str(node.name), str(node.name))
        for node in view.graph.graph
        if node.op_type not in _TILEABLE_OPERATORS
    }
    needs = compute_min_shared_bytes(net, target)
    return any(
        need > get_shared_memory_limit(target, view.base_options) and origin in kept
        for origin, need in needs.items()
    )


def _has_improved(judgement: EvaluatedArguments, whole: Collection[str | None]) -> bool:
    """Whether the graph fits now, and nothing stands against what was made."""
    said = judgement.verdict
    new_findings = [f for f in said.findings if f.level != "plan" and f.node not in whole]
    return said.is_chip_ready or (
        said.memory_plan is not None and said.memory_plan.fits and not new_findings
    )


def _find_oversized_layer(graph: ir.Model, target: Target) -> ir.Node | None:
    """Return the first layer whose input and output exceed the shared memory, or what its operator can take."""
    for node in graph.graph:
        if node.op_type not in _SPATIAL_OPERATORS:
            continue
        both = {
            v for v in (*node.inputs, *node.outputs) if v is not None and ir.const_value(v) is None
        }
        if sum(map(sample_bytes, both)) > (target.shared_memory or 0) or (
            node.op_type == CONV2D.name and any(limit(node, target) for limit in TILING_LIMITS)
        ):
            return node
    return None


def _find_crowded_layers(
    view: PackerGraphView, untiled: Collection[str | None], best: EvaluatedArguments | None
) -> list[ir.Node]:
    """Return a few layers of `untiled` to cut where the plan exceeds the shared memory.

    First those that something stands against where `best` was chosen, then those at which most
    bytes live at once. None where the packer takes the graph as it is or with tensors in psram, as
    it does not where `best` was chosen; and where it refuses the graph for another reason.
    """
    names = view.node_names
    said = evaluate_plan(view.prepared, view.target, view.base_options)
    if (
        said.memory_plan is None
        or said.memory_plan.fits
        or (best is None and view.safest_arguments.verdict.is_chip_ready)
    ):
        return []
    against = [] if best is None else [f.node for f in best.verdict.findings if f.level != "plan"]
    written_as = {
        names.get(str(node.name), str(node.name)): node
        for node in view.graph.graph
        if node.name in untiled and node.op_type in _SPATIAL_OPERATORS
    }
    order = dict.fromkeys([*against, *_rank_nodes_by_live_bytes(said)])
    return [written_as[name] for name in order if name in written_as][:_MAX_LOOKBACK_NODES]


def _rank_nodes_by_live_bytes(verdict: DetailedVerdict) -> list[str]:
    """Return the nodes by the bytes of shared memory that are in use, most first."""
    assert verdict.memory_plan is not None
    assert verdict.graph is not None
    steps = verdict.graph.steps
    living = {
        step.origin: size
        for step, size in zip(
            steps, verdict.memory_plan.compute_live_bytes(len(steps)), strict=True
        )
    }
    return sorted(living, key=lambda origin: -living[origin])


def _find_schedule(
    view: PackerGraphView, required_node: ir.Node
) -> tuple[PackerGraphView, EvaluatedArguments, TileSchedule] | None:
    """Return the first split around `required_node` that makes the graph ready, else the first valid split.

    The latter may be one of several that are needed.
    """
    first: tuple[PackerGraphView, EvaluatedArguments, TileSchedule] | None = None
    where = list(view.graph.graph).index(required_node)
    for start in range(where, max(where - _MAX_LOOKBACK_NODES, 0) - 1, -1):
        found = _find_schedule_from(
            view, start, required_node, _MAX_FULL_EVALUATIONS if start == where else 1
        )
        if found is not None and found[1].verdict.is_chip_ready:
            return found
        first = first or found
    return first


def _find_schedule_from(
    view: PackerGraphView, start: int, required_node: ir.Node, max_evaluations: int
) -> tuple[PackerGraphView, EvaluatedArguments, TileSchedule] | None:
    """Return the same of the runs that begin with node `start`.

    At most `max_evaluations` cuts are judged under all arguments.
    """
    first: tuple[PackerGraphView, EvaluatedArguments, TileSchedule] | None = None
    graph, passed = view.graph, 0
    for cut in itertools.islice(
        iterate_schedules(graph, start, required_node, view.target.shared_memory or 0), _MAX_TRIALS
    ):
        other = apply_schedule(view, cut)
        left = {node.name for node in graph.graph} - {node.name for node in cut.run.nodes}
        if not _can_fit(other, {other.node_names.get(str(name), name) for name in left}):
            continue
        judgement = other.safest_arguments
        first = first or (other, judgement, cut)
        if judgement.verdict.is_chip_ready:
            return other, judgement, cut
        passed += 1
        if passed == max_evaluations:
            break
    return first


def _can_fit(view: PackerGraphView, untiled: Collection[str | None]) -> bool:
    """Whether nothing stands against the tiles with the arguments that were measured right.

    Only what is in `untiled`.
    """
    net = view.prepared.net
    if net is None:
        return False
    written = {
        view.node_names.get(str(n.name), n.name)
        for n in view.graph.graph
        if n.op_type == CONCAT.name
    }
    joins = [
        s for s in net.steps if s.origin in written
    ]  # not what the packer makes of a convolution it cuts
    cuts = {s.outputs[0] for s in net.steps if s.op == "Slice"}
    ends = {
        *net.inputs,
        *(s.outputs[0] for s in joins),
        *(s.inputs[0] for s in net.steps if s.op == "Slice"),
    } - cuts
    for moved in (ends, ends | {name for s in joins for name in s.inputs}, set()):
        said = evaluate_plan(
            view.prepared,
            view.target,
            replace(view.base_options, placements=dict.fromkeys(moved, PSRAM)),
        )
        against = {f.node for f in said.findings if f.level != "plan"} - {"shared memory"}
        fits = said.memory_plan is not None and (
            said.memory_plan.fits or _rank_nodes_by_live_bytes(said)[0] in untiled
        )
        if fits and against <= set(untiled):
            return True
    return False
