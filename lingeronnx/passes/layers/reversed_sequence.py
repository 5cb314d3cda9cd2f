"""A recurrent layer over a reversed sequence is the same layer in the other direction.

    y = LSTM(x[:, ::-1])    z = y[:, ::-1]        becomes        z = LSTM_reverse(x)

Step t of y is step T-1-t of z. The states that come out are the same: both walk over the same steps
in the same order. Acts where y is read in reverse, or one step at a time; chips have no operator
that reverses. Runs behind `recurrent` and `layout`, on functions that are batch first, and leaves
those with lengths alone.
"""

from __future__ import annotations

import numpy as np

from ...formats.data_movement.selection import sliced_positions
from ...graph import ir
from ...ops.layers.recurrent import optional_input_indices
from .._pass import PassResult, SkipReason

__all__ = ["fold_sequence_reversal"]

_OPPOSITE_DIRECTION = {"forward": "reverse", "reverse": "forward"}


def fold_sequence_reversal(model: ir.Model) -> PassResult:
    """Turn the recurrent layers of `model` that read reversed sequences."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        turn = ir.producer(node.inputs[0]) if node.inputs else None
        if turn is None or not _is_recurrent_layer(node) or not _is_reversal(turn):
            continue
        y = node.outputs[0]
        readers = [(use.node, _single_step(use.node)) for use in y.uses()]
        backs = [reader for reader, _ in readers if _is_reversal(reader)]
        if y.is_graph_output() or any(
            step is None for reader, step in readers if reader not in backs
        ):
            why.append(
                SkipReason(
                    node,
                    "what it computes is read otherwise than in reverse, or one step at a time",
                )
            )
            continue
        if sum(reader.outputs[0].is_graph_output() for reader in backs) > 1:
            why.append(SkipReason(node, "what it computes is several outputs of the graph"))
            continue
        node.replace_input_with(0, ir.require_input(turn))
        ir.set_attr(
            node, "direction", _OPPOSITE_DIRECTION[ir.get_attr(node, "direction", "forward")]
        )
        y.name = ir.unique_tensor_name(
            model, f"{y.name}_backward"
        )  # its steps stand in another order now
        for reader, step in readers:
            if reader in backs:
                ir.bypass_node(model, reader, y)
            else:
                _set_sliced_step(model, reader, _sequence_length(node) - 1 - int(step or 0))
        changed += 1
    return PassResult(changed, why)


def _is_recurrent_layer(node: ir.Node) -> bool:
    return (
        node.domain == ir.FUNCTION_DOMAIN
        and ir.base_op_type(node) in ("LSTM", "GRU")
        and "lengths" not in optional_input_indices(node)
    )


def _sequence_length(node: ir.Node) -> int:
    """Return the number of steps of `node`'s input."""
    return int((ir.get_shape(node.inputs[0]) or (0, 0))[1] or 0)


def _sliced_steps(node: ir.Node) -> range | None:
    """Return the steps that the Slice `node` takes of [N, T, units], along axis 1 alone.

    None for anything else.
    """
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    return sliced_positions(node, 1) if shape is not None and len(shape) == 3 else None


def _is_reversal(node: ir.Node) -> bool:
    taken = _sliced_steps(node)
    return taken is not None and taken == range(_sequence_length(node))[::-1] and len(taken) > 1


def _single_step(node: ir.Node) -> int | None:
    taken = _sliced_steps(node)
    return taken[0] if taken is not None and len(taken) == 1 else None


def _set_sliced_step(model: ir.Model, node: ir.Node, step: int) -> None:
    """Let the Slice `node` take `step`."""
    node.attributes.clear()
    node.resize_inputs(4)
    for index, (what, value) in enumerate((("start", step), ("end", step + 1), ("axis", 1)), 1):
        name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{what}")
        node.replace_input_with(index, ir.add_initializer(model, name, np.array([value], np.int64)))
