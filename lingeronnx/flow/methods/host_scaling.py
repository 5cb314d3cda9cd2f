"""Bring tensors that a chip cannot hold into its range.

The host multiplies where no weight can take the factor up.
A chip holds scales between two exponents (2^-3 to 2^16 on the LUNA chips: values up to 1016, steps
down to 2^-16). Inside a net a tensor beyond that gets its factor from the weights around it
(`ranges`). A graph input or output, or a tensor that float operators read or write, is pinned: here
a Mul is put between it and the integers, on the float side, which frees the group. Which constant
it multiplies by is settled by `ranges` and written by `set_host_factors`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...graph import ir
from ...targets import Target
from ..assign.calibrators import choose_symmetric_scale
from ..assign.scale_policy import ScalePolicy
from ..assign.shared_scales import SharedScaleGroup
from ..factor_groups import HOST_SCALING_REASON
from ..observe.statistics import Stats
from ..partition import Partition

__all__ = ["insert_boundary_muls", "insert_host_scaling", "set_host_factors"]


def insert_host_scaling(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
) -> tuple[dict[str, str], dict[str, str]]:
    """Put Mul nodes (by 1, for now) at the borders of what `target` cannot hold.

    Return {node: reason} of these, and {new tensor: the one that it is equal to}.
    """
    if not target.needs_power_of_two_scales:
        return {}, {}
    return insert_boundary_muls(partition, _out_of_range(shared_groups, stats, target, policy))


def insert_boundary_muls(
    partition: Partition, names: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Put Mul nodes at the borders of the tensors `names`.

    Return the same as `insert_host_scaling`.
    """
    model, inside = partition.graph, partition.integer_node_ids
    added: dict[str, str] = {}
    alike: dict[str, str] = {}
    for value in list(ir.iter_values(model)):
        name = str(value.name)
        if name not in names:
            continue
        writer = ir.producer(value)
        written_inside = writer is not None and id(writer) in inside
        outside = [use for use in value.uses() if id(use.node) not in inside]
        if not written_inside:
            node, new = _insert_mul_after(model, value, inside)
        elif outside or value.is_graph_output():
            node, new = _insert_mul_before(model, value, inside)
        else:
            continue
        added[node], alike[new] = HOST_SCALING_REASON, name
    return added, alike


def _out_of_range(
    shared_groups: Sequence[SharedScaleGroup], stats: Stats, target: Target, policy: ScalePolicy
) -> set[str]:
    """Return the tensors of the shared scales that need an exponent the row does not hold."""
    names: set[str] = set()
    for group in shared_groups:
        observed = group.merged_stats(stats)
        if observed is not None and observed.sum_of_squares > 0:
            scale = choose_symmetric_scale(
                observed, policy.width(*group.tensors), power_of_two=True, calibrator="mse"
            )
            if not target.exponents[0] <= math.log2(scale) <= target.exponents[1]:
                names.update(group.tensors)
    return names


def _insert_mul_after(model: ir.Model, value: ir.Value, inside: Collection[int]) -> tuple[str, str]:
    """Let the integer readers of a float `value` read it through a Mul.

    Return that and the new tensor.
    """
    readers = [(use.node, use.idx) for use in value.uses() if id(use.node) in inside]
    node = _make_mul(model, value, f"{value.name}_scaled")
    first = next(n for n in model.graph if any(n is reader for reader, _ in readers))
    model.graph.insert_before(first, node)
    for reader, index in readers:
        reader.replace_input_with(index, node.outputs[0])
    return str(node.name), ir.output_name(node)


def _insert_mul_before(
    model: ir.Model, value: ir.Value, inside: Collection[int]
) -> tuple[str, str]:
    """Let the float readers of an integer `value`, and the outside, read it through a Mul that takes over its name.

    Return the Mul and the new name of `value`.
    """
    writer = ir.producer(value)
    assert writer is not None
    name = str(value.name)
    readers = [(use.node, use.idx) for use in value.uses() if id(use.node) not in inside]
    value.name = ir.unique_tensor_name(model, f"{name}_scaled")
    node = _make_mul(model, value, name)
    model.graph.insert_after(writer, node)
    for reader, index in readers:
        reader.replace_input_with(index, node.outputs[0])
    for position, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[position] = node.outputs[0]
    return str(node.name), str(value.name)


def _make_mul(model: ir.Model, value: ir.Value, output: str) -> ir.Node:
    base = str(value.name)
    one = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{base}_factor"), np.array(1.0, np.float32)
    )
    free = (
        output
        if output not in {str(v.name) for v in ir.iter_values(model)}
        else ir.unique_tensor_name(model, output)
    )
    title = ir.unique_name(f"{base}_scale", {str(node.name) for node in model.graph})
    return ir.make_node("Mul", [value, one], name=title, output=free, like=value)


def set_host_factors(
    model: ir.Model, added: Mapping[str, str], factors: Mapping[str, np.ndarray]
) -> None:
    """Write the constants: by f where the Mul leads into the integers, by 1/f where it leads out of them."""
    for node in model.graph:
        if str(node.name) in added:
            into = factors.get(ir.output_name(node))
            out_of = factors.get(ir.input_name(node))
            factor = (
                float(into[0])
                if into is not None
                else 1.0 / float(out_of[0])
                if out_of is not None
                else 1.0
            )
            ir.set_constant_input(model, node, 1, np.array(factor, np.float32), "factor")
