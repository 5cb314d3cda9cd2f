"""Room for what LSTMInt writes beyond its plan: exact rewrites behind it."""

from __future__ import annotations

import math

import numpy as np

from ..fit import Fitted
from ..formats import LINEAR, LSTM
from ..graph import ir
from ..platforms import Platform
from .nodes import ONE, cut, joined

__all__ = ["lstm_area", "lstm_state"]

#: Steps that take the place of a state in 32 bits.
_STEPS = 4


def lstm_area(graph: ir.Graph, row: Platform) -> list[Fitted]:
    """Put a LinearInt that changes nothing behind an LSTMInt of H units, which writes 40*H bytes and plans 32*H.

    A LinearInt with a bias plans four bytes per output; some outputs are cut off again where the rows are too few.
    """
    done = []
    areas = [
        math.prod(int(d or 1) for d in ir.shape(n.outputs[0]) or ())
        for n in graph.graph
        if n.op_type == LINEAR.name and len(n.inputs) > 2
    ]
    for node in list(graph.graph):
        y = node.outputs[0] if node.outputs else None
        shape = [int(d or 1) for d in ir.shape(y) or ()]
        if node.op_type != LSTM.name or y is None or len(shape) != 3 or max(areas, default=0) >= 10 * shape[-1]:
            continue
        units, readers = shape[-1], list(y.uses())
        wide = units * -(-10 // shape[1])
        name = ir.fresh_name(graph, f"{y.name}_same")
        scale = float(ir.attr(node, "scale_o"))
        held = [
            ir.add_initializer(graph, ir.fresh_name(graph, f"{name}_{what}"), array)
            for what, array in (
                ("weight", np.eye(wide, units, dtype=np.int8) * ONE),
                ("bias", np.zeros(wide, np.int32)),
            )
        ]
        attrs = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": scale, "scale_w": float(ONE),
                 "scale_o": scale, **row.node_attributes.get("", {})}  # fmt: skip
        made = ir.make_node(
            LINEAR.name,
            [y, *held],
            dict(sorted(attrs.items())),
            name=f"{LINEAR.name}_{name}",
            output=name,
            domain="thinker",
            like=y,
        )
        made.outputs[0].shape = ir.oir_shape([*shape[:2], wide])
        graph.graph.insert_after(node, made)
        same = made.outputs[0] if wide == units else cut(graph, made, 2, 0, units)
        for reader, index in readers:
            reader.replace_input_with(index, same)
        areas.append(shape[1] * wide)
        what = "a fully connected layer behind it that changes nothing: the packer plans too small a work area"
        done.append(Fitted(str(node.name), what, "exact"))
    return done


def lstm_state(graph: ir.Graph, row: Platform) -> list[Fitted]:
    """Cut what an LSTMInt of H units gives into two halves and join them again.

    Its last state takes 4*H bytes and H are planned. The halves live when the LSTMInt is done, both at a time, and with
    four steps or more each is as large as a state: the packer puts the two states into their places, the largest
    that are free.
    """
    done = []
    for node in list(graph.graph):
        y = node.outputs[0] if node.outputs else None
        shape = [int(d or 1) for d in ir.shape(y) or ()]
        if node.op_type != LSTM.name or y is None or len(shape) != 3 or len(node.outputs) < 2:
            continue
        readers, half = list(y.uses()), shape[1] // 2
        if not readers or half < _STEPS:
            continue
        parts = [cut(graph, node, 1, start, end) for start, end in ((0, half), (half, shape[1]))]
        scale = float(ir.attr(node, "scale_o"))
        first = next(n for n in graph.graph if any(n is reader for reader, _ in readers))
        whole = joined(graph, node, parts, 1, scale, f"{y.name}_whole", before=first)
        for reader, index in readers:
            reader.replace_input_with(index, whole)
        what = "its steps are cut in two and joined again: the packer plans too small a place for its last state"
        done.append(Fitted(str(node.name), what, "exact"))
    return done
