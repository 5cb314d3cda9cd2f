"""Group tensors that must be multiplied by a common factor, and find Clips replaced by saturation.

A factor on a tensor can be moved into the weights around it (`methods.factors`). Operators that
commute with it (Relu, pooling, Add, Concat, reshapes) make their tensors share one. So may a Mul by
a tensor whose factor must be 1, such as the gate that a sigmoid computes. A chip without Clip
implements ``Clip(0, b)`` by saturation if a factor is free to map b to the largest integer. If not,
the Clip is composed of other operators between layers on the chip, and elsewhere stays in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..ir import ir
from ..ir.disjoint import DisjointSets
from ..ir.plan.power_of_two import floor_power_of_two
from ..operators.clamp.lowering import can_compose_clip, get_clip_bounds
from ..operators.integer_ops import CLIP
from ..operators.lowerings import Op
from ..operators.macs import count_macs
from ..targets import Target
from .partition import (
    Partition,
    consumers_of,
    partition_graph,
    producers_of,
    quantized_tensors,
)

__all__ = [
    "HOST_SCALING_REASON",
    "FactorGroup",
    "FactorSets",
    "find_unsupported_clips",
    "group_tensors_by_factor",
    "partition_with_clip_fallback",
    "pin_boundary_tensors",
    "find_saturated_clip_bounds",
    "find_saturating_clips",
]

#: Reason why a Mul inserted by `host_scaling` stays in float.
HOST_SCALING_REASON = "it scales the tensor into the chip's range of exponents"


class FactorSets(DisjointSets):
    """Sets of tensors that share a factor, some of which are pinned to the factor 1."""

    def __init__(self) -> None:
        """Start without names and pins."""
        super().__init__()
        self.pinned: set[str] = set()

    def pin(self, name: str) -> None:
        """Fix the factor of `name`, and so of its set, to 1."""
        self.find(name)
        self.pinned.add(name)

    def is_pinned(self, name: str) -> bool:
        """Whether the factor of `name` must be 1."""
        root = self.find(name)
        return any(self.find(pinned) == root for pinned in self.pinned)


def pin_boundary_tensors(factor_sets: FactorSets, partition: Partition) -> None:
    """Fix the factor 1 of graph inputs and outputs, and of tensors of float nodes but host scaling.

    Tensors of layers that share a weight are pinned as well: a factor would give each layer a
    weight of its own. `factor_sets` is modified.
    """
    graph = partition.graph.graph
    for value in (*graph.inputs, *graph.outputs):
        factor_sets.pin(str(value.name))
    for node in graph:
        if partition.floats.get(str(node.name), HOST_SCALING_REASON) != HOST_SCALING_REASON:
            for operand in (*node.inputs, *node.outputs):
                if operand is not None and operand.name:
                    factor_sets.pin(str(operand.name))
        elif node.op_type == "Linear" and len(ir.require_input(node, 1).uses()) > 1:
            factor_sets.pin(ir.input_name(node))
            factor_sets.pin(ir.output_name(node))


def find_saturated_clip_bounds(partition: Partition, target: Target) -> dict[str, float]:
    """Return {output: upper bound} of the Clips that `target` implements by saturation.

    These are all integer Clips if the target has no Clip. The scale then maps the bound to the
    largest integer.
    """
    upper_bounds: dict[str, float] = {}
    for node, op in partition.integer_nodes:
        if op.integer_op is CLIP and not target.can_run(CLIP.name):
            bounds = get_clip_bounds(node)
            assert bounds is not None
            upper_bounds[ir.output_name(node)] = bounds[1]
    return upper_bounds


@dataclass
class FactorGroup:
    """Tensors that share a factor.

    Attributes
    ----------
    tensors
        Names of the tensors.
    pinned
        Whether the factor must be 1.
    required_factor
        The factor if it is not free, else None.
    """

    tensors: list[str]
    pinned: bool
    required_factor: float | None


def group_tensors_by_factor(
    partition: Partition, target: Target, bits: int, *, joins_products: bool = False
) -> tuple[list[FactorGroup], list[str]]:
    """Group all integer tensors by common factor.

    Parameters
    ----------
    partition
        The float graph.
    target
        The target.
    bits
        Width of the activations.
    joins_products
        Whether the result of a Mul shares the factor of one operand if that of the other must be 1.
        Otherwise all three are pinned.

    Returns
    -------
    groups : list of FactorGroup
        All groups; the required factor is that of a Clip that saturation replaces, 1 if the group
        cannot have a factor, else None.
    unmet : list of str
        Names of the Clip nodes whose group cannot have the factor that they need.
    """
    sets = FactorSets()
    pin_boundary_tensors(sets, partition)
    clip_bounds = find_saturated_clip_bounds(partition, target)
    requirements: dict[str, tuple[float, str]] = {}
    products: list[list[str]] = []
    for node, op in partition.integer_nodes:
        tensors = quantized_tensors(node, op)
        if op.scale_constraints.factor_behavior == "multiplied" and joins_products:
            products.append(tensors)
        else:
            _join_operands(sets, tensors, op)
        if tensors[-1] in clip_bounds:
            factor = _clip_factor(clip_bounds[tensors[-1]], bits)
            requirements[tensors[-1]] = (factor, str(node.name))
    _join_products(sets, products)
    groups = {}
    for key, tensors in sets.groups().items():
        is_free = sets.pinned.isdisjoint(tensors)
        groups[key] = FactorGroup(tensors, not is_free, None if is_free else 1.0)
    unmet = []
    for name, (factor, node_name) in requirements.items():
        group = groups[sets.find(name)]
        if group.required_factor is None or math.isclose(group.required_factor, factor):
            group.required_factor = factor
        else:
            unmet.append(node_name)
    return list(groups.values()), unmet


def _join_operands(sets: FactorSets, tensors: Sequence[str], op: Op) -> None:
    """Join or pin the `tensors` of a node in `sets`, as its lowering rule `op` requires."""
    behavior = op.scale_constraints.factor_behavior
    for name in tensors:
        sets.find(name)
        if behavior == "passes":
            sets.union(name, tensors[0])
        elif behavior in ("fixed", "multiplied"):
            sets.pin(name)


def _join_products(sets: FactorSets, products: Sequence[list[str]]) -> None:
    """Join the result of each product with the operand that may have a factor, in `sets`.

    The other operand must be pinned. If neither is, or both have the same factor, all three tensors
    are pinned. `products` are [operand, operand, result].
    """
    pending = list(products)
    while pending:
        undecided = [product for product in pending if not _join_product(sets, product)]
        if len(undecided) == len(pending):
            for name in undecided.pop(0):
                sets.pin(name)
        pending = undecided


def _join_product(sets: FactorSets, product: list[str]) -> bool:
    """Join the result of a product with one operand if the other is pinned; return whether it is.

    `product` is [operand, operand, result].
    """
    left, right, result = product
    for operand, gate in ((left, right), (right, left)):
        if sets.is_pinned(gate):
            sets.union(operand, result)
            return True
    return False


def _clip_factor(upper_bound: float, bits: int) -> float:
    """Return the factor in [1, 2) with which a power-of-two scale maps a Clip's upper bound.

    It maps the bound to the largest integer of `bits` bits.
    """
    ratio = ((1 << (bits - 1)) - 1) / upper_bound
    return ratio / floor_power_of_two(ratio)


def partition_with_clip_fallback(
    model: ir.Model, target: Target, skip: Mapping[str, str], bits: int
) -> Partition:
    """Partition `model`, with Clips in float that neither saturation nor composition implements.

    Repeats until `find_unsupported_clips` is empty. `skip` has the reasons of nodes that stay in
    float, by name; `bits` is the width of the activations.
    """
    partition = partition_graph(model, target, skip)
    while unsupported := find_unsupported_clips(partition, target, bits):
        partition = partition_graph(model, target, {**partition.floats, **unsupported})
    return partition


def find_unsupported_clips(partition: Partition, target: Target, bits: int) -> dict[str, str]:
    """Return {node: reason} of Clips that neither saturation nor composition can implement.

    Composition takes four operators, so that it is only used between two layers on the chip, up to
    8 bits.
    """
    if not find_saturated_clip_bounds(partition, target):
        return {}
    _, unmet = group_tensors_by_factor(partition, target, bits)
    if not unmet:
        return {}
    composable: set[str] = set()
    if bits <= 8:
        between_layers = _between_layers(partition)
        for node, _ in partition.integer_nodes:
            if str(node.name) in between_layers and can_compose_clip(node, target):
                composable.add(str(node.name))
    reason = (
        f"{target.name} has no Clip, and no scale maps the bound to the largest integer here (the "
        "tensor, or one it is added to, is read in float, multiplied, clipped elsewhere, or a "
        "graph input or output)"
    )
    return dict.fromkeys((name for name in unmet if name not in composable), reason)


def find_saturating_clips(partition: Partition, target: Target, bits: int) -> set[str]:
    """Return the names of the Clip nodes that are implemented by saturation.

    Empty if `target` has a Clip.
    """
    if not find_saturated_clip_bounds(partition, target):
        return set()
    clips = {str(node.name) for node, op in partition.integer_nodes if op.integer_op is CLIP}
    _, unmet = group_tensors_by_factor(partition, target, bits)
    return clips.difference(unmet)


def _between_layers(partition: Partition) -> set[str]:
    """Return the names of integer nodes with layers both upstream and downstream.

    They must be connected by integer nodes. Layers are nodes with MACs, and count themselves.
    """
    nodes = [node for node, _ in partition.integer_nodes]
    after_layer = _spread_from_layers(nodes, producers_of)
    before_layer = _spread_from_layers(nodes[::-1], consumers_of)
    return {str(node.name) for node in nodes if id(node) in after_layer & before_layer}


def _spread_from_layers(
    nodes: Sequence[ir.Node], neighbors: Callable[[ir.Node], list[ir.Node]]
) -> set[int]:
    """Return the ids of layers and of all `nodes` connected to a layer through `neighbors`.

    Layers are nodes with MACs; ids are those of `id()`. `neighbors` returns the neighbors of a node
    (producers or consumers), which must come first in `nodes`.
    """
    reached: set[int] = set()
    for node in nodes:
        if count_macs(node) or any(id(neighbor) in reached for neighbor in neighbors(node)):
            reached.add(id(node))
    return reached
