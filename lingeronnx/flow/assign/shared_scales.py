"""Tensors that share one scale.

Which they are, whose statistics count, and what their scale must hold.
Input and output of a pool have one scale, for instance; union-find joins such pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...formats import CLIP
from ...graph import ir
from ...graph.disjoint import DisjointSets
from ...ops import Op
from ...ops.functions.activation import get_clip_bounds
from ...targets import Target
from ..observe.statistics import Curve, Stats, TensorStats
from ..partition import Partition

__all__ = [
    "SharedScaleGroup",
    "find_softmax_inputs",
    "group_shared_scales",
    "find_saturated_clip_bounds",
]


@dataclass(frozen=True)
class SharedScaleGroup:
    """Tensors that share one scale.

    tensors : in graph order
    observed_tensors : those whose statistics count
    output_bound : the size that none of their values exceeds, where the operators say so (a
    sigmoid), or None hard_bound : the size that none of their values can exceed, also where they
    are only moved, or None headroom_below : how far below the least value seen it must reach (the
    mask of a softmax), or None reader_function : the function of single numbers that alone reads
    them, or None reader_output : the tensor that this function writes in integers; empty where it
    is a float operator allows_zero_point : whether all that reads and writes them takes a zero
    point
    """

    tensors: tuple[str, ...]
    observed_tensors: tuple[str, ...]
    output_bound: float | None = None
    headroom_below: float | None = None
    hard_bound: float | None = None
    reader_function: Curve | None = None
    reader_output: str = ""
    allows_zero_point: bool = False

    def merged_stats(self, stats: Stats) -> TensorStats | None:
        """Return the merged statistics of the tensors that count; None when none was seen."""
        observed = [stats[name] for name in self.observed_tensors if name in stats]
        if not observed:
            return None
        merged = observed[0]
        for other in observed[1:]:
            merged = merged.merge(other)
        return merged


def group_shared_scales(partition: Partition, target: Target) -> tuple[SharedScaleGroup, ...]:
    """Group the integer activations of `partition` by shared scale."""
    sets = DisjointSets()
    mute: set[str] = set()
    bounded: dict[str, float] = {}
    below: dict[str, float] = {}
    reached: dict[str, float] = {}
    activations = partition.activations
    for name in activations:
        sets.find(name)
    for node, op in partition.integer_nodes:
        for pair in op.scale_constraints.shared_scales(node, target):
            sets.union(pair.first, pair.second)
            if pair.statistics_of is not None:
                mute.add(pair.second if pair.statistics_of == pair.first else pair.first)
        if op.scale_constraints.output_bound is not None:
            bounded[ir.output_name(node)] = op.scale_constraints.output_bound
        reach = (
            reached.get(ir.input_name(node))
            if op.is_data_movement
            else op.scale_constraints.strict_output_bound
        )
        if reach is not None:
            reached.update(
                {str(node.outputs[index].name): reach for index in op.quantized_outputs(node)}
            )
        if (room := op.scale_constraints.headroom_below(node)) is not None:
            below[ir.output_name(node)] = room
    members: dict[str, list[str]] = {}
    for name in activations:
        members.setdefault(sets.find(name), []).append(name)
    classes = []
    values = {str(value.name): value for value in ir.iter_values(partition.graph)}
    inside = {id(node): op for node, op in partition.integer_nodes}
    symmetric = partition.symmetric_tensors(target)
    shares = find_softmax_inputs(partition)
    for names in members.values():
        loud = tuple(n for n in names if n not in mute) or tuple(names[-1:])
        # What the Softmax reads is what counts, however it came there; but not what a mask made of
        # it.
        statistics_of = tuple(n for n in loud if n in shares) or loud
        bound = (
            max(bounded[n] for n in statistics_of)
            if all(n in bounded for n in statistics_of)
            else None
        )
        room = max((below[name] for name in names if name in below), default=None)
        reach = (
            max(reached[n] for n in statistics_of)
            if all(n in reached for n in statistics_of)
            else None
        )
        free = room is None and not symmetric.keys() & set(names)
        curve, into = _sole_reader_function(names, values, inside, partition.graph, target)
        classes.append(
            SharedScaleGroup(
                tensors=tuple(names),
                observed_tensors=statistics_of,
                output_bound=bound,
                headroom_below=room,
                hard_bound=reach,
                reader_function=curve,
                reader_output=into,
                allows_zero_point=free,
            )
        )
    return tuple(classes)


def find_softmax_inputs(partition: Partition) -> dict[str, int]:
    """Return {tensor: axis} of the integer tensors that float Softmaxes along that axis read, and nothing else does.

    What lies far below the largest value of a row has no share of it, so it needs no room in a
    scale; nor does more than a lead over the others that leaves them no share.
    """
    values = {str(value.name): value for value in ir.iter_values(partition.graph)}
    inside = {id(node): op for node, op in partition.integer_nodes}
    axes: dict[str, int] = {}
    for node in partition.graph.graph:
        if node.op_type != "Softmax" or node.domain or id(node) in inside:
            continue
        name, names = ir.input_name(node), _trace_data_movement(ir.input_name(node), values, inside)
        readers = _float_readers(names, values, inside) if name in partition.activations else None
        if readers is not None and all(reader.op_type == "Softmax" for reader in readers):
            axes[name] = int(ir.get_attr(node, "axis", -1))
    return axes


def _trace_data_movement(
    name: str, values: Mapping[str, ir.Value], inside: Mapping[int, Op]
) -> list[str]:
    """Return the tensor and those that it only moves, up to the first."""
    names = [name]
    while name in values:  # no constant
        maker = ir.producer(values[name])
        if maker is None or id(maker) not in inside or not inside[id(maker)].is_data_movement:
            break
        name = ir.input_name(maker)
        if name in values:
            names.append(name)
    return names


#: Float operators that saturate -> what they compute.
_SATURATING: Mapping[str, Curve] = {
    "Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    "Tanh": np.tanh,
}


def _float_readers(
    names: Sequence[str], values: Mapping[str, ir.Value], inside: Mapping[int, Op]
) -> list[ir.Node] | None:
    """Return the float operators that alone read the tensors `names`, outside of what moves them.

    None for others.
    """
    readers: list[ir.Node] = []
    for name in names:
        if values[name].is_graph_output():
            return None
        for use in values[name].uses():
            op = inside.get(id(use.node))
            if op is None and not use.node.domain:
                readers.append(use.node)
            elif (
                op is None
                or not op.is_data_movement
                or not {str(v.name) for v in use.node.outputs} <= set(names)
            ):
                return None
    return readers


def _sole_reader_function(
    names: Sequence[str],
    values: Mapping[str, ir.Value],
    inside: Mapping[int, Op],
    model: ir.Model,
    target: Target,
) -> tuple[Curve | None, str]:
    """Return what alone reads the tensors `names` of one scale, outside of what moves them, and what that writes.

    It is a saturating float operator, which writes nothing that counts, or an integer function of
    single numbers; else None.
    """
    floats = _float_readers(names, values, inside)
    if floats is not None:
        kinds = {node.op_type for node in floats}
        return (_SATURATING.get(kinds.pop()) if len(kinds) == 1 else None), ""
    readers: dict[int, ir.Node] = {}
    for name in names:
        for use in values[name].uses():
            op = inside.get(id(use.node))
            if (
                op is None
                or not op.is_data_movement
                or not {str(v.name) for v in use.node.outputs} <= set(names)
            ):
                readers[id(use.node)] = use.node
    if len(readers) != 1 or any(values[name].is_graph_output() for name in names):
        return None, ""
    ((key, node),) = readers.items()
    written = ir.output_name(node)
    if key not in inside or written in names:
        return None, ""
    return inside[key].scale_constraints.real_function(model, node, target), written


def find_saturated_clip_bounds(partition: Partition, target: Target) -> dict[str, float]:
    """Return {tensor: the largest real value it must hold, to which the largest integer is pinned}: Clips on a chip."""
    bounds_held: dict[str, float] = {}
    for node, op in partition.integer_nodes:
        if op.integer_op is CLIP and not target.can_run(CLIP.name):
            limits = get_clip_bounds(node)
            assert limits is not None
            bounds_held[ir.output_name(node)] = limits[1]
    return bounds_held
