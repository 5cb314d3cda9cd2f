"""Choose which composite operators of a float model are expanded for a target.

An operator that the target's rules leave on the host is replaced by a composition or by its
function body if that raises the share of the work that is done in integers. A chip's program is
never divided for that: integer nodes after the host stay a choice of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ...common.errors import ModelError
from ...ir import ir
from ...operators.macs import count_macs
from ...targets import Target
from ..normalize.expansion.expand import can_expand
from ..partition import Partition, count_float_operations
from .rewriter import Rewriter

__all__ = ["choose_expansions"]


class _IntegerShare(NamedTuple):
    """How much of a partitioned model is computed in integers; larger is better."""

    macs: int
    negative_float_operations: int
    negative_float_nodes: int


def choose_expansions(
    rewriter: Rewriter,
    original: ir.Model,
    partition: Callable[[], Partition],
    target: Target,
    kept: Collection[str],
) -> list[str]:
    """Set `rewriter.expanded` to the nodes whose expansion raises the integer share.

    Parameters
    ----------
    rewriter
        Rewrites the model; none of its nodes is expanded yet.
    original
        The user's model.
    partition
        Rewrites and partitions the model with the present expansions.
    target
        The target.
    kept
        Names of nodes of the user's model that stay as they are.

    Returns
    -------
    list of str
        Notes on the operators that are expanded, and on those that stay on the host.
    """
    opset = ir.get_opset(original)
    candidates = {
        str(node.name): node.op_type
        for node in original.graph
        if can_expand(node, opset) and node.name not in kept
    }
    if not candidates:
        return []
    search = _ExpansionSearch(rewriter, partition, target)
    on_host = search.find_host_nodes(candidates)
    names_by_type: dict[str, frozenset[str]] = {}
    for op_type in sorted({candidates[name] for name in on_host}):
        names_by_type[op_type] = frozenset(name for name in on_host if candidates[name] == op_type)
    search.run(names_by_type)
    return _format_notes(names_by_type, rewriter.expanded, search.obstacles)


class _ExpansionSearch:
    """Tries expansions.

    `best` is the partition with those of the rewriter; `obstacles` are {node: why its expansion was
    not tried, or what of it would stay in float}.
    """

    def __init__(
        self, rewriter: Rewriter, partition: Callable[[], Partition], target: Target
    ) -> None:
        """Partition the model without expansions."""
        self._rewriter, self._partition, self._target = rewriter, partition, target
        self.best = partition()
        self.obstacles: dict[str, str] = {}

    def find_host_nodes(self, candidates: Collection[str]) -> set[str]:
        """Return the names of `candidates` that stay in float in the best partition."""
        names = set()
        for node in self.best.graph.graph:
            origin = ir.origin_name(node)
            if str(node.name) in self.best.floats and origin in candidates:
                names.add(origin)
        return names

    def run(self, names_by_type: Mapping[str, frozenset[str]]) -> None:
        """Expand all nodes together if that helps, and then leave out operators without effect.

        If it does not help, each operator is tried by itself. `names_by_type` maps an operator to
        the names of its nodes.
        """
        everything = frozenset[str]().union(*names_by_type.values())
        helps = bool(everything) and self._try(everything)
        if len(names_by_type) < 2:
            return
        for names in names_by_type.values():
            if helps:
                self._try_without(names)
            else:
                self._try(self._rewriter.expanded | names)

    def _try(self, names: frozenset[str]) -> bool:
        """Expand exactly `names` if that is better than the best; return whether it is."""
        previous, self._rewriter.expanded = self._rewriter.expanded, names
        try:
            proposal = self._partition()
        except ModelError:  # the model without the expansion runs
            self._rewriter.expanded = previous
            self.obstacles.update(dict.fromkeys(names - previous, "onnxruntime does not run it"))
            return False
        self.obstacles.update(_find_float_reasons(proposal, names))
        if _is_improvement(self.best, proposal, self._target):
            self.best = proposal
            return True
        self._rewriter.expanded = previous
        return False

    def _try_without(self, names: frozenset[str]) -> None:
        """Leave the nodes `names` as they are, unless their expansion is an improvement."""
        previous = self._rewriter.expanded
        self._rewriter.expanded = previous - names
        proposal = self._partition()
        if _is_improvement(proposal, self.best, self._target):
            self._rewriter.expanded = previous
        else:
            self.best = proposal


def _is_improvement(before: Partition, after: Partition, target: Target) -> bool:
    """Whether `after` computes more in integers than `before`, in as many parts on a chip."""
    if target.has_packer and after.has_inner_floats and not before.has_inner_floats:
        return False
    return _measure_share(after) > _measure_share(before)


def _measure_share(partition: Partition) -> _IntegerShare:
    """Measure what is computed in integers."""
    float_nodes = [node for node in partition.graph.graph if str(node.name) in partition.floats]
    return _IntegerShare(
        sum(count_macs(node) for node, _ in partition.integer_nodes),
        -count_float_operations(float_nodes),
        -len(float_nodes),
    )


def _find_float_reasons(proposal: Partition, names: Collection[str]) -> dict[str, str]:
    """Return {node of `names`: the first operator of its expansion that stays in float, and why}.

    The text is empty if all are computed in integers.
    """
    reasons = dict.fromkeys(names, "")
    for node in proposal.graph.graph:
        origin, reason = ir.origin_name(node), proposal.floats.get(str(node.name))
        if reason is not None and not reasons.get(origin, "-"):
            reasons[origin] = f"{ir.base_op_type(node)}: {reason}"
    return reasons


def _format_notes(
    names_by_type: Mapping[str, frozenset[str]],
    expanded: Collection[str],
    obstacles: Mapping[str, str],
) -> list[str]:
    """Format one note per operator: how many nodes are expanded, or why it stays on the host."""
    notes = []
    for op_type, names in names_by_type.items():
        count = f"{len(names)} node" + ("" if len(names) == 1 else "s")
        if names.issubset(expanded):
            notes.append(f"{op_type}: expanded to operators of the platform ({count})")
            continue
        first = min(names)
        obstacle = f" ({obstacles[first]})" if obstacles.get(first) else ""
        notes.append(
            f"{op_type} ({count}, such as {first}) stays on the host: its expansion would not "
            f"raise the share of integers in the platform's program{obstacle}"
        )
    return notes
