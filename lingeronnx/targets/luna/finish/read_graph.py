"""An integer graph as the packer reads it, once for all stages that ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx

from ....graph import ir
from ....graph.names import Names, written
from ....run.part import chip_part
from ... import Target
from ..packer.arguments.choice import Judgement, choose, chosen, plain_options
from ..packer.judge import Limits, Ready, make_ready
from ..packer.names import safe_names
from ..packer.options import Options

__all__ = ["ReadGraph"]


class ReadGraph:
    """A graph that nobody changes from here on, and what the packer makes of its part for the chip `target`.

    limits : those of `target`, which know what was asked of other graphs. anyway : plan even what a node's limit keeps
    from being packed, since a rewrite shall mend that.
    """

    def __init__(self, graph: ir.Graph, target: Target, limits: Limits | None = None, anyway: bool = False) -> None:
        self.graph, self.target, self.anyway = graph, target, anyway
        self.limits = Limits(target) if limits is None else limits

    def other(self, graph: ir.Graph, anyway: bool = False) -> ReadGraph:
        """Return another graph for the same chip, with `anyway` or as this one."""
        return ReadGraph(graph, self.target, self.limits, anyway or self.anyway)

    @cached_property
    def _names(self) -> Names:
        return safe_names(self.graph)

    @property
    def node_names(self) -> Mapping[str, str]:
        """{node: its name in the file} of those renamed."""
        return self._names.nodes

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """What the packer gets."""
        return ir.to_proto(chip_part(written(self.graph, self._names), self.target))

    @cached_property
    def base(self) -> Options:
        """The arguments that the graph needs whatever is chosen."""
        return plain_options(self.proto, self.target)

    @cached_property
    def ready(self) -> Ready:
        """The graph, read and prepared, to be judged."""
        return make_ready(self.proto, self.target, self.base, self.limits, self.anyway)

    @cached_property
    def safest(self) -> Judgement:
        """The first arguments under which the graph is right, and the verdict."""
        return chosen(self.ready, self.target, self.base)

    @property
    def chosen(self) -> Judgement:
        """The fastest arguments under which the graph is right, and the verdict."""
        return choose(self.proto, self.target, self.ready)
