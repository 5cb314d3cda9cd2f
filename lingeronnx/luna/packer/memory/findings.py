"""A planned graph, and constructors of findings about its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....targets import Target
from ....targets.verdict import VerdictFinding
from ..options import PackerOptions
from ..packer_graph import PackerGraph, PackerStep
from .graph_facts import GraphFacts
from .plan import MemoryPlan
from .work_areas import PlacedStep

__all__ = [
    "MAX_COPY_BYTES",
    "RESHAPE_OPERATORS",
    "PlannedGraph",
    "make_refusal_finding",
    "make_wrong_result_finding",
]

#: Maximum bytes that the executors copy at once.
MAX_COPY_BYTES = 65536

#: Operators that change the shape but not the order of the elements.
RESHAPE_OPERATORS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True)
class PlannedGraph:
    """A graph with its memory plan and options: everything that a check may depend on."""

    facts: GraphFacts
    memory_plan: MemoryPlan
    options: PackerOptions
    placements: Mapping[str, str]

    @property
    def graph(self) -> PackerGraph:
        """The graph."""
        return self.facts.net

    @property
    def target(self) -> Target:
        """The chip."""
        return self.facts.target

    def get_placed_step(self, step: PackerStep) -> PlacedStep:
        """Return `step` together with its tensors and the planned memory of each tensor."""
        return PlacedStep.from_step(self.graph, step, self.placements)


def make_wrong_result_finding(
    step: PackerStep, rule: str, value: object, remedy: str
) -> VerdictFinding:
    """Make a finding of level "right": `step` packs, but the chip computes a wrong result.

    It names the node of the user's graph that the step comes from.
    """
    return VerdictFinding("right", step.origin, rule, str(value), remedy)


def make_refusal_finding(step: PackerStep, rule: str, value: object, remedy: str) -> VerdictFinding:
    """Make a finding of level "packs": the packer refuses `step`.

    It names the node of the user's graph that the step comes from.
    """
    return VerdictFinding("packs", step.origin, rule, str(value), remedy)
