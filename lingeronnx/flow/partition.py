"""Which nodes of a float graph become integer, and why the others do not.

Found once, and handed on as a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import ConstraintError
from ..graph import ir
from ..graph.disjoint import DisjointSets
from ..ops import Op, find_lowering_rule, get_weight_values
from ..ops.macs import count_macs
from ..run.runners import find_ancestors, iter_read_values
from ..targets import Target

__all__ = ["Partition", "partition_graph"]

_MAX_OUTPUT_RANK = 3  # of a layer's output on a chip


@dataclass(frozen=True)
class Partition:
    """A normalised float graph, cut in two.

    graph : the graph. ops : {node: the operator it becomes}, in graph order. floats : {node: why it
    stays in float}.

    Weights of the graph may change under it, and nodes that stay in float may be added
    (`with_added_floats`).
    """

    graph: ir.Model
    ops: Mapping[str, Op]
    floats: Mapping[str, str]

    @classmethod
    def build(cls, graph: ir.Model, floats: Mapping[str, str], target: Target) -> Partition:
        """Return the partition of `graph` for `target` in which `floats` stay.

        ConstraintError where more have to.
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
        """The nodes that become integer, with their operators, in graph order."""
        return tuple(
            (node, self.ops[str(node.name)])
            for node in self.graph.graph
            if str(node.name) in self.ops
        )

    @cached_property
    def integer_node_ids(self) -> frozenset[int]:
        """The ids of the nodes that become integer."""
        return frozenset(id(node) for node, _ in self.integer_nodes)

    @property
    def activations(self) -> tuple[str, ...]:
        """The names of the activations that become integers, in graph order."""
        names: dict[str, None] = {}
        for node, op in self.integer_nodes:
            for index in op.data(node):
                names[ir.input_name(node, index)] = None
            names.update(
                dict.fromkeys(str(node.outputs[index].name) for index in op.quantized_outputs(node))
            )
        return tuple(names)

    def symmetric_tensors(self, target: Target) -> dict[str, str]:
        """Return {activation: the operator that reads or writes it, for which the integer 0 has to stand for 0}."""
        by_tensor: dict[str, str] = {}
        for node, op in self.integer_nodes:
            if not op.supports_zero_points(node, target):
                names = [ir.input_name(node, index) for index in op.data(node)]
                names += [str(node.outputs[index].name) for index in op.quantized_outputs(node)]
                by_tensor.update(dict.fromkeys(names, f"{node.op_type} {node.name}"))
        return by_tensor

    def wide_outputs(self, target: Target) -> frozenset[str]:
        """Return the outputs that leave the integers, of layers that may write them wider than the rest, or in float.

        A chip writes up to three axes, and more by a Reshape, which only moves bytes.
        """
        return frozenset(
            ir.output_name(node)
            for node, op in self.integer_nodes
            if op.allows_wide_output
            and not any(id(use.node) in self.integer_node_ids for use in node.outputs[0].uses())
            and (
                target.linear_limits is None
                or len(ir.get_shape(node.outputs[0]) or ()) <= _MAX_OUTPUT_RANK
            )
        )

    def wide_outputs_between_parts(self, target: Target) -> list[str]:
        """Return those of `wide_outputs` that the host reads for what is computed in integers again."""
        able, leads = self.wide_outputs(target), set[int]()
        found = []
        for node in reversed(list(self.graph.graph)):
            readers = [id(use.node) for value in node.outputs for use in value.uses()]
            if id(node) in self.integer_node_ids or not leads.isdisjoint(readers):
                leads.add(id(node))
            if (
                id(node) in self.integer_node_ids
                and not leads.isdisjoint(readers)
                and ir.output_name(node) in able
            ):
                found.append(ir.output_name(node))
        return found

    def curve_input_exponents(self, target: Target) -> dict[str, int]:
        """Return {output of a layer that a curve alone reads, which takes 16 bits.

        The least exponent it takes}.
        """
        exponents = {}
        for node, op in self.integer_nodes:
            reader = ir.sole_consumer(node.outputs[0])
            after = None if reader is None else self.ops.get(str(reader.name))
            fine = None if after is None else after.scale_constraints.min_input_exponent(target)
            fits = (
                op.allows_wide_output
                and len(ir.get_shape(node.outputs[0]) or ()) <= _MAX_OUTPUT_RANK
            )
            if fits and fine is not None and target.curve_bits:
                exponents[ir.output_name(node)] = fine
        return exponents

    def with_graph(self, copy: ir.Model) -> Partition:
        """Return the same partition of a copy of the graph."""
        return replace(self, graph=copy)

    def nodes_touching(self, tensors: Collection[str]) -> list[str]:
        """Return the integer nodes that read or write one of `tensors` as integers."""
        return [
            str(node.name)
            for node, op in self.integer_nodes
            if any(ir.input_name(node, index) in tensors for index in op.data(node))
            or any(str(node.outputs[index].name) in tensors for index in op.quantized_outputs(node))
        ]

    def move_to_float(self, more: Mapping[str, str]) -> Partition:
        """Return the partition with some more nodes in float: {node.

        Why}, and those that only moved data for them.
        """
        rest = _move_to_float(self, more)
        return _move_to_float(rest, _find_idle_islands(rest))

    def with_added_floats(self, more: Mapping[str, str]) -> Partition:
        """Return the partition after nodes that stay in float were added to the graph: {node.

        Why}.
        """
        return replace(self, floats={**self.floats, **more})


def partition_graph(model: ir.Model, target: Target, skip: Mapping[str, str]) -> Partition:
    """Return what of the normalised `model` becomes integer on `target`.

    skip : nodes the caller leaves out, with the reason.
    """
    floats = dict(skip)
    for node in model.graph:
        name = str(node.name)
        if name not in floats:
            reason = _float_reason(node, target)
            if reason is not None:
                floats[name] = reason
    whole = Partition.build(model, floats, target)
    heads = dict.fromkeys(
        _find_trailing_heads(whole), "it ends the network, where floats cost nothing"
    )
    rest = _move_to_float(whole, heads)
    return _move_to_float(rest, _find_idle_islands(rest))


def _move_to_float(partition: Partition, more: Mapping[str, str]) -> Partition:
    """Return `partition` with some more nodes in float."""
    ops = {name: op for name, op in partition.ops.items() if name not in more}
    return Partition(partition.graph, ops, {**partition.floats, **more})


def _float_reason(node: ir.Node, target: Target) -> str | None:
    op, reason = find_lowering_rule(node, target)
    if op is None:
        return reason
    for index in op.data(node):
        value = node.inputs[index]
        if value is None or value.dtype is None or value.dtype.name != "FLOAT":
            kind = "absent" if value is None else getattr(value.dtype, "name", "of unknown type")
            return f"its input is {kind}, not float32"
        if ir.const_value(value) is not None:
            return "its input is a constant"
        if ir.has_folded_batch(value):
            return "its input has samples and something else on one axis"
    for value in (*(node.inputs[index] for index in op.data(node)), *node.outputs):
        shape = () if value is None else ir.get_shape(value) or ()
        if value is not None and 0 in shape:
            return f"'{value.name}' has no elements"
        if op.may_emit_reshape and target.single_sample and shape and shape[0] not in (None, 1):
            return (
                f"its axis 0 has {shape[0]} rows of one sample; where {target.name} reshapes, "
                "it has a sample there"
            )
    if any(ir.has_folded_batch(value) for value in node.outputs):
        return "its output has samples and something else on one axis"
    for index in op.weight_inputs(node):
        values = get_weight_values(node, index)
        if values is not None and not np.isfinite(values).all():
            return "its weight holds NaN or infinity"
    broken = op.find_violations(node, target)
    if broken:
        return broken[0].brief
    if not op.is_available(target):
        return op.explain_unavailable(node, target)
    return None


def _find_trailing_heads(partition: Partition) -> list[str]:
    """Return the integer nodes of kind `head` that nothing computes in integers after.

    The host may as well do them.
    """
    tail: set[int] = set()
    heads = []
    for node in reversed(list(partition.graph.graph)):
        op = partition.ops.get(str(node.name))
        free = op is None or op.runs_on_host_when_last or op.is_data_movement
        if free and all(id(use.node) in tail for value in node.outputs for use in value.uses()):
            tail.add(id(node))
            heads += [str(node.name)] if op is not None and op.runs_on_host_when_last else []
    return heads


def _find_idle_islands(partition: Partition) -> dict[str, str]:
    """Return {integer node: why it leaves} of nodes that have no work for a part of their own.

    They hang together and only move data. Or they are computed from what the host computed from
    integers, and no layer follows; or they hang together with no layer and no constant, without
    which no packer takes a part.
    """
    sets = DisjointSets()
    for node, op in partition.integer_nodes:
        own = [
            node.outputs[i] for i in op.quantized_outputs(node)
        ]  # a cell leaves the integers by itself
        for value in (*(ir.require_input(node, i) for i in op.data(node)), *own):
            sets.union(f"node {node.name}", f"tensor {value.name}")
    home = {str(node.name): sets.find(f"node {node.name}") for node, _ in partition.integer_nodes}
    busy = {home[str(node.name)] for node, op in partition.integer_nodes if not op.is_data_movement}
    layers = [node for node, _ in partition.integer_nodes if count_macs(node)]
    held = [
        node
        for node, _ in partition.integer_nodes
        if any(ir.const_value(value) is not None for value in node.inputs)
    ]
    working = {home[str(node.name)] for node in (*layers, *held)}
    from_host, results = (
        _nodes_after_host(partition),
        [str(value.name) for node in layers for value in node.outputs],
    )
    before_layers = {str(node.name) for node in find_ancestors(partition.graph.graph, results)}
    fed = {
        home[str(node.name)] for node, _ in partition.integer_nodes if str(node.name) in from_host
    }
    why = {}
    for name, region in home.items():
        if region not in busy:
            why[name] = "it only moves data between float operators"
        elif name in from_host and name not in before_layers:
            why[name] = "it ends the network behind float operators"
        elif region in fed - working:
            why[name] = "no layer is beside it between float operators"
    return why


def _nodes_after_host(partition: Partition) -> set[str]:
    """Return the nodes that are computed from what the host computes from integers."""
    integers, host = set[str](), set[str]()
    for node in partition.graph.graph:
        name = str(node.name)
        before = {
            str(maker.name)
            for value in iter_read_values(node)
            if (maker := ir.producer(value)) is not None
        }
        if name in partition.ops or before & integers:
            integers.add(name)
        if before & host or any(
            maker in integers and maker not in partition.ops for maker in before
        ):
            host.add(name)
    return host
