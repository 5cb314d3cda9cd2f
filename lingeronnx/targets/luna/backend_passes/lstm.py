"""Exact rewrites of LSTMInt.

An even number of units, and room for what it writes beyond its plan.
"""

from __future__ import annotations

import math

import numpy as np

from ....formats import LINEAR, LSTM
from ....graph import ir
from ... import Target
from ..._target import AppliedRewrite
from .node_builders import IDENTITY_WEIGHT, insert_concat, insert_slice, make_slice

__all__ = ["enlarge_lstm_work_area", "pad_odd_lstm_units", "reserve_lstm_state"]

#: Steps that take the place of a state in 32 bits.
_STATE_STEPS = 4

#: The gates of an LSTMInt, and where the weight of its state stands among its inputs.
_GATES, _STATE_WEIGHT = 4, 2


def pad_odd_lstm_units(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Give every LSTMInt of an odd number of units one more, whose weights are zero.

    What the layer gives for it is cut off again. No other unit reads it, whatever its state is.
    """
    done = []
    for node in list(graph.graph):
        units = int(ir.get_attr(node, "hidden_size", 0))
        if node.op_type != LSTM.name or units % 2 == 0:
            continue
        for index, value in enumerate(node.inputs):
            array = ir.const_value(value)
            if value is None or array is None:
                continue
            gates = array.reshape(_GATES, units, *array.shape[1:])
            wide = np.pad(gates, [(0, 0), (0, 1), *[(0, 0)] * (array.ndim - 1)])
            wide = wide.reshape(-1, *array.shape[1:])
            if index == _STATE_WEIGHT:
                wide = np.pad(wide, ((0, 0), (0, 1)))
            name = ir.unique_tensor_name(graph, f"{value.name}_even")
            node.replace_input_with(index, ir.add_initializer(graph, name, wide))
            if not value.uses() and not value.is_graph_output():
                del graph.graph.initializers[str(value.name)]
        ir.set_attr(node, "hidden_size", units + 1)
        for value in node.outputs:
            _slice_off_extra_unit(graph, node, value, units)
        what = (
            f"{units + 1} units, of which one has weights of zero: the chip computes an odd "
            "number wrong"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def _slice_off_extra_unit(graph: ir.Model, node: ir.Node, value: ir.Value, units: int) -> None:
    """Let `value`, an output of `node`, have one unit more than `units`, and let its readers read the first `units`."""
    name, shape, readers = str(value.name), list(ir.get_shape(value) or ()), list(value.uses())
    value.name = ir.unique_tensor_name(graph, f"{name}_even")
    value.shape = ir.make_shape([*shape[:-1], units + 1])
    if not readers:
        return
    slices = make_slice(graph, value, len(shape) - 1, 0, units, name, ir.get_tensor_names(graph))
    graph.graph.insert_after(node, slices)
    for reader, index in readers:
        reader.replace_input_with(index, slices.outputs[0])


def enlarge_lstm_work_area(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Put a LinearInt that changes nothing behind an LSTMInt of H units, which writes 40*H bytes and plans 32*H.

    A LinearInt with a bias plans four bytes per output; some outputs are cut off again where the
    rows are too few.
    """
    done = []
    areas = [
        math.prod(int(d or 1) for d in ir.get_shape(n.outputs[0]) or ())
        for n in graph.graph
        if n.op_type == LINEAR.name and len(n.inputs) > 2
    ]
    for node in list(graph.graph):
        y = node.outputs[0] if node.outputs else None
        shape = [int(d or 1) for d in ir.get_shape(y) or ()]
        if (
            node.op_type != LSTM.name
            or y is None
            or len(shape) != 3
            or max(areas, default=0) >= 10 * shape[-1]
        ):
            continue
        units, readers = shape[-1], list(y.uses())
        wide = units * -(-10 // shape[1])
        name = ir.unique_tensor_name(graph, f"{y.name}_same")
        scale = float(ir.get_attr(node, "scale_o"))
        constants = [
            ir.add_initializer(graph, ir.unique_tensor_name(graph, f"{name}_{what}"), array)
            for what, array in (
                ("weight", np.eye(wide, units, dtype=np.int8) * IDENTITY_WEIGHT),
                ("bias", np.zeros(wide, np.int32)),
            )
        ]
        attrs = {
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
            [y, *constants],
            dict(sorted(attrs.items())),
            name=f"{LINEAR.name}_{name}",
            output=name,
            domain="thinker",
            like=y,
        )
        linear.outputs[0].shape = ir.make_shape([*shape[:2], wide])
        graph.graph.insert_after(node, linear)
        same = linear.outputs[0] if wide == units else insert_slice(graph, linear, 2, 0, units)
        for reader, index in readers:
            reader.replace_input_with(index, same)
        areas.append(shape[1] * wide)
        what = (
            "a fully connected layer behind it that changes nothing: the packer plans too "
            "small "
            "a work area"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done


def reserve_lstm_state(graph: ir.Model, target: Target) -> list[AppliedRewrite]:
    """Cut what an LSTMInt of H units gives into two halves and join them again.

    Its last state takes 4*H bytes and H are planned. The halves live when the LSTMInt is done, both
    at a time, and with four steps or more each is as large as a state: the packer puts the two
    states into their places, the largest that are free.
    """
    done = []
    for node in list(graph.graph):
        y = node.outputs[0] if node.outputs else None
        shape = [int(d or 1) for d in ir.get_shape(y) or ()]
        if node.op_type != LSTM.name or y is None or len(shape) != 3 or len(node.outputs) < 2:
            continue
        readers, half = list(y.uses()), shape[1] // 2
        if not readers or half < _STATE_STEPS:
            continue
        parts = [
            insert_slice(graph, node, 1, start, end) for start, end in ((0, half), (half, shape[1]))
        ]
        scale = float(ir.get_attr(node, "scale_o"))
        first = next(n for n in graph.graph if any(n is reader for reader, _ in readers))
        whole = insert_concat(graph, node, parts, 1, scale, f"{y.name}_whole", before=first)
        for reader, index in readers:
            reader.replace_input_with(index, whole)
        what = (
            "its steps are cut in two and joined again: the packer plans too small a place for "
            "its last state"
        )
        done.append(AppliedRewrite(str(node.name), what, "exact"))
    return done
