"""Find tensors that share one scale, whose statistics count, and the range to be covered.

For example, the input and the output of a pool share a scale; union-find joins such pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.disjoint import DisjointSets
from ...operators.lowerings import Op
from ...targets import Target
from ..calibration.statistics import Curve, Stats, TensorStats
from ..partition import Partition

__all__ = [
    "SharedScaleGroup",
    "find_softmax_inputs",
    "group_shared_scales",
]


class SharedScaleGroup(NamedTuple):
    """Tensors that share one scale.

    Attributes
    ----------
    tensors
        Names in graph order.
    observed_tensors
        The tensors whose statistics count.
    output_bound
        Bound of their magnitude given by operators such as a sigmoid, or None.
    headroom_below
        Distance below the smallest observed value that must be represented (for the mask of a
        softmax), or None.
    hard_bound
        Bound of their magnitude that also holds after data movement, or None.
    reader_function
        Elementwise function that is the only consumer, or None.
    reader_output
        Tensor that this function writes in integers; empty for a float operator.
    allows_zero_point
        Whether all adjacent operators support a zero point.
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
        """Return the merged statistics of the `observed_tensors`, or None if `stats` has none."""
        observed = [stats[name] for name in self.observed_tensors if name in stats]
        if not observed:
            return None
        merged = observed[0]
        for tensor_stats in observed[1:]:
            merged = merged.merge(tensor_stats)
        return merged


def group_shared_scales(partition: Partition, target: Target) -> tuple[SharedScaleGroup, ...]:
    """Group the integer activations of `partition` by shared scale.

    Each activation is in exactly one group, alone if it shares no scale. A group says which of its
    tensors are observed, the bounds on its range, and whether it may have a zero point.
    """
    sets = DisjointSets()
    for name in partition.activations:
        sets.find(name)
    constraints = _collect_constraints(partition, target, sets)
    members: dict[str, list[str]] = {}
    for name in partition.activations:
        members.setdefault(sets.find(name), []).append(name)
    values = {str(value.name): value for value in ir.iter_values(partition.graph)}
    integer_ops = {id(node): op for node, op in partition.integer_nodes}
    symmetric = set(partition.activations)
    if target.zero_points:
        symmetric = set(partition.symmetric_tensors(target))
    softmax_inputs = find_softmax_inputs(partition)
    groups = []
    for names in members.values():
        observed = [name for name in names if name not in constraints.unobserved] or names[-1:]
        # The input of a Softmax counts, after any data movement, but not the result of a mask.
        observed = [name for name in observed if name in softmax_inputs] or observed
        headrooms = [constraints.headroom[name] for name in names if name in constraints.headroom]
        function, output = _sole_reader_function(
            names, values, integer_ops, partition.graph, target
        )
        groups.append(
            SharedScaleGroup(
                tensors=tuple(names),
                observed_tensors=tuple(observed),
                output_bound=_common_bound(constraints.output_bounds, observed),
                headroom_below=max(headrooms, default=None),
                hard_bound=_common_bound(constraints.hard_bounds, observed),
                reader_function=function,
                reader_output=output,
                allows_zero_point=not headrooms and symmetric.isdisjoint(names),
            )
        )
    return tuple(groups)


@dataclass
class _ScaleConstraints:
    """Constraints of operators on the scales of single tensors, by tensor name.

    Attributes
    ----------
    unobserved
        Tensors whose statistics do not count.
    output_bounds
        Bounds of the magnitude given by operators such as a sigmoid.
    hard_bounds
        Bounds of the magnitude that also hold after data movement.
    headroom
        Required distance below the smallest value.
    """

    unobserved: set[str] = field(default_factory=set)
    output_bounds: dict[str, float] = field(default_factory=dict)
    hard_bounds: dict[str, float] = field(default_factory=dict)
    headroom: dict[str, float] = field(default_factory=dict)


def _collect_constraints(
    partition: Partition, target: Target, sets: DisjointSets
) -> _ScaleConstraints:
    """Return the scale constraints of all operators, and join tensors that share a scale in `sets`.

    `sets` is modified. Output bounds and headroom are by output. Data movement passes the hard
    bound of its input on; `unobserved` are tensors whose statistics do not count in their group.
    """
    result = _ScaleConstraints()
    for node, op in partition.integer_nodes:
        constraints, output = op.scale_constraints, ir.output_name(node)
        for pair in constraints.shared_scales(node, target):
            sets.union(pair.first, pair.second)
            if pair.statistics_of is not None:
                is_first = pair.statistics_of == pair.first
                result.unobserved.add(pair.second if is_first else pair.first)
        if constraints.output_bound is not None:
            result.output_bounds[output] = constraints.output_bound
        hard_bound = constraints.strict_output_bound
        if op.is_data_movement:
            hard_bound = result.hard_bounds.get(ir.input_name(node))
        if hard_bound is not None:
            for index in op.quantized_outputs(node):
                result.hard_bounds[str(node.outputs[index].name)] = hard_bound
        if constraints.headroom_below is not None:
            headroom = constraints.headroom_below(node)
            if headroom is not None:
                result.headroom[output] = headroom
    return result


def _common_bound(bounds: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the largest of `bounds` of the tensors `names`, or None if one is not bounded."""
    if any(name not in bounds for name in names):
        return None
    return max(bounds[name] for name in names)


def find_softmax_inputs(partition: Partition) -> dict[str, int]:
    """Return the integer tensors whose only consumers are float Softmaxes.

    Data movement upstream is looked through: its input must have no other consumer either. Logits
    far below the largest of a row get no probability, and neither does a lead beyond the one that
    leaves nothing to the others, so that scales need not represent them.

    Returns
    -------
    dict
        {tensor that the Softmax reads: axis of the Softmax}.
    """
    values = {str(value.name): value for value in ir.iter_values(partition.graph)}
    integer_ops = {id(node): op for node, op in partition.integer_nodes}
    axes: dict[str, int] = {}
    for node in partition.graph.graph:
        if node.op_type != "Softmax" or node.domain or id(node) in integer_ops:
            continue
        name = ir.input_name(node)
        if name not in partition.activations:
            continue
        sources = _trace_data_movement(name, values, integer_ops)
        consumers = _float_consumers(sources, values, integer_ops)
        op_types = None if consumers is None else {consumer.op_type for consumer in consumers}
        if op_types == {"Softmax"}:
            axes[name] = int(ir.get_attr(node, "axis", -1))
    return axes


def _trace_data_movement(
    name: str, values: Mapping[str, ir.Value], integer_ops: Mapping[int, Op]
) -> list[str]:
    """Return [`name` and the tensors upstream from which integer data movement makes it].

    They are found along input 0, nearest first, until a constant or another node. `values` has the
    computed tensors by name, `integer_ops` the operators of integer nodes by id.
    """
    names = [name]
    while name in values:  # not a constant
        producer = ir.producer(values[name])
        op = None if producer is None else integer_ops.get(id(producer))
        if producer is None or op is None or not op.is_data_movement:
            break
        name = ir.input_name(producer)
        if name in values:
            names.append(name)
    return names


#: Functions of float operators that saturate.
_SATURATING: Mapping[str, Curve] = {
    "Sigmoid": lambda x: 0.5 + 0.5 * np.tanh(0.5 * x),
    "Tanh": np.tanh,
}


def _float_consumers(
    names: Sequence[str], values: Mapping[str, ir.Value], integer_ops: Mapping[int, Op]
) -> list[ir.Node] | None:
    """Return the float consumers of the tensors `names`, or None if not all are float.

    Data movement among `names` is ignored. None also if a consumer has a foreign domain, or if one
    of the tensors is a graph output.
    """
    if any(values[name].is_graph_output() for name in names):
        return None
    consumers = _consumers_outside(names, values, integer_ops)
    if any(id(node) in integer_ops or node.domain for node in consumers):
        return None
    return consumers


def _consumers_outside(
    names: Sequence[str], values: Mapping[str, ir.Value], integer_ops: Mapping[int, Op]
) -> list[ir.Node]:
    """Return the consumers of the tensors `names`, one per use, in the order of `names`.

    Left out are integer data movements all of whose outputs are among `names`. `integer_ops` is by
    `id(node)`. A node that uses a tensor twice is listed twice.
    """
    consumers = []
    for name in names:
        for use in values[name].uses():
            op = integer_ops.get(id(use.node))
            if op is not None and op.is_data_movement:
                outputs = {str(value.name) for value in use.node.outputs}
                if outputs <= set(names):
                    continue
            consumers.append(use.node)
    return consumers


def _sole_reader_function(
    names: Sequence[str],
    values: Mapping[str, ir.Value],
    integer_ops: Mapping[int, Op],
    model: ir.Model,
    target: Target,
) -> tuple[Curve | None, str]:
    """Return the elementwise function that is the only consumer of tensors, and its output.

    It is a saturating float operator, with an empty output name, or an integer operator. Returns
    (None, "") if there is no such function; the output may be named although the operator has none.

    Parameters
    ----------
    names
        Tensors of one scale; data movement among them is ignored.
    values
        All values by name.
    integer_ops
        Operators of the integer nodes by id.
    model
        Float graph.
    target
        The target.
    """
    if any(values[name].is_graph_output() for name in names):
        return None, ""
    consumers = {id(node): node for node in _consumers_outside(names, values, integer_ops)}
    if not any(node_id in integer_ops or node.domain for node_id, node in consumers.items()):
        op_types = {node.op_type for node in consumers.values()}
        return (_SATURATING.get(op_types.pop()) if len(op_types) == 1 else None), ""
    if len(consumers) != 1:
        return None, ""
    ((node_id, node),) = consumers.items()
    output = ir.output_name(node)
    if node_id not in integer_ops or output in names:
        return None, ""
    real_function = integer_ops[node_id].scale_constraints.real_function
    return None if real_function is None else real_function(model, node, target), output
