"""Tensors that must be multiplied by one factor, if by any.

And Clips that the top of the integer range stands in for.
A factor on a tensor can be moved into the weights around it (`methods.factors`). Operators that
commute with it (Relu, pooling, Add, Concat, reshapes) make their tensors share one. A chip without
Clip cuts ``Clip(0, b)`` off by saturation, where a factor is free that brings b to the largest
integer. Where none is, it is composed between layers on the chip, and elsewhere it stays in float.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..formats import CLIP
from ..graph import ir
from ..graph.disjoint import DisjointSets
from ..ops.functions.activation import can_compose_clip, get_clip_bounds
from ..ops.macs import count_macs
from ..plan.power_of_two import floor_power_of_two
from ..targets import Target
from .partition import Partition, partition_graph

__all__ = [
    "HOST_SCALING_REASON",
    "FactorGroup",
    "FactorSets",
    "find_unsupported_clips",
    "group_tensors_by_factor",
    "partition_with_clip_fallback",
    "pin_boundary_tensors",
    "find_saturating_clips",
]

#: Why a Mul that `host_scaling` put in stays in float.
HOST_SCALING_REASON = "it scales the tensor into the range of exponents that the chip holds"


class FactorSets(DisjointSets):
    """Sets of tensors that share a factor, and which of them are pinned to the factor 1."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: set[str] = set()

    def pin(self, name: str) -> None:
        """Keep the factor of `name`'s group at 1."""
        self.find(name)
        self.pinned.add(name)

    def is_free(self, tensors: list[str]) -> bool:
        """Whether no tensor of a group is pinned."""
        return not any(name in self.pinned for name in tensors)


def pin_boundary_tensors(groups: FactorSets, partition: Partition) -> None:
    """Pin graph inputs and outputs and everything a float node reads or writes, but for the host's own scalings.

    What layers with a common weight read and write is pinned too: a factor would give each a weight
    of its own.
    """
    graph = partition.graph.graph
    for value in (*graph.inputs, *graph.outputs):
        groups.pin(str(value.name))
    for node in graph:
        if partition.floats.get(str(node.name), HOST_SCALING_REASON) != HOST_SCALING_REASON:
            for read in (*node.inputs, *node.outputs):
                if read is not None and read.name:
                    groups.pin(str(read.name))
        elif node.op_type == "Linear" and len(ir.require_input(node, 1).uses()) > 1:
            groups.pin(ir.input_name(node))
            groups.pin(ir.output_name(node))


@dataclass
class FactorGroup:
    """Tensors that share a factor.

    `required_factor` is the factor when it is not free, `pinned` whether it must be 1.
    """

    tensors: list[str]
    pinned: bool
    required_factor: float | None


def group_tensors_by_factor(
    partition: Partition, target: Target, bits: int
) -> tuple[list[FactorGroup], list[str]]:
    """Return the groups, and the Clip nodes whose group cannot take the factor they need."""
    sets = FactorSets()
    pin_boundary_tensors(sets, partition)
    needs: dict[str, tuple[float, str]] = {}
    for node, op in partition.integer_nodes:
        tensors = [ir.input_name(node, i) for i in op.data(node)]
        tensors += [str(node.outputs[i].name) for i in op.quantized_outputs(node)]
        for name in tensors:
            sets.find(name)
            if op.scale_constraints.factor_behavior == "passes":
                sets.union(name, tensors[0])
            elif op.scale_constraints.factor_behavior == "fixed":
                sets.pin(name)
        if op.integer_op is CLIP and not target.can_run(CLIP.name):
            limits = get_clip_bounds(node)
            assert limits is not None
            ratio = ((1 << (bits - 1)) - 1) / limits[1]
            needs[tensors[-1]] = (ratio / floor_power_of_two(ratio), str(node.name))
    groups = {
        key: FactorGroup(tensors, not (free := sets.is_free(tensors)), None if free else 1.0)
        for key, tensors in sets.groups().items()
    }
    unmet = []
    for name, (factor, node_name) in needs.items():
        group = groups[sets.find(name)]
        if group.required_factor is not None and not math.isclose(group.required_factor, factor):
            unmet.append(node_name)
        else:
            group.required_factor = factor
    return list(groups.values()), unmet


def partition_with_clip_fallback(
    model: ir.Model, target: Target, skip: Mapping[str, str], bits: int
) -> Partition:
    """Return the `partition_graph` of `model` in which Clips that no chip runs stay in float, too."""
    parts = partition_graph(model, target, skip)
    while unmet := find_unsupported_clips(parts, target, bits):
        parts = partition_graph(model, target, {**parts.floats, **unmet})
    return parts


def find_unsupported_clips(partition: Partition, target: Target, bits: int) -> dict[str, str]:
    """Return {node: why} for the Clip nodes that saturation cannot stand in for on `target`, and that are not composed.

    Four operators are worth it between two layers on the chip only.
    """
    reason = (
        f"{target.name} has no Clip, and no scale puts the bound at the top of the integer range "
        "here (the tensor, or "
        "one it is added to, is read in float, multiplied, clipped elsewhere, or a graph input or "
        "output)"
    )
    _, unmet = group_tensors_by_factor(partition, target, bits)
    if not unmet:
        return {}
    able = (
        {str(node.name) for node, _ in partition.integer_nodes if can_compose_clip(node, target)}
        if bits <= 8
        else set[str]()
    )
    return dict.fromkeys(
        (name for name in unmet if name not in able & _between_layers(partition)), reason
    )


def find_saturating_clips(partition: Partition, target: Target, bits: int) -> set[str]:
    """Return the Clip nodes that a scale stands in for, if `target` has no Clip."""
    clips = {
        str(node.name)
        for node, op in partition.integer_nodes
        if op.integer_op is CLIP and not target.can_run(CLIP.name)
    }
    return clips - set(group_tensors_by_factor(partition, target, bits)[1])


def _between_layers(partition: Partition) -> set[str]:
    """Return the integer nodes that a layer stands before, and one behind, with integers all the way."""
    fed, leads = set[int](), set[int]()
    for node, _ in partition.integer_nodes:
        if count_macs(node) or any(
            id(maker) in fed for value in node.inputs if (maker := ir.producer(value)) is not None
        ):
            fed.add(id(node))
    for node, _ in reversed(partition.integer_nodes):
        if count_macs(node) or any(
            id(use.node) in leads for value in node.outputs for use in value.uses()
        ):
            leads.add(id(node))
    return {str(node.name) for node, _ in partition.integer_nodes if id(node) in fed & leads}
