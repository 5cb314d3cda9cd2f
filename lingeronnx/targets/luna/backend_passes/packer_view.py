"""An integer graph as the packer reads it, once for all stages that ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx

from ....graph import ir
from ....graph.name_mapping import NameMapping, apply_file_names
from ....run.chip_part import extract_chip_part
from ... import Target
from ..packer.arguments.selection import (
    EvaluatedArguments,
    make_base_options,
    select_fastest_arguments,
    select_safest_for,
)
from ..packer.evaluation import NodeLimitChecker, PreparedGraph, prepare_graph
from ..packer.names import build_safe_names
from ..packer.options import PackerOptions

__all__ = ["PackerGraphView"]


class PackerGraphView:
    """A graph that nobody changes from here on, and what the packer makes of its part for the chip `target`.

    limits : those of `target`, which know what was asked of other graphs. anyway : plan even what a
    node's limit keeps from being packed, since a rewrite shall mend that.
    """

    def __init__(
        self,
        graph: ir.Model,
        target: Target,
        limits: NodeLimitChecker | None = None,
        ignore_node_limits: bool = False,
    ) -> None:
        self.graph, self.target, self.anyway = graph, target, ignore_node_limits
        self.limits = NodeLimitChecker(target) if limits is None else limits

    def for_graph(self, graph: ir.Model, ignore_node_limits: bool = False) -> PackerGraphView:
        """Return another graph for the same chip, with `ignore_node_limits` or as this one."""
        return PackerGraphView(graph, self.target, self.limits, ignore_node_limits or self.anyway)

    @cached_property
    def _names(self) -> NameMapping:
        return build_safe_names(self.graph)

    @property
    def node_names(self) -> Mapping[str, str]:
        """{node: its name in the file} of those renamed."""
        return self._names.nodes

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """What the packer gets."""
        return ir.to_proto(
            extract_chip_part(apply_file_names(self.graph, self._names), self.target)
        )

    @cached_property
    def base_options(self) -> PackerOptions:
        """The arguments that the graph needs whatever is chosen."""
        return make_base_options(self.proto, self.target)

    @cached_property
    def prepared(self) -> PreparedGraph:
        """The graph, read and prepared, to be judged."""
        return prepare_graph(self.proto, self.target, self.base_options, self.limits, self.anyway)

    @cached_property
    def safest_arguments(self) -> EvaluatedArguments:
        """The first arguments under which the graph is right, and the verdict."""
        return select_safest_for(self.prepared, self.target, self.base_options)

    @property
    def fastest_arguments(self) -> EvaluatedArguments:
        """The fastest arguments under which the graph is right, and the verdict."""
        return select_fastest_arguments(self.proto, self.target, self.prepared)
