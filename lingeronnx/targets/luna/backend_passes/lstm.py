"""Exact rewrites of LSTMInt: an even number of units, and memory for writes past its plan."""

from __future__ import annotations

import math

import numpy as np

from ....formats import LINEAR, LSTM
from ....graph import ir
from ... import Target
from ..._target import AppliedRewrite
from .node_builders import IDENTITY_WEIGHT, get_dims, insert_concat, insert_slice, make_slice

__all__ = ["enlarge_lstm_work_area", "pad_odd_lstm_units", "reserve_lstm_state"]

#: Fewest steps of a half that is as large as a 32-bit state.
_STATE_STEPS = 4

#: Number of gates of an LSTMInt, and the input index of its recurrent weight.
_GATES, _STATE_WEIGHT = 4, 2


def pad_odd_lstm_units(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Add a unit with zero weights to every LSTMInt with an odd number of units, in place.

    Its results are sliced off again, and no other unit reads its state. Returns one description per
    node.
    """
    rewrites = []
    for node in list(graph.graph):
        units = int(ir.get_attr(node, "hidden_size", 0))
        if node.op_type != LSTM.name or units % 2 == 0:
            continue
        for index, value in enumerate(node.inputs):
            array = ir.const_value(value)
            if value is None or array is None:
                continue
            padded = _pad_lstm_constant(array, units, is_recurrent_weight=index == _STATE_WEIGHT)
            name = ir.unique_tensor_name(graph, f"{value.name}_even")
            node.replace_input_with(index, ir.add_initializer(graph, name, padded))
            if not value.uses() and not value.is_graph_output():
                del graph.graph.initializers[str(value.name)]
        ir.set_attr(node, "hidden_size", units + 1)
        for value in node.outputs:
            _slice_off_extra_unit(graph, node, value, units)
        description = (
            f"padded to {units + 1} units with zero weights: the chip miscomputes odd unit counts"
        )
        rewrites.append(AppliedRewrite(str(node.name), description, "exact"))
    return rewrites


def _pad_lstm_constant(array: np.ndarray, units: int, is_recurrent_weight: bool) -> np.ndarray:
    """Pad a weight [gates * units, inputs] or bias [gates * units] with zeros for one more unit.

    The unit is added to each gate, and for a recurrent weight also to the inputs. Returns a new
    array.
    """
    gates = array.reshape(_GATES, units, *array.shape[1:])
    padded = np.pad(gates, [(0, 0), (0, 1), *[(0, 0)] * (array.ndim - 1)])
    padded = padded.reshape(-1, *array.shape[1:])
    if is_recurrent_weight:
        padded = np.pad(padded, ((0, 0), (0, 1)))
    return padded


def _slice_off_extra_unit(graph: ir.Model, node: ir.Node, value: ir.Value, units: int) -> None:
    """Widen `value`, an output of `node`, to `units` + 1 on the last axis, in place.

    Its consumers read the first `units` through a Slice, which takes over the name; without
    consumers there is no Slice.
    """
    name, shape, consumers = str(value.name), list(ir.get_shape(value) or ()), list(value.uses())
    value.name = ir.unique_tensor_name(graph, f"{name}_even")
    value.shape = ir.make_shape([*shape[:-1], units + 1])
    if not consumers:
        return
    slice_node = make_slice(
        graph, value, len(shape) - 1, 0, units, name, ir.get_tensor_names(graph)
    )
    graph.graph.insert_after(node, slice_node)
    for consumer, index in consumers:
        consumer.replace_input_with(index, slice_node.outputs[0])


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
    linear.outputs[0].shape = ir.make_shape(list(output_shape))
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
