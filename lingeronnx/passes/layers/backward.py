"""A recurrent layer over a reversed sequence is the same layer in the other direction.

    y = LSTM(x[:, ::-1])    z = y[:, ::-1]        becomes        z = LSTM_reverse(x)

Step t of y is step T-1-t of z. The states that come out are the same: both walk over the same steps in the same order.
Acts where y is read in reverse, or one step at a time; chips have no operator that reverses. Runs behind `recurrent`
and `layout`, on functions that are batch first, and leaves those with lengths alone.
"""

from __future__ import annotations

import numpy as np

from ...formats.moves.select import taken_along
from ...graph import ir
from ...ops.layers.recurrent import given
from .._pass import Answer, Reason

__all__ = ["backward"]

_OTHER = {"forward": "reverse", "reverse": "forward"}


def backward(model: ir.Graph) -> Answer:
    """Turn the recurrent layers of `model` that read reversed sequences."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        turn = ir.producer(node.inputs[0]) if node.inputs else None
        if turn is None or not _is_layer(node) or not _reverses(turn):
            continue
        y = node.outputs[0]
        readers = [(use.node, _step(use.node)) for use in y.uses()]
        backs = [reader for reader, _ in readers if _reverses(reader)]
        if y.is_graph_output() or any(step is None for reader, step in readers if reader not in backs):
            why.append(Reason(node, "what it computes is read otherwise than in reverse, or one step at a time"))
            continue
        if sum(reader.outputs[0].is_graph_output() for reader in backs) > 1:
            why.append(Reason(node, "what it computes is several outputs of the graph"))
            continue
        node.replace_input_with(0, ir.source(turn))
        ir.set_attr(node, "direction", _OTHER[ir.attr(node, "direction", "forward")])
        y.name = ir.fresh_name(model, f"{y.name}_backward")  # its steps stand in another order now
        for reader, step in readers:
            if reader in backs:
                ir.remove(model, reader, y)
            else:
                _take(model, reader, _length(node) - 1 - int(step or 0))
        changed += 1
    return Answer(changed, why)


def _is_layer(node: ir.Node) -> bool:
    return node.domain == ir.DOMAIN and ir.kind(node) in ("LSTM", "GRU") and "lengths" not in given(node)


def _length(node: ir.Node) -> int:
    """Return the number of steps of `node`'s input."""
    return int((ir.shape(node.inputs[0]) or (0, 0))[1] or 0)


def _range(node: ir.Node) -> range | None:
    """Return the steps that the Slice `node` takes of [N, T, units], along axis 1 alone; None for anything else."""
    shape = ir.shape(node.inputs[0]) if node.inputs else None
    return taken_along(node, 1) if shape is not None and len(shape) == 3 else None


def _reverses(node: ir.Node) -> bool:
    taken = _range(node)
    return taken is not None and taken == range(_length(node))[::-1] and len(taken) > 1


def _step(node: ir.Node) -> int | None:
    taken = _range(node)
    return taken[0] if taken is not None and len(taken) == 1 else None


def _take(model: ir.Graph, node: ir.Node, step: int) -> None:
    """Let the Slice `node` take `step`."""
    node.attributes.clear()
    node.resize_inputs(4)
    for index, (what, value) in enumerate((("start", step), ("end", step + 1), ("axis", 1)), 1):
        name = ir.fresh_name(model, f"{node.outputs[0].name}_{what}")
        node.replace_input_with(index, ir.add_initializer(model, name, np.array([value], np.int64)))
