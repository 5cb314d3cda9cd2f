"""What would merge parts of a program.

How a float operator between integer ones could be the chip's.
Another chip may run it, with the limits that it keeps there; or another activation, trained in its
place, is the chip's (`operators.ACTIVATION_SUBSTITUTES`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ...graph import ir, operators
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...message_grouping import group_by_key
from ...ops import can_lower
from ...targets import PLATFORMS, Target

__all__ = ["MergeOption", "find_merge_options"]


@dataclass(frozen=True)
class MergeOption:
    """An operator of which nodes stay in float between integers, and how they could be the chip's.

    chips : other ones that run all of `nodes`, and compute them right. instead : activations that
    this one runs there.
    """

    operator: str
    nodes: tuple[str, ...]
    chips: tuple[str, ...]
    instead: tuple[str, ...]

    def __str__(self) -> str:
        count = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        ways = [f"it is measured right on {', '.join(self.chips)}"] if self.chips else []
        ways += (
            [f"replace it by {' or '.join(self.instead)}, and train again"] if self.instead else []
        )
        return f"{self.operator} {self.nodes[0]}{count}: {'; or '.join(ways)}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }


def find_merge_options(
    between: Collection[str], graph: ir.Model, target: Target
) -> list[MergeOption]:
    """Return what would merge parts on `target`.

    `between` : names of float nodes between the integer ones of `graph`.
    Nodes that only move data are left out: they follow the others.
    """
    nodes = [
        n
        for n in graph.graph
        if str(n.name) in between
        and not (not n.domain and n.op_type in operators.DATA_MOVEMENT_OPS)
    ]
    others = [
        other
        for other in PLATFORMS
        if other.has_packer and target.has_packer and other.name != target.name
    ]
    found = []
    for group in group_by_key(nodes, ir.base_op_type):
        chips = tuple(
            other.name for other in others if all(can_lower(node, other) for node in group)
        )
        instead = tuple(
            kind
            for kind in operators.ACTIVATION_SUBSTITUTES.get(ir.base_op_type(group[0]), ())
            if _runs_as(kind, group, target)
        )
        if chips or instead:
            found.append(
                MergeOption(
                    ir.base_op_type(group[0]),
                    tuple(str(node.name) for node in group),
                    chips,
                    instead,
                )
            )
    return found


def _runs_as(kind: str, group: Iterable[ir.Node], target: Target) -> bool:
    """Whether the activation `kind` runs in place of all nodes of `group`."""
    for node in group:
        shape = ir.get_shape(node.outputs[0])
        if shape is None or not can_lower(
            make_detached_node(kind, [make_detached_value(shape, computed=True)], shape), target
        ):
            return False
    return True
