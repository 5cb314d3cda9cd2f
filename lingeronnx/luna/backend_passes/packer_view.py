"""The packer's view of an integer graph, computed once for all passes that need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import onnx

from ...common.deadline import check_deadline
from ...ir import ir
from ...ir.name_mapping import NameMapping, apply_file_names_to_proto
from ...operators.chip_part import extract_chip_part
from ...targets import Target
from ..arguments.selection import (
    EvaluatedArguments,
    make_base_options,
    select_fastest_arguments,
    select_safest_for,
)
from ..evaluation import NodeLimitChecker, PreparedGraph, prepare_graph
from ..packer.memory.lower_bounds import (
    compute_min_constant_bytes,
    compute_min_correct_bytes,
    list_shared_needs,
)
from ..packer.memory.plan import get_shared_memory_limit
from ..packer.names import build_safe_names
from ..packer.options import PackerOptions

__all__ = ["PackerGraphView"]


class PackerGraphView:
    """The packer's view of a graph: its chip part, arguments and verdict, each computed on demand.

    The graph must not change afterwards.

    Parameters
    ----------
    graph
        Integer graph.
    target
        The chip.
    limits
        Limit checker of `target`, which remembers the results for nodes of other graphs.
    ignore_node_limits
        Plan nodes that exceed a limit as well, because a pass is to fix that.
    """

    def __init__(
        self,
        graph: ir.Model,
        target: Target,
        limits: NodeLimitChecker | None = None,
        ignore_node_limits: bool = False,
    ) -> None:
        """View `graph` as the packer for `target` would; nothing is computed yet.

        `limits` is a limit checker whose cache is shared, None for a new one. With
        `ignore_node_limits`, nodes that exceed a limit are planned as well.
        """
        self.graph, self.target = graph, target
        self.ignore_node_limits = ignore_node_limits
        self.limits = NodeLimitChecker(target) if limits is None else limits

    def for_graph(self, graph: ir.Model, ignore_node_limits: bool = False) -> PackerGraphView:
        """Return the view of another graph for the same chip, with the same limit checker.

        Node limits are ignored if `ignore_node_limits` is set or this view ignores them.
        """
        return PackerGraphView(
            graph, self.target, self.limits, ignore_node_limits or self.ignore_node_limits
        )

    @cached_property
    def _names(self) -> NameMapping:
        """The mapping from names of the graph that the packer does not accept to accepted ones."""
        return build_safe_names(self.graph)

    @property
    def node_names(self) -> Mapping[str, str]:
        """Node name -> its name in the packer's file, for renamed nodes only."""
        return self._names.nodes

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The model that the packer receives: the chip part of the graph with accepted names."""
        proto = ir.to_proto(extract_chip_part(self.graph, self.target))
        apply_file_names_to_proto(proto, self._names)
        return proto

    @cached_property
    def base_options(self) -> PackerOptions:
        """The packer options that every candidate of arguments has: platform and symbol sizes."""
        return make_base_options(self.proto, self.target)

    @cached_property
    def prepared(self) -> PreparedGraph:
        """The packer's model, parsed and transformed, for evaluation under several options.

        Every search does this for each graph it tries, so this is where a deadline ends it.
        """
        check_deadline()
        return prepare_graph(
            self.proto, self.target, self.base_options, self.limits, self.ignore_node_limits
        )

    @cached_property
    def has_room_for_constants(self) -> bool:
        """Whether a memory holds the constants of the graph, which tiling does not make smaller.

        True if the graph could not be read or the size of the external memory is not known.
        """
        facts, external_bytes = self.prepared.facts, self.target.external_memory
        if facts is None or external_bytes is None:
            return True
        limit_bytes = get_shared_memory_limit(self.target, self.base_options)
        return compute_min_constant_bytes(facts) <= max(external_bytes, limit_bytes)

    @cached_property
    def may_be_ready(self) -> bool:
        """Whether the graph can be ready for the chip under some arguments.

        False if that is known without trying any: from findings that no arguments change, or from
        the shared memory that nodes need wherever other tensors are.
        """
        facts = self.prepared.facts
        if facts is None or any(f.level in ("packs", "right") for f in self.prepared.findings):
            return False
        limit_bytes = get_shared_memory_limit(self.target, self.base_options)
        return compute_min_correct_bytes(facts) <= limit_bytes

    def may_be_ready_without(self, nodes: Iterable[ir.Node]) -> bool:
        """Whether the graph can be ready for the chip after `nodes` are replaced by others.

        False if a remaining node needs more shared memory than there is, together with the work
        area that another one needs.
        """
        facts = self.prepared.facts
        if facts is None:
            return True
        replaced = {self.node_names.get(str(node.name), str(node.name)) for node in nodes}
        needs = [
            need
            for step, need in zip(facts.net.steps, facts.remember(list_shared_needs), strict=True)
            if step.origin not in replaced and need.work_area_bytes
        ]
        tensor_bytes = max((need.tensor_bytes for need in needs), default=0)
        work_area_bytes = max((need.work_area_bytes for need in needs), default=0)
        limit_bytes = get_shared_memory_limit(self.target, self.base_options)
        return tensor_bytes + work_area_bytes <= limit_bytes

    @cached_property
    def safest_arguments(self) -> EvaluatedArguments:
        """The first arguments under which the graph is correct, with the verdict.

        If none is correct, the best ones.
        """
        return select_safest_for(self.prepared, self.target, self.base_options)

    @property
    def fastest_arguments(self) -> EvaluatedArguments:
        """The fastest arguments under which the graph is correct, with the verdict.

        If none is correct, the best ones.
        """
        return select_fastest_arguments(self.proto, self.target, self.prepared)
