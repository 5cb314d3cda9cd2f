"""Select cost rewrites: each by the cost of its node, all together by verdict and total latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ....ir import ir
from ....targets._target import AppliedRewrite
from ....targets.latency import CycleSavings, Latency
from ....targets.objective import ACCURACY, MEMORY, PLAIN, get_objective
from ...arguments.local_search import rank_verdict
from ...arguments.speed import get_comparison_cycles
from ...kernel_costs import ARCS
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

#: In the order in which they are applied: those that make others unnecessary come first.
_REWRITES: tuple[_Rewrite, ...] = (
    propose_slice_bypass,
    propose_depthwise_conv,
    propose_pointwise_conv,
    propose_conv_transpose,
    propose_transposed_concat,
    propose_transposed_slice,
    propose_matrix_transposes,
)

#: Fractions of the cycles of a node, and of the graph, that rewrites must save. For less, the graph
#: keeps its original form, which is easier to read.
_MIN_NODE_SAVING, _MIN_GRAPH_SAVING = 0.02, 0.05


@dataclass(frozen=True)
class _GraphScore:
    """Evaluation of a graph.

    Attributes
    ----------
    rank
        Rank of the verdict; lower is better.
    first
        Latency under the first arguments that are correct.
    latency, comparison_cycles
        Latency under the fastest arguments, and its cycles for comparisons.
    shared_bytes
        Shared memory that the plan needs.
    """

    rank: int
    first: Latency
    latency: Latency
    comparison_cycles: float
    shared_bytes: int

    @classmethod
    def evaluate(cls, view: PackerGraphView) -> _GraphScore | None:
        """Evaluate the chip part of `view` under its fastest arguments.

        None if it is incorrect, or has no latency or memory plan. The score holds the verdict's
        rank, the latencies of the first correct and the fastest arguments, cycles for comparison
        and the bytes of shared memory.
        """
        arguments = view.fastest_arguments
        verdict, latency = arguments.verdict, arguments.verdict.comparison_latency
        if not verdict.is_chip_ready or latency is None or verdict.memory_plan is None:
            return None
        first = None if arguments.first is None else arguments.first.comparison_latency
        return cls(
            rank_verdict(verdict),
            first or latency,
            latency,
            get_comparison_cycles(latency, view.target),
            verdict.memory_plan.required_bytes,
        )

    @property
    def unpriced_bytes(self) -> int:
        """Bytes that are moved by work without a cost model."""
        return sum(work.bytes for work in self.latency.unpriced)

    def is_better_than(self, reference: _GraphScore, objective: str) -> bool:
        """Whether the graph takes clearly fewer cycles than `reference` and is as good otherwise.

        It must save more than `_MIN_GRAPH_SAVING` of the cycles. Its rank and the bytes moved by
        work without a cost model must not be larger, nor, with the objective `MEMORY`, its shared
        memory.
        """
        if objective == MEMORY and self.shared_bytes > reference.shared_bytes:
            return False
        if self.rank > reference.rank or self.unpriced_bytes > reference.unpriced_bytes:
            return False
        return self.comparison_cycles < (1.0 - _MIN_GRAPH_SAVING) * reference.comparison_cycles


def apply_cost_rewrites(
    view: PackerGraphView,
) -> tuple[ir.Model, list[AppliedRewrite], CycleSavings | None]:
    """Rewrite nodes of an integer graph into forms that take fewer cycles.

    All rewrites are applied together if the resulting graph is better, or else kind by kind. With
    the objective `PLAIN` nothing is done. With `ACCURACY`, the graph is not evaluated if rewrites
    cannot save enough, nor if the kernel costs of the chip are unknown. The graph of `view` is not
    changed.

    Returns
    -------
    graph : ir.Model
        The rewritten graph; the original one if no rewrite helps or it is not correct on the chip.
    rewrites : list of AppliedRewrite
        Descriptions of the changes.
    savings : CycleSavings or None
        Cycles before and after, or None if the graph was not evaluated (or, with `ACCURACY`, not
        changed).
    """
    graph, target, objective = view.graph, view.target, get_objective(view.graph)
    kernel_costs = get_kernel_costs(target)
    editor = RewriteEditor(graph, target, NodeCostModel(kernel_costs or ARCS))
    if objective == PLAIN or (objective == ACCURACY and not _can_save_enough(editor)):
        return graph, [], None
    original_score = _GraphScore.evaluate(view)
    if original_score is None:
        return graph, [], None
    rewritten, rewrites, score = _apply_best_rewrites(view, editor, original_score, objective)
    if objective == ACCURACY and not rewrites:
        return graph, [], None
    savings = CycleSavings(
        round(original_score.first.high),
        round(score.latency.high),
        target.name,
        kernel_costs is None,
    )
    return rewritten, rewrites, savings


def _apply_best_rewrites(
    view: PackerGraphView, editor: RewriteEditor, score: _GraphScore, objective: str
) -> tuple[ir.Model, list[AppliedRewrite], _GraphScore]:
    """Apply all rewrites to a copy of the graph if that beats `score`, or else kind by kind.

    A kind is kept only if it makes the graph better. Returns (graph, descriptions of the changes,
    its score); the original graph and `score` if nothing helps.
    """
    graph = view.graph
    trial = graph.clone()
    all_rewrites = _rewrite_nodes(editor.for_graph(trial), _REWRITES)
    if not all_rewrites:
        return graph, [], score
    trial_score = _GraphScore.evaluate(view.for_graph(trial))
    if trial_score is not None and trial_score.is_better_than(score, objective):
        return trial, all_rewrites, trial_score
    applied: list[AppliedRewrite] = []
    for rewrite in _REWRITES:
        trial = graph.clone()
        rewrites = _rewrite_nodes(editor.for_graph(trial), (rewrite,))
        if not rewrites or rewrites == all_rewrites:  # equal to the graph evaluated above
            continue
        trial_score = _GraphScore.evaluate(view.for_graph(trial))
        if trial_score is not None and trial_score.is_better_than(score, objective):
            graph, score = trial, trial_score
            applied += rewrites
    return graph, applied, score


def _can_save_enough(editor: RewriteEditor) -> bool:
    """Whether all rewrites together might save more than `_MIN_GRAPH_SAVING` of the cycles.

    The estimate sums the costs of single nodes and changes nothing; the producer of a Slice's input
    may disappear together with the Slice. False if the kernel costs of the chip are unknown.
    """
    if get_kernel_costs(editor.target) is None:
        return False
    saved_cycles = 0.0
    for node in editor.graph.graph:
        for rewrite in _REWRITES:
            proposal = rewrite(editor, node)
            if proposal is None:
                continue
            removed = [node]
            if rewrite is propose_slice_bypass:
                producer = ir.producer(node.inputs[0])
                removed += [] if producer is None else [producer]
            saved_cycles += max(_sum_known_cycles(editor, removed) - proposal.cycles, 0.0)
    if not saved_cycles:
        return False
    return saved_cycles > _MIN_GRAPH_SAVING * _sum_known_cycles(editor, editor.graph.graph)


def _sum_known_cycles(editor: RewriteEditor, nodes: Iterable[ir.Node]) -> float:
    """Sum up the estimated cycles of `nodes`; nodes of unknown shape or type count as 0."""
    cycles = (editor.costs.estimate_node_cycles(node) for node in nodes)
    return sum(value for value in cycles if value < math.inf)


def _rewrite_nodes(editor: RewriteEditor, rewrites: Sequence[_Rewrite]) -> list[AppliedRewrite]:
    """Apply each of `rewrites` to each node where it saves cycles, in place.

    It must save more than `_MIN_NODE_SAVING` of the node's cycles. Returns descriptions of the
    changes, and removes unused nodes if there are any.
    """
    applied = []
    for rewrite in rewrites:
        for node in list(editor.graph.graph):
            proposal = rewrite(editor, node)
            if proposal is None:
                continue
            cycles = editor.costs.estimate_node_cycles(node)
            if cycles - proposal.cycles > _MIN_NODE_SAVING * cycles:
                name = str(node.name)
                proposal.write()
                applied.append(AppliedRewrite(name, proposal.description, "exact"))
    if applied:
        editor.remove_unused()
    return applied
