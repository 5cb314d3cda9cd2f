"""A planned graph, and how findings on it are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .... import Target
from ....verdict import VerdictFinding
from ..options import PackerOptions
from ..packer_graph import PackerGraph, PackerStep
from .plan import MemoryPlan
from .work_areas import PlacedStep

__all__ = [
    "MAX_COPY_BYTES",
    "RESHAPE_OPERATORS",
    "PlannedGraph",
    "make_refusal_finding",
    "make_wrong_result_finding",
]

#: The executors copy at most so many bytes at once.
MAX_COPY_BYTES = 65536

#: What keeps the order of the elements.
RESHAPE_OPERATORS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True)
class PlannedGraph:
    """A planned graph: all that a fault may depend on."""

    graph: PackerGraph
    memory_plan: MemoryPlan
    target: Target
    options: PackerOptions
    places: Mapping[str, str]

    def get_placed_step(self, step: PackerStep) -> PlacedStep:
        """Look a step's tensors up."""
        return PlacedStep.of(self.graph, step, self.places)


def make_wrong_result_finding(
    step: PackerStep, rule: str, value: object, remedy: str
) -> VerdictFinding:
    """Return a finding on what packs and is not computed right."""
    return VerdictFinding("right", step.origin, rule, str(value), remedy)


def make_refusal_finding(step: PackerStep, rule: str, value: object, remedy: str) -> VerdictFinding:
    """Return a finding on what the packer refuses."""
    return VerdictFinding("packs", step.origin, rule, str(value), remedy)
