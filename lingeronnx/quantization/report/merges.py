"""Find ways to run a float operator between chip parts on the chip, so that the parts merge.

Another chip may support the operator, or another activation function that is trained in its place
(`float_ops.ACTIVATION_SUBSTITUTES`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.text import group_by_key
from ...ir import float_ops, ir
from ...ir.detached_nodes import make_detached_node, make_detached_value
from ...operators.lowerings import can_lower
from ...targets import PLATFORMS, Target

__all__ = ["MergeOption", "find_merge_options"]


@dataclass(frozen=True)
class MergeOption:
    """An operator whose nodes stay in float between integer ones, and ways to run it on a chip.

    Attributes
    ----------
    operator
        Operator type.
    nodes
        Names of its nodes.
    chips
        Other chips that support all of `nodes` and compute them correctly.
    instead
        Activation functions that this chip supports in their place.
    """

    operator: str
    nodes: tuple[str, ...]
    chips: tuple[str, ...]
    instead: tuple[str, ...]

    def __str__(self) -> str:
        """Describe the nodes, the chips that support the operator, and the replacements."""
        count = f" and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else ""
        options = []
        if self.chips:
            options.append(f"supported on {', '.join(self.chips)}")
        if self.instead:
            options.append(f"replace it with {' or '.join(self.instead)} and retrain")
        return f"{self.operator} {self.nodes[0]}{count}: {'; or '.join(options)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the option as JSON-ready values."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }


def find_merge_options(
    between: Collection[str], graph: ir.Model, target: Target
) -> list[MergeOption]:
    """Find options to run float nodes between integer nodes on a chip, one per operator type.

    Operators without any option are left out.

    Parameters
    ----------
    between
        Names of float nodes between integer nodes. Nodes that only move data are ignored: they
        follow the others.
    graph
        Float graph of these nodes.
    target
        The current target.
    """
    nodes = [node for node in graph.graph if str(node.name) in between and _computes(node)]
    options = [_make_option(group, target) for group in group_by_key(nodes, ir.base_op_type)]
    return [option for option in options if option.chips or option.instead]


def _make_option(nodes: Sequence[ir.Node], target: Target) -> MergeOption:
    """Make the option for nodes of one operator type: other chips, and substitutes on `target`.

    Chips must be able to lower all nodes; there are none if `target` is no chip. Both may be empty.
    """
    op_type = ir.base_op_type(nodes[0])
    chips = []
    for platform in PLATFORMS if target.has_packer else ():
        if not platform.has_packer or platform.name == target.name:
            continue
        if all(can_lower(node, platform) for node in nodes):
            chips.append(platform.name)
    substitutes = [
        substitute
        for substitute in float_ops.ACTIVATION_SUBSTITUTES.get(op_type, ())
        if _can_run_as(substitute, nodes, target)
    ]
    names = tuple(str(node.name) for node in nodes)
    return MergeOption(op_type, names, tuple(chips), tuple(substitutes))


def _computes(node: ir.Node) -> bool:
    """Whether `node` does more than move data."""
    return bool(node.domain) or node.op_type not in float_ops.DATA_MOVEMENT_OPS


def _can_run_as(op_type: str, nodes: Iterable[ir.Node], target: Target) -> bool:
    """Whether `target` can lower the activation `op_type`, without attributes, at all `nodes`.

    False if the shape of an output is unknown.
    """
    for node in nodes:
        shape = ir.get_shape(node.outputs[0])
        if shape is None:
            return False
        data = make_detached_value(shape, computed=True)
        if not can_lower(make_detached_node(op_type, [data], shape), target):
            return False
    return True
