"""Decide which nodes of a float graph become integer, and record why the others do not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..common.errors import ConstraintError
from ..ir import float_ops, ir
from ..ir.disjoint import DisjointSets
from ..operators.lowerings import Op, find_lowering_rule, get_weight_values
from ..operators.macs import count_macs
from ..targets import Target

__all__ = [
    "FLOAT_SUM_REASON",
    "Partition",
    "consumers_of",
    "count_float_operations",
    "partition_graph",
    "producers_of",
    "quantized_tensors",
]

#: Why a sum stays in float that the platform has an operator for.
FLOAT_SUM_REASON = "only float operators read this sum: one rounding less, and nothing more to copy"
_MAX_OUTPUT_RANK = 3  # maximum rank of a wide output on a chip


@dataclass(frozen=True)
class Partition:
    """Partition of a normalized float graph into integer and float nodes.

    Weights of the graph may be changed, and nodes that stay in float may be added
    (`with_added_floats`).

    Attributes
    ----------
    graph
        The graph.
    ops
        {node: operator that it becomes}, in graph order.
    floats
        {node: reason why it stays in float}.
    """

    graph: ir.Model
    ops: Mapping[str, Op]
    floats: Mapping[str, str]

    @classmethod
    def build(cls, graph: ir.Model, floats: Mapping[str, str], target: Target) -> Partition:
        """Return the partition of `graph` for `target` with exactly the nodes `floats` in float.

        Raises
        ------
        ConstraintError
            If another node cannot be quantized.
        """
        ops = {}
        for node in graph.graph:
            if str(node.name) not in floats:
                op, reason = find_lowering_rule(node, target)
                if op is None:
                    raise ConstraintError(f"node {node.name} cannot be quantized: {reason}")
                ops[str(node.name)] = op
        return cls(graph, ops, floats)

    @cached_property
    def integer_nodes(self) -> tuple[tuple[ir.Node, Op], ...]:
        """The nodes that become integer with their operators, in graph order."""
        return tuple(
            (node, self.ops[str(node.name)])
            for node in self.graph.graph
            if str(node.name) in self.ops
        )

    @cached_property
    def integer_node_ids(self) -> frozenset[int]:
        """The `id()` of each node that becomes integer."""
        return frozenset(id(node) for node, _ in self.integer_nodes)

    @property
    def absorbing_layers(self) -> list[ir.Node]:
        """The layers whose weights can absorb factors of input and output, in graph order."""
        return [
            node
            for node, op in self.integer_nodes
            if op.scale_constraints.factor_behavior == "absorbed"
        ]

    @property
    def activations(self) -> tuple[str, ...]:
        """The names of the activations that become integers, in graph order."""
        names: dict[str, None] = {}
        for node, op in self.integer_nodes:
            names.update(dict.fromkeys(quantized_tensors(node, op)))
        return tuple(names)

    def symmetric_tensors(self, target: Target) -> dict[str, str]:
        """Return {activation: label of an adjacent node that does not support its zero point}.

        The label is "TYPE NAME" of the last such node in graph order; activations without one are
        left out.
        """
        by_tensor: dict[str, str] = {}
        for node, op in self.integer_nodes:
            if not op.supports_zero_points(node, target):
                label = f"{node.op_type} {node.name}"
                by_tensor.update(dict.fromkeys(quantized_tensors(node, op), label))
        return by_tensor

    def wide_outputs(self, target: Target) -> frozenset[str]:
        """Return the outputs without integer consumers that may have over 8 bits, or be in float.

        Their node's operator must allow it. On a target with `linear_limits` (a chip) the output
        must have at most _MAX_OUTPUT_RANK axes: a higher rank takes a Reshape, which only moves
        bytes.
        """
        names = []
        for node, op in self.integer_nodes:
            if not op.allows_wide_output:
                continue
            consumer_ids = {id(use.node) for use in node.outputs[0].uses()}
            if not consumer_ids.isdisjoint(self.integer_node_ids):
                continue
            if target.linear_limits is None or _output_rank(node) <= _MAX_OUTPUT_RANK:
                names.append(ir.output_name(node))
        return frozenset(names)

    def wide_outputs_between_parts(self, target: Target) -> list[str]:
        """Return the `wide_outputs` from which float nodes compute inputs of integer nodes."""
        if not self.floats:
            return []
        wide_outputs = self.wide_outputs(target)
        upstream_of_integers: set[int] = set()
        names = []
        for node in reversed(list(self.graph.graph)):
            consumers = {id(consumer) for consumer in consumers_of(node)}
            feeds_integers = not upstream_of_integers.isdisjoint(consumers)
            is_integer = id(node) in self.integer_node_ids
            if is_integer or feeds_integers:
                upstream_of_integers.add(id(node))
            if is_integer and feeds_integers and ir.output_name(node) in wide_outputs:
                names.append(ir.output_name(node))
        return names

    @property
    def has_inner_floats(self) -> bool:
        """Whether integer nodes read what the host computes from results of integer nodes."""
        return bool(self.floats) and not self.ops.keys().isdisjoint(_nodes_after_host(self))

    def curve_input_exponents(self, target: Target) -> dict[str, int]:
        """Return the outputs of layers that may be 16-bit inputs of an activation function.

        The activation must be the only consumer and an integer node, and the output have at most
        three axes. Returns {output: smallest exponent that the activation supports}; empty if the
        target has no such inputs.
        """
        exponents: dict[str, int] = {}
        if not target.curve_bits:
            return exponents
        for node, op in self.integer_nodes:
            if not op.allows_wide_output:
                continue
            consumer = ir.sole_consumer(node.outputs[0])
            consumer_op = None if consumer is None else self.ops.get(str(consumer.name))
            if consumer_op is None or _output_rank(node) > _MAX_OUTPUT_RANK:
                continue
            find_min_exponent = consumer_op.scale_constraints.min_input_exponent
            min_exponent = None if find_min_exponent is None else find_min_exponent(target)
            if min_exponent is not None:
                exponents[ir.output_name(node)] = min_exponent
        return exponents

    def with_graph(self, copy: ir.Model) -> Partition:
        """Return the same partition of a copy of the graph."""
        return replace(self, graph=copy)

    def nodes_touching(self, tensors: Collection[str]) -> list[str]:
        """Return the integer nodes that read or write one of `tensors` as integers.

        Their names, in graph order.
        """
        names = []
        for node, op in self.integer_nodes:
            if any(name in tensors for name in quantized_tensors(node, op)):
                names.append(str(node.name))
        return names

    def move_to_float(self, reasons: Mapping[str, str]) -> Partition:
        """Return the partition with the nodes of `reasons`, and then the idle islands, in float.

        Idle islands are the integer nodes of the result without enough work for a part of their
        own, see `_find_idle_islands`.

        Parameters
        ----------
        reasons
            {node: reason}.
        """
        partition = self
        if reasons:
            partition = _move_to_float(self, reasons)
        idle_islands = _find_idle_islands(partition)
        return _move_to_float(partition, idle_islands) if idle_islands else partition

    def with_added_floats(self, reasons: Mapping[str, str]) -> Partition:
        """Return the partition after float nodes were added to the graph.

        Parameters
        ----------
        reasons
            {added node: reason}.
        """
        return replace(self, floats={**self.floats, **reasons})


def quantized_tensors(node: ir.Node, op: Op) -> list[str]:
    """Return the names of the integer inputs, then of the integer outputs, of a node."""
    names = [ir.input_name(node, index) for index in op.data(node)]
    return names + [str(node.outputs[index].name) for index in op.quantized_outputs(node)]


def producers_of(node: ir.Node) -> list[ir.Node]:
    """Return the producers of the inputs of a node, one per input that has one."""
    producers = [ir.producer(value) for value in node.inputs]
    return [producer for producer in producers if producer is not None]


def consumers_of(node: ir.Node) -> list[ir.Node]:
    """Return the consumers of the outputs of a node, one per use."""
    return [use.node for value in node.outputs for use in value.uses()]


def _output_rank(node: ir.Node) -> int:
    """Return the rank of the first output; 0 if unknown."""
    return len(ir.get_shape(node.outputs[0]) or ())


def partition_graph(model: ir.Model, target: Target, skip: Mapping[str, str]) -> Partition:
    """Partition the normalized `model` for `target`.

    In float stay the nodes of `skip`, those that cannot become integer, operators with
    `runs_on_host_when_last` at the end of the network, and what `move_to_float` moves after these:
    nodes without enough work for a part of their own.

    Parameters
    ----------
    model
        Normalized float graph.
    target
        The target.
    skip
        {node: reason} of nodes that stay in float.
    """
    ops, floats = dict[str, Op](), dict(skip)
    for node in model.graph:
        name = str(node.name)
        if name in floats:
            continue
        op, reason = _find_integer_op(node, target)
        if op is None:
            floats[name] = reason
        else:
            ops[name] = op
    partition = Partition(model, ops, floats)
    head_reason = "last operator of the network; float costs nothing there"
    heads = dict.fromkeys(_find_trailing_heads(partition), head_reason)
    partition = partition.move_to_float(heads)
    if not partition.floats:
        return partition
    sums = dict.fromkeys(_find_sums_for_floats(partition), FLOAT_SUM_REASON)
    return partition.move_to_float(sums) if sums else partition


def _move_to_float(partition: Partition, reasons: Mapping[str, str]) -> Partition:
    """Return `partition` with more nodes in float; `reasons` is {node: reason}."""
    ops = {name: op for name, op in partition.ops.items() if name not in reasons}
    return Partition(partition.graph, ops, {**partition.floats, **reasons})


def _find_integer_op(node: ir.Node, target: Target) -> tuple[Op | None, str]:
    """Return the operator that `node` becomes on `target`, or None and why it stays in float.

    Checked in this order: the lowering rule, the data, the shapes, a folded batch, weights with NaN
    or infinity, the operator's constraints, and whether the platform has it.
    """
    op, reason = find_lowering_rule(node, target)
    if op is None:
        return None, reason
    data_reason = _data_reason(node, op) or _shape_reason(node, op, target)
    if data_reason is not None:
        return None, data_reason
    if any(ir.has_folded_batch(value) for value in node.outputs):
        return None, "one axis of its output mixes the batch with another dimension"
    if _has_nonfinite_weight(node, op):
        return None, "its weight or bias contains NaN or infinity"
    violations = op.find_violations(node, target)
    if violations:
        return None, violations[0].brief
    if not op.is_available(target):
        return None, op.explain_unavailable(node, target)
    return op, ""


def _has_nonfinite_weight(node: ir.Node, op: Op) -> bool:
    """Whether a weight of `node`, or its bias, contains NaN or infinity."""
    indices = op.weight_inputs(node)
    weights = [get_weight_values(node, index) for index in indices]
    if indices:  # all other constants of such an operator are biases, means and variances
        biases = set(range(len(node.inputs))).difference(op.data(node), indices)
        arrays = [ir.const_value(node.inputs[index]) for index in sorted(biases)]
        weights += [array for array in arrays if array is not None and array.dtype.kind == "f"]
    return any(values is not None and not np.isfinite(values).all() for values in weights)


def _data_reason(node: ir.Node, op: Op) -> str | None:
    """Return the reason why an input of `node` cannot become integer, or None.

    Each data input must be present, float32, not constant, and without a folded batch axis.
    """
    for index in op.data(node):
        value = node.inputs[index]
        if value is None:
            return "its input is absent, not float32"
        if value.dtype is None:
            return "its input is of unknown type, not float32"
        if value.dtype.name != "FLOAT":
            return f"its input is {value.dtype.name}, not float32"
        if ir.const_value(value) is not None:
            return "its input is a constant"
        if ir.has_folded_batch(value):
            return "one axis of its input mixes the batch with another dimension"
    return None


def _shape_reason(node: ir.Node, op: Op, target: Target) -> str | None:
    """Return the reason why a shape of `node` is not supported on `target`, or None.

    Reasons are an empty tensor, and for an operator that may emit a reshape, on a target of single
    samples, an axis 0 of fixed size other than 1.
    """
    inputs = [node.inputs[index] for index in op.data(node)]
    needs_samples_on_axis_0 = op.may_emit_reshape and target.single_sample
    for value in (*inputs, *node.outputs):
        if value is None:
            continue
        shape = ir.get_shape(value) or ()
        if 0 in shape:
            return f"'{value.name}' has no elements"
        if needs_samples_on_axis_0 and shape and shape[0] not in (None, 1):
            return (
                f"its axis 0 holds {shape[0]} rows of one sample; a reshape on {target.name} "
                "needs one sample per row"
            )
    return None


def _find_trailing_heads(partition: Partition) -> list[str]:
    """Return the integer nodes at the end of the network that run on the host at no cost.

    These are nodes whose operator has `runs_on_host_when_last` and downstream of which there is no
    integer computation, only data movement, such nodes, and float nodes. In reverse graph order.
    """
    tail: set[int] = set()
    heads = []
    for node in reversed(list(partition.graph.graph)):
        op = partition.ops.get(str(node.name))
        is_head = op is not None and op.runs_on_host_when_last
        if op is not None and not is_head and not op.is_data_movement:
            continue
        if any(id(consumer) not in tail for consumer in consumers_of(node)):
            continue
        tail.add(id(node))
        if is_head:
            heads.append(str(node.name))
    return heads


def _find_sums_for_floats(partition: Partition) -> list[str]:
    """Return the integer sums that are as cheap in float, and more accurate.

    Only float nodes, or such sums, read them, as a layer normalization that a chip lacks reads the
    sum of a residual connection. No more tensors pass between integers and float than before, or
    one more where several sums follow each other.
    """
    candidates = [
        node
        for node, op in partition.integer_nodes
        if node.op_type in ("Add", "Sub") and len(op.data(node)) == 2
    ]
    sums: dict[str, ir.Node] = {}
    for node in reversed(candidates):  # consumers first
        readers = {str(consumer.name) for consumer in consumers_of(node)}
        if readers and readers <= partition.floats.keys() | sums.keys():
            sums[str(node.name)] = node
    names = []
    for chain in _group_connected(sums):
        results = set(chain)
        added, removed = 0, 0
        for name in chain:
            node = sums[name]
            readers = {str(consumer.name) for consumer in consumers_of(node)}
            removed += not readers <= results
            producers = {str(producer.name) for producer in producers_of(node)}
            added += len(producers & partition.ops.keys() - results)
        if added <= removed + (len(chain) > 1):
            names += chain
    return names


def _group_connected(nodes: Mapping[str, ir.Node]) -> list[list[str]]:
    """Group `nodes` by name, so that nodes of which one reads the other are in one group."""
    sets, groups = DisjointSets(), dict[str, list[str]]()
    for name, node in nodes.items():
        for producer in producers_of(node):
            if str(producer.name) in nodes:
                sets.union(name, str(producer.name))
    for name in nodes:
        groups.setdefault(sets.find(name), []).append(name)
    return list(groups.values())


def _find_idle_islands(partition: Partition) -> dict[str, str]:
    """Find connected integer nodes without enough work for a part of their own.

    A region are nodes connected by integer tensors. These are regions that only move data; nodes
    computed from the host's results of integers with no layer after them; and regions with a node
    after the host that have no layer or constant, which no packer accepts as a part. Layers are
    nodes with MACs.

    Returns
    -------
    dict
        {integer node: reason why it moves to float}.
    """
    region_of = _find_regions(partition)
    computing = {
        region_of[str(node.name)] for node, op in partition.integer_nodes if not op.is_data_movement
    }
    moving = [name for name, region in region_of.items() if region not in computing]
    moving_reason = "it only moves data between float operators"
    if not partition.floats:
        return dict.fromkeys(moving, moving_reason)
    after_host = _nodes_after_host(partition)
    working, after_host_regions = set[str](), set[str]()
    layer_outputs = []
    for node, _ in partition.integer_nodes:
        region = region_of[str(node.name)]
        if count_macs(node):
            layer_outputs += [str(value.name) for value in node.outputs]
            working.add(region)
        if any(ir.const_value(value) is not None for value in node.inputs):
            working.add(region)
        if str(node.name) in after_host:
            after_host_regions.add(region)
    feeding_layers = {
        str(node.name) for node in ir.find_ancestors(partition.graph.graph, layer_outputs)
    }
    reasons = {}
    for name, region in region_of.items():
        if name in moving:
            reasons[name] = moving_reason
        elif name in after_host and name not in feeding_layers:
            reasons[name] = "it follows float operators at the end of the network"
        elif region in after_host_regions and region not in working:
            reasons[name] = "no layer runs with it between float operators"
    return reasons


def _find_regions(partition: Partition) -> dict[str, str]:
    """Return {integer node: id of its region}.

    Nodes that share an integer tensor, directly or over others, are in one region.
    """
    sets = DisjointSets()
    for node, op in partition.integer_nodes:
        for name in quantized_tensors(node, op):
            sets.union(f"node {node.name}", f"tensor {name}")
    names = [str(node.name) for node, _ in partition.integer_nodes]
    return {name: sets.find(f"node {name}") for name in names}


def _nodes_after_host(partition: Partition) -> set[str]:
    """Return the names of nodes downstream of the host's results of integers.

    That is, downstream of a float node that is downstream of an integer node.
    """
    after_integers, after_host = set[str](), set[str]()
    for node in partition.graph.graph:
        name = str(node.name)
        producers = set()
        for value in ir.iter_read_values(node):
            producer = ir.producer(value)
            if producer is not None:
                producers.add(str(producer.name))
        if name in partition.ops or not producers.isdisjoint(after_integers):
            after_integers.add(name)
        host_producers = producers.intersection(after_integers).difference(partition.ops)
        if host_producers or not producers.isdisjoint(after_host):
            after_host.add(name)
    return after_host


def count_float_operations(nodes: Iterable[ir.Node]) -> int:
    """Estimate the float operations of `nodes` for one sample.

    A multiply-accumulate counts as two operations, and each output element of a node without any as
    one. Data movement costs nothing. Unknown dimensions count as 1.
    """
    return sum(2 * count_macs(node) or _count_written_elements(node) for node in nodes)


def _count_written_elements(node: ir.Node) -> int:
    """Count the output elements of a node for one sample; 0 if it only moves data.

    Unknown dimensions count as 1.
    """
    is_standard = not node.domain
    if node.op_type == "Constant" or (is_standard and node.op_type in float_ops.DATA_MOVEMENT_OPS):
        return 0
    count = 0
    for value in node.outputs:
        shape = ir.get_shape(value)
        if shape is not None:
            count += math.prod(int(dim or 1) for dim in shape)
    return count
