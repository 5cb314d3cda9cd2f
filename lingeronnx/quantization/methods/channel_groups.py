"""Find tensors whose channels correspond, so that they can share factors per channel."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import float_ops, ir
from ...operators.integer_ops import ADD, AVG_POOL2D, MAX_POOL, RELU
from ...operators.lowerings import Op
from ..factor_groups import FactorSets, pin_boundary_tensors
from ..partition import Partition, quantized_tensors

__all__ = ["ChannelGroup", "find_channel_groups"]

_CHANNELWISE_OPS = frozenset({RELU.name, MAX_POOL.name, AVG_POOL2D.name, ADD.name})


@dataclass(frozen=True)
class ChannelGroup:
    """Tensors that share factors per channel, their producing layers and their consuming layers."""

    tensors: tuple[str, ...]
    producers: tuple[ir.Node, ...]
    consumers: tuple[ir.Node, ...]


def find_channel_groups(partition: Partition) -> list[ChannelGroup]:
    """Return groups of tensors whose channels correspond one to one and may have free factors.

    A group has at least one producing and one consuming layer, and no tensor that must not change,
    such as a graph input.
    """
    factor_sets = FactorSets()
    pin_boundary_tensors(factor_sets, partition)
    for node, op in partition.integer_nodes:
        _add_channel_constraints(factor_sets, node, op)
    layers = _find_absorbing_layers(partition)
    groups = []
    for tensors in factor_sets.groups().values():
        members = set(tensors)
        producers = tuple(node for node in layers if ir.output_name(node) in members)
        consumers = tuple(node for node in layers if ir.input_name(node) in members)
        if factor_sets.is_free(tensors) and producers and consumers:
            groups.append(ChannelGroup(tuple(tensors), producers, consumers))
    return groups


def _find_absorbing_layers(partition: Partition) -> list[ir.Node]:
    """Return the layers whose weights can absorb factors of input and output, in graph order."""
    return [
        node
        for node, op in partition.integer_nodes
        if op.scale_constraints.factor_behavior == "absorbed"
    ]


def _add_channel_constraints(factor_sets: FactorSets, node: ir.Node, op: Op) -> None:
    """Join the tensors of `node` in `factor_sets` if its channels run through it, or fix them.

    Joined tensors share factors; fixed ones have none. Layers (Conv, Linear) do neither, except
    that a Linear on other than two axes fixes its input and output. Relu, pools, Add and a flatten
    of [N, C, 1, 1] join their data inputs with the output. All other operators fix their quantized
    tensors.
    """
    inputs = [ir.input_name(node, index) for index in op.data(node)]
    output = ir.output_name(node)
    if node.op_type in ("Conv", "Linear"):
        factor_sets.find(inputs[0])
        factor_sets.find(output)
        rank = len(ir.get_shape(node.outputs[0]) or ())
        if node.op_type == "Linear" and rank != 2:  # its channels are not on axis 1
            factor_sets.pin(inputs[0])
            factor_sets.pin(output)
    elif op.name in _CHANNELWISE_OPS or _is_flatten_of_1x1(node):
        for name in inputs:
            factor_sets.union(name, output)
    else:
        for name in quantized_tensors(node, op):
            factor_sets.pin(name)


def _is_flatten_of_1x1(node: ir.Node) -> bool:
    """Whether `node` reshapes [N, C, 1, 1] to [N, C]."""
    if node.op_type not in float_ops.RESHAPING_OPS:
        return False
    before = ir.get_shape(node.inputs[0]) or ()
    after = ir.get_shape(node.outputs[0]) or ()
    if len(before) != 4 or len(after) != 2:
        return False
    return before[2:] == (1, 1) and before[1] == after[1]
