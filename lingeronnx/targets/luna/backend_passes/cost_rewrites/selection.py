"""Which forms are taken.

Each by its own price, all together by the verdict and by the time of the whole graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .....graph import ir
from ...._target import AppliedRewrite
from ....latency import CycleSavings, Latency
from ....objective import ACCURACY, MEMORY, PLAIN, get_objective
from ...kernel_costs import ARCS
from ...packer.arguments.local_search import rank_verdict
from ...packer.arguments.speed import get_comparison_cycles
from ...packer_profile import get_kernel_costs
from ..packer_view import PackerGraphView
from .data_movement import (
    propose_matrix_transposes,
    propose_slice_bypass,
    propose_transposed_concat,
    propose_transposed_slice,
)
from .graph_editor import RewriteEditor
from .layers import propose_depthwise_conv, propose_pointwise_conv
from .node_costs import NodeCostModel
from .proposal import RewriteProposal
from .upsampling import propose_conv_transpose

__all__ = ["apply_cost_rewrites"]

_Rewrite = Callable[[RewriteEditor, ir.Node], RewriteProposal | None]

#: In the order in which they are offered: what makes others needless first.
_REWRITES: tuple[_Rewrite, ...] = (
    propose_slice_bypass,
    propose_depthwise_conv,
    propose_pointwise_conv,
    propose_conv_transpose,
    propose_transposed_concat,
    propose_transposed_slice,
    propose_matrix_transposes,
)

#: The share of a node's cycles that a form must save, and the share of the whole graph's that all must: for less a
#: graph stays as it was made, which is easier to read.
_MIN_NODE_SAVING, _MIN_GRAPH_SAVING = 0.02, 0.05


@dataclass(frozen=True)
class _GraphScore:
    """What is known of a graph.

    How good the verdict is, how long it takes, and the shared memory that it needs.
    first : how long it takes under the first arguments that are right.
    """

    rank: int
    first: Latency
    latency: Latency
    weight: float
    shared_bytes: int

    @classmethod
    def evaluate(cls, read: PackerGraphView) -> _GraphScore | None:
        """Judge the part for the chip; None where that does not come out right."""
        choice = read.fastest_arguments
        said, time = choice.verdict, choice.verdict.comparison_latency
        if not said.is_chip_ready or time is None or said.memory_plan is None:
            return None
        first = None if choice.first is None else choice.first.comparison_latency
        return cls(
            rank_verdict(said),
            first or time,
            time,
            get_comparison_cycles(time, read.target),
            said.memory_plan.required_bytes,
        )

    def is_better_than(self, other: _GraphScore, objective: str) -> bool:
        """Whether it is promised as well and clearly takes less time, with no more bytes whose price is not known."""
        mine, others = (sum(work.bytes for work in told.latency.unpriced) for told in (self, other))
        if objective == MEMORY and self.shared_bytes > other.shared_bytes:
            return False
        return (
            self.rank <= other.rank
            and self.weight < (1.0 - _MIN_GRAPH_SAVING) * other.weight
            and mine <= others
        )


def apply_cost_rewrites(
    view: PackerGraphView,
) -> tuple[ir.Model, list[AppliedRewrite], CycleSavings | None]:
    """Return the integer graph `view` with nodes in forms that take fewer cycles, what was done, and what that saves.

    The same graph where nodes keep their forms, where it is not right on the chip, and where no
    form saves anything. All forms are taken together where the whole is promised so, else kind by
    kind. With `ACCURACY` nothing is judged where forms cannot save enough, and nothing is decided
    by another chip's prices.
    """
    graph, target, objective = view.graph, view.target, get_objective(view.graph)
    sheet = RewriteEditor(graph, target, NodeCostModel(get_kernel_costs(target) or ARCS))
    if objective == PLAIN or (objective == ACCURACY and not _can_save_enough(sheet)):
        return graph, [], None
    before = now = _GraphScore.evaluate(view)
    if before is None or now is None:
        return graph, [], None
    done: list[AppliedRewrite] = []
    every: list[AppliedRewrite] = []
    kinds: list[Sequence[_Rewrite]] = [_REWRITES, *((rewrite,) for rewrite in _REWRITES)]
    for some in kinds:
        trial = ir.clone(graph)
        made = _rewrite_nodes(sheet.for_graph(trial), some)
        if some is not _REWRITES and made == every:  # judged already
            continue
        after = _GraphScore.evaluate(view.for_graph(trial)) if made else None
        if after is not None and after.is_better_than(now, objective):
            graph, now = trial, after
            done += made
        if some is _REWRITES:
            every = made
            if done or not made:
                break
    if objective == ACCURACY and not done:
        return graph, [], None
    saved = CycleSavings(
        round(before.first.high),
        round(now.latency.high),
        target.name,
        get_kernel_costs(target) is None,
    )
    return graph, done, saved


def _can_save_enough(sheet: RewriteEditor) -> bool:
    """Whether forms may save enough of a graph on a chip whose prices are known, by the prices of single nodes.

    Nothing is written. What only a Slice read may go with it.
    """
    if get_kernel_costs(sheet.target) is None:
        return False
    saved = 0.0

    def known(nodes: Iterable[ir.Node]) -> float:
        return sum(
            cycles
            for node in nodes
            if (cycles := sheet.costs.estimate_node_cycles(node)) < math.inf
        )

    for node in sheet.graph.graph:
        for rewrite in _REWRITES:
            form = rewrite(sheet, node)
            if form is not None:
                gone = [
                    node,
                    *([ir.producer(node.inputs[0])] if rewrite is propose_slice_bypass else []),
                ]
                saved += max(known([each for each in gone if each is not None]) - form.cycles, 0.0)
    return saved > _MIN_GRAPH_SAVING * known(sheet.graph.graph) if saved else False


def _rewrite_nodes(sheet: RewriteEditor, rewrites: Sequence[_Rewrite]) -> list[AppliedRewrite]:
    """Write every node in its cheapest form, in place; return what was done."""
    done = []
    for rewrite in rewrites:
        for node in list(sheet.graph.graph):
            form = rewrite(sheet, node)
            now = sheet.costs.estimate_node_cycles(node) if form is not None else 0.0
            if form is not None and now - form.cycles > _MIN_NODE_SAVING * now:
                name = str(node.name)
                form.write()
                done.append(AppliedRewrite(name, form.description, "exact"))
    if done:
        sheet.remove_unused()
    return done
