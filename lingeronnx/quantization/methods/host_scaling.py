"""Insert multiplications on the host for tensors that a chip cannot represent.

A chip supports scales between two exponents (2^-3 to 2^16 on the LUNA chips: values up to 1016,
steps down to 2^-16). Inside a model, the factor of a tensor outside of that range moves into the
weights around it (`range_fitting`). A graph input or output, or a tensor that float operators read
or write, is pinned: here a Mul is inserted between it and the integers, on the float side, which
frees the group. Its constant is determined by `range_fitting` and written by `set_host_factors`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...ir import ir
from ...targets import Target
from ..calibration.calibrators import choose_symmetric_scale
from ..calibration.statistics import Stats
from ..factor_groups import HOST_SCALING_REASON
from ..partition import Partition
from ..scales.scale_policy import ScalePolicy
from ..scales.shared_scales import SharedScaleGroup

__all__ = ["insert_boundary_muls", "insert_host_scaling", "set_host_factors"]


def insert_host_scaling(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
) -> tuple[dict[str, str], dict[str, str]]:
    """Insert Mul nodes (by 1, for now) between host and chip at tensors of unsupported scales.

    These are tensors whose shared scale, by the calibrator "mse" for powers of two, needs an
    exponent that `target` does not support. Groups without statistics or with zeros only are left
    out. The graph of `partition` is changed. Both results are empty for a target with free scales.

    Returns
    -------
    reasons : dict
        {inserted node: reason why it is in float}.
    equal_tensors : dict
        {new tensor: the tensor that it is equal to}.
    """
    if not target.needs_power_of_two_scales:
        return {}, {}
    min_exponent, max_exponent = target.exponents
    names: set[str] = set()
    for group in shared_groups:
        group_stats = group.merged_stats(stats)
        if group_stats is None or not group_stats.sum_of_squares > 0:
            continue
        bits = policy.width(*group.tensors)
        scale = choose_symmetric_scale(group_stats, bits, power_of_two=True, calibrator="mse")
        if not min_exponent <= math.log2(scale) <= max_exponent:
            names.update(group.tensors)
    return insert_boundary_muls(partition, names) if names else ({}, {})


def insert_boundary_muls(
    partition: Partition, names: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Insert Mul nodes by 1 between integers and floats at the tensors `names`, in place.

    Tensors that only integer nodes write and read are skipped.

    Returns
    -------
    reasons : dict
        {inserted node: reason why it is in float}.
    equal_tensors : dict
        {new tensor: tensor of `names` on the other side of its Mul}.
    """
    model, integer_ids = partition.graph, partition.integer_node_ids
    reasons: dict[str, str] = {}
    equal_tensors: dict[str, str] = {}
    for value in list(ir.iter_values(model)):
        name = str(value.name)
        if name not in names:
            continue
        producer = ir.producer(value)
        has_float_consumer = any(id(use.node) not in integer_ids for use in value.uses())
        if producer is None or id(producer) not in integer_ids:
            node, new_tensor = _insert_mul_after(model, value, integer_ids)
        elif has_float_consumer or value.is_graph_output():
            node, new_tensor = _insert_mul_before(model, value, integer_ids)
        else:
            continue
        reasons[node] = HOST_SCALING_REASON
        equal_tensors[new_tensor] = name
    return reasons, equal_tensors


def _insert_mul_after(
    model: ir.Model, value: ir.Value, integer_ids: Collection[int]
) -> tuple[str, str]:
    """Insert a Mul by 1 between a float `value` and its integer consumers.

    Returns the names of the Mul and of its output. Integer nodes are those in `integer_ids`; the
    others keep reading `value`.
    """
    consumers = [(use.node, use.idx) for use in value.uses() if id(use.node) in integer_ids]
    node = _make_mul(model, value, f"{value.name}_scaled")
    consumer_ids = {id(consumer) for consumer, _ in consumers}
    first = next(node for node in model.graph if id(node) in consumer_ids)
    model.graph.insert_before(first, node)
    for consumer, index in consumers:
        consumer.replace_input_with(index, node.outputs[0])
    return str(node.name), ir.output_name(node)


def _insert_mul_before(
    model: ir.Model, value: ir.Value, integer_ids: Collection[int]
) -> tuple[str, str]:
    """Insert a Mul by 1 between an integer `value` and its float consumers and graph outputs.

    The output of the Mul takes the name of `value`. Returns the name of the Mul and the new name of
    `value`.
    """
    producer = ir.producer(value)
    assert producer is not None
    name = str(value.name)
    consumers = [(use.node, use.idx) for use in value.uses() if id(use.node) not in integer_ids]
    value.name = ir.unique_tensor_name(model, f"{name}_scaled")
    node = _make_mul(model, value, name)
    model.graph.insert_after(producer, node)
    for consumer, index in consumers:
        consumer.replace_input_with(index, node.outputs[0])
    for position, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[position] = node.outputs[0]
    return str(node.name), str(value.name)


def _make_mul(model: ir.Model, value: ir.Value, output: str) -> ir.Node:
    """Return a new Mul of `value` by 1 with output `output`, or a similar name if that is taken.

    The node is not inserted, but its constant is an initializer of `model`.
    """
    base = str(value.name)
    factor_name = ir.unique_tensor_name(model, f"{base}_factor")
    factor = ir.add_initializer(model, factor_name, np.array(1.0, np.float32))
    if output in {str(existing.name) for existing in ir.iter_values(model)}:
        output = ir.unique_tensor_name(model, output)
    node_name = ir.unique_name(f"{base}_scale", {str(node.name) for node in model.graph})
    return ir.make_node("Mul", [value, factor], name=node_name, output=output, like=value)


def set_host_factors(
    model: ir.Model, added: Mapping[str, str], factors: Mapping[str, np.ndarray]
) -> None:
    """Write the constants of the Mul nodes that were inserted between host and chip, in place.

    A Mul before integers multiplies by the factor of its output, and one after integers divides by
    the factor of its input; 1 without either.

    Parameters
    ----------
    model
        Float graph.
    added
        {inserted node: reason}, from `insert_host_scaling`.
    factors
        {tensor: factor [1]}.
    """
    for node in model.graph:
        if str(node.name) not in added:
            continue
        output_factor = factors.get(ir.output_name(node))
        input_factor = factors.get(ir.input_name(node))
        factor = 1.0
        if output_factor is not None:
            factor = float(output_factor[0])
        elif input_factor is not None:
            factor = 1.0 / float(input_factor[0])
        ir.set_constant_input(model, node, 1, np.array(factor, np.float32), "factor")
