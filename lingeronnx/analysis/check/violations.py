"""A violated limit of one node, as `check` reports it."""

from __future__ import annotations

from ...graph import ir
from ...ops import Violation

__all__ = ["MOVE_NODE_REMEDY", "make_violation"]

#: The remedy for a node that a platform has no operator for.
MOVE_NODE_REMEDY = (
    "use operators that the platform has, or move the node before the first or after the last of "
    "them"
)


def make_violation(node: ir.Node, rule: str, value: str, remedy: str) -> Violation:
    """Create the violation of `rule` by `node`, with its first named output ("" without one).

    `value` is the value that violates the rule, and `remedy` how to fix it.
    """
    tensor = next((str(v.name) for v in node.outputs if v.name), "")
    return Violation(str(node.name), ir.display_op_type(node), tensor, rule, value, remedy)
