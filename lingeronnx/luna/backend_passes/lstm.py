"""Exact rewrites that reserve memory for what an LSTMInt writes past its plan."""

from __future__ import annotations

import math

import numpy as np

from ...ir import ir
from ...operators.integer_ops import LINEAR, LSTM
from ...targets import Target
from ...targets._target import AppliedRewrite
from .node_builders import IDENTITY_WEIGHT, get_dims, insert_concat, insert_slice

__all__ = ["enlarge_lstm_work_area", "reserve_lstm_state"]

#: Fewest steps of a half that is as large as a 32-bit state.
_STATE_STEPS = 4


def enlarge_lstm_work_area(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Insert an identity LinearInt after every LSTMInt whose work area is too small, in place.

    An LSTMInt with H units writes 40*H bytes and plans 32*H. A LinearInt with a bias plans four
    bytes per output element, so one with 10*H elements anywhere in the graph suffices. With fewer
    than ten steps the inserted one computes additional outputs, which are sliced off again. Returns
    one description per LSTMInt.
    """
    rewrites = []
    max_linear_elements = max(
        (
            math.prod(get_dims(node.outputs[0]))
            for node in graph.graph
            if node.op_type == LINEAR.name and len(node.inputs) > 2
        ),
        default=0,
    )
    for node in list(graph.graph):
        shape = _get_sequence_shape(node)
        if shape is None or max_linear_elements >= 10 * shape[-1]:
            continue
        _, steps, units = shape
        outputs = units * -(-10 // steps)
        consumers = list(node.outputs[0].uses())
        linear = _insert_identity_linear(graph, node, [*shape[:2], outputs], target)
        copy = linear.outputs[0]
        if outputs != units:
            copy = insert_slice(graph, linear, 2, 0, units)
        for consumer, index in consumers:
            consumer.replace_input_with(index, copy)
        max_linear_elements = max(max_linear_elements, steps * outputs)
        description = (
            "identity fully connected layer inserted: the packer allocates too small a work area"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _get_sequence_shape(node: ir.Node) -> list[int] | None:
    """Return the shape [1, T, H] of the first output of an LSTMInt.

    None for other nodes and ranks.
    """
    if node.op_type != LSTM.name:
        return None
    shape = get_dims(node.outputs[0])
    return shape if len(shape) == 3 else None


def _insert_identity_linear(
    graph: ir.Model, node: ir.Node, output_shape: list[int], target: Target
) -> ir.Node:
    """Insert a LinearInt after `node` that copies its first output, padded to `output_shape`.

    The padding is zeros and the scale that of the output. Consumers are not changed. Returns the
    new node.
    """
    source = node.outputs[0]
    units, outputs = get_dims(source)[-1], output_shape[-1]
    name = ir.unique_tensor_name(graph, f"{source.name}_same")
    scale = float(ir.get_attr(node, "scale_o"))
    arrays: dict[str, np.ndarray] = {
        "weight": np.eye(outputs, units, dtype=np.int8) * IDENTITY_WEIGHT,
        "bias": np.zeros(outputs, np.int32),
    }
    constants = []
    for label, array in arrays.items():
        constant_name = ir.unique_tensor_name(graph, f"{name}_{label}")
        constants.append(ir.add_initializer(graph, constant_name, array))
    attributes = {
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "scale_x": scale,
        "scale_w": float(IDENTITY_WEIGHT),
        "scale_o": scale,
        **target.node_attributes.get("", {}),
    }
    linear = ir.make_node(
        LINEAR.name,
        [source, *constants],
        dict(sorted(attributes.items())),
        name=f"{LINEAR.name}_{name}",
        output=name,
        domain="thinker",
        like=source,
    )
    linear.outputs[0].shape = ir.Shape(list(output_shape))
    graph.graph.insert_after(node, linear)
    return linear


def reserve_lstm_state(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Split the output of every LSTMInt into two halves and join them again by an iqCat, in place.

    The last state of an LSTMInt with H units takes 4*H bytes, but H are planned. The halves are
    live together after the LSTMInt, and with `_STATE_STEPS` steps or more each is as large as a
    state: the packer puts the two states into their memory, the largest free blocks. Nodes whose
    halves have fewer steps, or without state outputs or consumers, stay. Returns one description
    per node.
    """
    rewrites = []
    for node in list(graph.graph):
        shape = _get_sequence_shape(node)
        if shape is None or len(node.outputs) < 2:
            continue
        output, steps = node.outputs[0], shape[1]
        uses, half = list(output.uses()), steps // 2
        if not uses or half < _STATE_STEPS:
            continue
        halves = [
            insert_slice(graph, node, 1, 0, half),
            insert_slice(graph, node, 1, half, steps),
        ]
        scale = float(ir.get_attr(node, "scale_o"))
        consumers = {use.node for use in uses}
        first_consumer = next(candidate for candidate in graph.graph if candidate in consumers)
        joined = insert_concat(
            graph, node, halves, 1, scale, f"{output.name}_whole", before=first_consumer
        )
        for consumer, index in uses:
            consumer.replace_input_with(index, joined)
        description = (
            "output split into two halves and joined again: the packer allocates too little memory "
            "for the last state"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites
