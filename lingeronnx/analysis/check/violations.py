"""A broken limit of one node, as `check` tells it."""

from __future__ import annotations

from ...graph import ir
from ...ops import Violation

__all__ = ["OTHER", "violation"]

#: The remedy for a node that a platform has no operator for.
OTHER = "use operators the platform has, or move the node before the first or behind the last of them"


def violation(node: ir.Node, rule: str, value: str, remedy: str) -> Violation:
    """Return that `rule` is broken by `node` with `value`, told of its first output."""
    tensor = next((str(v.name) for v in node.outputs if v.name), "")
    return Violation(str(node.name), ir.operator(node), tensor, rule, value, remedy)
