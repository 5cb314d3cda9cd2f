"""A planned graph, and how findings on it are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .... import Target
from ....verdict import VerdictFinding
from ..net import Net, NetStep
from ..options import Options
from .areas import AreaNode
from .plan import MemoryPlan

__all__ = ["HALF", "RESHAPED", "PlannedNet", "refused", "wrong"]

#: The executors copy at most so many bytes at once.
HALF = 65536

#: What keeps the order of the elements.
RESHAPED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True)
class PlannedNet:
    """A planned graph: all that a fault may depend on."""

    net: Net
    memory: MemoryPlan
    target: Target
    options: Options
    places: Mapping[str, str]

    def node(self, step: NetStep) -> AreaNode:
        """Look a step's tensors up."""
        return AreaNode.of(self.net, step, self.places)


def wrong(step: NetStep, rule: str, value: object, remedy: str) -> VerdictFinding:
    """Return a finding on what packs and is not computed right."""
    return VerdictFinding("right", step.origin, rule, str(value), remedy)


def refused(step: NetStep, rule: str, value: object, remedy: str) -> VerdictFinding:
    """Return a finding on what the packer refuses."""
    return VerdictFinding("packs", step.origin, rule, str(value), remedy)
