"""Find tensors whose channels correspond, so that they can share factors per channel.

A factor belongs to a class of channels: those of several tensors that must have equal factors. A
Relu joins each channel with the same one of its output; a Concat joins the channels of its inputs
with consecutive ones of its output, and a Slice the selected ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import float_ops, ir
from ...operators.lowerings import Op, share_no_scales
from ...operators.selection.integer_op import read_constant_slices
from ..factor_groups import FactorSets, pin_boundary_tensors
from ..partition import Partition, quantized_tensors

__all__ = ["ChannelGroup", "find_channel_groups", "may_have_free_channels"]


class ChannelGroup(NamedTuple):
    """Tensors that share factors per channel, their producing layers and their consuming layers.

    Attributes
    ----------
    tensors
        Names of the tensors.
    producers, consumers
        Layers that write and read them.
    classes
        {tensor: class of each channel, int64 [channels]}.
    is_free
        Whether the channels of each class may have a factor, bool [classes].
    is_joined
        Whether a Concat, Slice or BatchNormalization is among its nodes, which join tensors of
        several branches, or a LeakyRelu or PRelu, whose input has a scale of its own.
    """

    tensors: tuple[str, ...]
    producers: tuple[ir.Node, ...]
    consumers: tuple[ir.Node, ...]
    classes: Mapping[str, np.ndarray]
    is_free: np.ndarray
    is_joined: bool = False

    def input_classes(self, node: ir.Node) -> np.ndarray:
        """Return the class of each input channel of a consumer."""
        return self.classes[ir.input_name(node)]

    def output_classes(self, node: ir.Node) -> np.ndarray:
        """Return the class of each output channel of a producer."""
        return self.classes[ir.output_name(node)]


class _ChannelLink(NamedTuple):
    """Channels of two tensors that have equal factors, one to one."""

    first: str
    first_channels: np.ndarray
    second: str
    second_channels: np.ndarray


def may_have_free_channels(partition: Partition) -> bool:
    """Whether a channel may have a factor, so that `find_channel_groups` may find a group.

    Such a channel has a layer on both sides, or is dropped by a Slice after its layer.
    """
    if len(partition.absorbing_layers) > 1:
        return True
    return any(ir.is_standard_op(node, "Slice") for node, _ in partition.integer_nodes)


def find_channel_groups(partition: Partition) -> list[ChannelGroup]:
    """Return groups of tensors whose channels correspond and may have free factors.

    A group has at least one producing and one consuming layer, and a class of channels without a
    tensor that must not change, such as a graph input.
    """
    factor_sets = FactorSets()
    pin_boundary_tensors(factor_sets, partition)
    links: list[_ChannelLink] = []
    channel_counts: dict[str, int] = {}
    joined: set[str] = set()
    for node, op in partition.integer_nodes:
        if ir.is_standard_op(node, "Concat", "Slice", "BatchNormalization") or _has_own_scale(op):
            joined.update(quantized_tensors(node, op))
        for value in (*node.inputs, *node.outputs):
            count = _count_channels(value)
            if value is not None and count:
                channel_counts[str(value.name)] = count
        links += _link_channels(factor_sets, node, op)
    for link in links:
        factor_sets.union(link.first, link.second)
    layers = partition.absorbing_layers
    links_by_group: dict[str, list[_ChannelLink]] = {}
    for link in links:
        links_by_group.setdefault(factor_sets.find(link.first), []).append(link)
    groups = []
    for key, tensors in factor_sets.groups().items():
        members = set(tensors)
        producers = tuple(node for node in layers if ir.output_name(node) in members)
        consumers = tuple(node for node in layers if ir.input_name(node) in members)
        if not producers or not consumers or not members <= channel_counts.keys():
            continue
        classes = _classify_channels(tensors, channel_counts, links_by_group.get(key, ()))
        is_free = _find_free_classes(classes, members & factor_sets.pinned)
        if is_free.any():
            groups.append(
                ChannelGroup(
                    tuple(tensors),
                    producers,
                    consumers,
                    classes,
                    is_free,
                    is_joined=not members.isdisjoint(joined),
                )
            )
    return groups


def _has_own_scale(op: Op) -> bool:
    """Whether factors pass through `op`, but its input has another scale than its output."""
    return op.passes_channel_factors and op.scale_constraints.shared_scales is share_no_scales


def _count_channels(value: ir.Value | None) -> int:
    """Return the size of axis 1 of a tensor, 0 if it is unknown."""
    shape = ir.get_shape(value) or ()
    return int(shape[1] or 0) if len(shape) > 1 else 0


def _classify_channels(
    tensors: Sequence[str], channel_counts: Mapping[str, int], links: Iterable[_ChannelLink]
) -> dict[str, np.ndarray]:
    """Return {tensor: class of each channel}; linked channels have equal classes.

    Classes are numbered in the order of their first channel.
    """
    labels, offset = {}, 0
    for name in tensors:
        labels[name] = np.arange(offset, offset + channel_counts[name])
        offset += channel_counts[name]
    links, changed = list(links), True
    while changed:
        changed = False
        for link in links:
            first = labels[link.first][link.first_channels]
            second = labels[link.second][link.second_channels]
            lowest = np.minimum(first, second)
            if not np.array_equal(first, second):
                changed = True
                labels[link.first][link.first_channels] = lowest
                labels[link.second][link.second_channels] = lowest
    numbers = np.unique(np.concatenate(list(labels.values())))
    return {name: np.searchsorted(numbers, array) for name, array in labels.items()}


def _find_free_classes(
    classes: Mapping[str, np.ndarray], pinned_tensors: Collection[str]
) -> np.ndarray:
    """Return which classes have no channel of a pinned tensor, bool [classes]."""
    is_free = np.ones(1 + max(int(array.max()) for array in classes.values()), bool)
    for name in pinned_tensors:
        is_free[classes[name]] = False
    return is_free


def _link_channels(factor_sets: FactorSets, node: ir.Node, op: Op) -> list[_ChannelLink]:
    """Return which channels of `node` have equal factors, and pin tensors that have none.

    Layers (Conv, Linear, BatchNormalization) have no such channels and pin nothing, except that a
    Linear on other than two axes pins its input and output. Relu, pools, Add, a flatten of
    [N, C, 1, 1], Concat and Slice link channels. All other operators pin their quantized tensors.
    """
    inputs = [ir.input_name(node, index) for index in op.data(node)]
    output = ir.output_name(node)
    if ir.is_standard_op(node, "Conv", "BatchNormalization") or node.op_type == "Linear":
        factor_sets.find(inputs[0])
        factor_sets.find(output)
        rank = len(ir.get_shape(node.outputs[0]) or ())
        if node.op_type == "Linear" and rank != 2:  # its channels are not on axis 1
            factor_sets.pin(inputs[0])
            factor_sets.pin(output)
        return []
    links = _link_data_movement(node, inputs, output)
    if op.passes_channel_factors or _is_flatten_of_1x1(node):
        links = _link_equal_channels(node, inputs, output)
    if links is None:
        for name in quantized_tensors(node, op):
            factor_sets.pin(name)
        return []
    return links


def _link_equal_channels(
    node: ir.Node, inputs: Sequence[str], output: str
) -> list[_ChannelLink] | None:
    """Link each channel of `inputs` with the same one of `output`.

    None if they have unknown or different numbers of channels.
    """
    counts = {_count_channels(value) for value in node.inputs if value and value.name in inputs}
    counts.add(_count_channels(node.outputs[0]))
    count = counts.pop()
    if counts or not count:
        return None
    channels = np.arange(count)
    return [_ChannelLink(name, channels, output, channels) for name in inputs]


def _link_data_movement(
    node: ir.Node, inputs: Sequence[str], output: str
) -> list[_ChannelLink] | None:
    """Link the channels of a Concat or Slice; None for other operators and unknown sizes."""
    if ir.is_standard_op(node, "Concat"):
        rank = len(ir.get_shape(node.outputs[0]) or ())
        if rank < 2 or ir.get_attr(node, "axis") not in (1, 1 - rank):
            return _link_equal_channels(node, inputs, output)
        counts = [_count_channels(value) for value in node.inputs]
        if not all(counts) or len(counts) != len(inputs):
            return None
        links, offset = [], 0
        for name, count in zip(inputs, counts, strict=True):
            channels = np.arange(count)
            links.append(_ChannelLink(name, channels, output, offset + channels))
            offset += count
        return links
    if ir.is_standard_op(node, "Slice"):
        slices, count = read_constant_slices(node), _count_channels(node.inputs[0])
        if slices is None or not count:
            return None
        selected = np.arange(count)[slices.get(1, slice(None))]
        return [_ChannelLink(inputs[0], selected, output, np.arange(len(selected)))]
    return None


def _is_flatten_of_1x1(node: ir.Node) -> bool:
    """Whether `node` reshapes [N, C, 1, 1] to [N, C]."""
    if node.op_type not in float_ops.RESHAPING_OPS:
        return False
    before = ir.get_shape(node.inputs[0]) or ()
    after = ir.get_shape(node.outputs[0]) or ()
    if len(before) != 4 or len(after) != 2:
        return False
    return before[2:] == (1, 1) and before[1] == after[1]
