"""A planned graph, and how findings on it are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .... import Target
from ....verdict import Finding
from ..net import Net, Step
from ..options import Options
from .areas import Node
from .plan import Memory

__all__ = ["HALF", "RESHAPED", "Plan", "refused", "wrong"]

#: The executors copy at most so many bytes at once.
HALF = 65536

#: What keeps the order of the elements.
RESHAPED = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@dataclass(frozen=True)
class Plan:
    """A planned graph: all that a fault may depend on."""

    net: Net
    memory: Memory
    target: Target
    options: Options
    places: Mapping[str, str]

    def node(self, step: Step) -> Node:
        """Look a step's tensors up."""
        return Node.of(self.net, step, self.places)


def wrong(step: Step, rule: str, value: object, remedy: str) -> Finding:
    """Return a finding on what packs and is not computed right."""
    return Finding("right", step.origin, rule, str(value), remedy)


def refused(step: Step, rule: str, value: object, remedy: str) -> Finding:
    """Return a finding on what the packer refuses."""
    return Finding("packs", step.origin, rule, str(value), remedy)
