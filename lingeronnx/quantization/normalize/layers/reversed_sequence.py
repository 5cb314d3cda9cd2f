"""Replace a recurrent layer on a reversed sequence by the layer in the other direction.

    y = LSTM(x[:, ::-1])    z = y[:, ::-1]        becomes        z = LSTM_reverse(x)

Step t of y is step T-1-t of z. The final states are equal: both visit the same steps in the same
order. Applies if y is reversed by all consumers, or read one step at a time; platforms have no
operator that reverses. Runs after `recurrent` and `cancel_transposes`, on functions with the batch
on axis 0, and not on those with lengths.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....operators.recurrent.lowering import optional_input_indices
from ....operators.selection.integer_op import sliced_positions
from .._pass import PassResult, SkipReason

__all__ = ["fold_sequence_reversal"]

_OPPOSITE_DIRECTION = {"forward": "reverse", "reverse": "forward"}


def fold_sequence_reversal(model: ir.Model) -> PassResult:
    """Reverse the direction of recurrent layers of `model` that read a reversed sequence, in place.

    The Slice that reverses the input is bypassed, and those that reverse the output as well; a
    Slice of one step selects the mirrored one. Skipped with a reason if the output is used
    otherwise.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        reversal = ir.producer(node.inputs[0]) if node.inputs else None
        if reversal is None or not _is_recurrent_layer(node) or not _is_reversal(reversal):
            continue
        reason = _explain_unchanged(node.outputs[0])
        if reason is not None:
            skipped.append(SkipReason(node, reason))
            continue
        _reverse_direction(model, node, ir.require_input(reversal))
        changes += 1
    return PassResult(changes, skipped)


def _explain_unchanged(y: ir.Value) -> str | None:
    """Explain why the direction of the recurrent layer with output `y` cannot be reversed, or None.

    Each consumer must reverse the sequence or select a single step; `y` must not be a graph output,
    and at most one of the reversed sequences may be one.
    """
    consumers = [use.node for use in y.uses()]
    reversals = [consumer for consumer in consumers if _is_reversal(consumer)]
    others = [consumer for consumer in consumers if consumer not in reversals]
    if y.is_graph_output() or any(_single_step(consumer) is None for consumer in others):
        return "its output is used in other ways than reversed, or one step at a time"
    if sum(reversal.outputs[0].is_graph_output() for reversal in reversals) > 1:
        return "its output is several outputs of the graph"
    return None


def _reverse_direction(model: ir.Model, node: ir.Node, source: ir.Value) -> None:
    """Let the recurrent layer `node` read `source`, not reversed, in the other direction.

    `source` is its input before the reversal. Consumers that reverse its output are bypassed; those
    that select a step select the mirrored one. The output gets a new name.
    """
    y = node.outputs[0]
    steps = [(use.node, _single_step(use.node)) for use in y.uses()]
    reversals = [consumer for consumer, _ in steps if _is_reversal(consumer)]
    node.replace_input_with(0, source)
    direction = ir.get_attr(node, "direction", "forward")
    ir.set_attr(node, "direction", _OPPOSITE_DIRECTION[direction])
    # a new name, because its steps are in another order
    y.name = ir.unique_tensor_name(model, f"{y.name}_backward")
    for consumer, step in steps:
        if consumer in reversals:
            ir.bypass_node(model, consumer, y)
        else:
            _set_sliced_step(model, consumer, _sequence_length(node) - 1 - int(step or 0))


def _is_recurrent_layer(node: ir.Node) -> bool:
    """Whether `node` calls the model-local function of an LSTM or GRU without sequence lengths."""
    if node.domain != ir.FUNCTION_DOMAIN or ir.base_op_type(node) not in ("LSTM", "GRU"):
        return False
    return "lengths" not in optional_input_indices(node)


def _sequence_length(node: ir.Node) -> int:
    """Return the number of steps T of input 0 [N, T, I] of `node`; 0 if it is unknown."""
    return int((ir.get_shape(node.inputs[0]) or (0, 0))[1] or 0)


def _sliced_steps(node: ir.Node) -> range | None:
    """Return the steps of [N, T, units] that a Slice along axis 1 selects.

    None for other nodes and ranks, and for other slices.
    """
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    return sliced_positions(node, 1) if shape is not None and len(shape) == 3 else None


def _is_reversal(node: ir.Node) -> bool:
    """Whether `node` is a Slice that reverses axis 1 of [N, T, units], of at least two steps."""
    steps = _sliced_steps(node)
    if steps is None or len(steps) <= 1:
        return False
    return steps == range(_sequence_length(node))[::-1]


def _single_step(node: ir.Node) -> int | None:
    """Return the step of [N, T, units] that `node` selects, if it is a Slice of one; else None."""
    steps = _sliced_steps(node)
    return steps[0] if steps is not None and len(steps) == 1 else None


def _set_sliced_step(model: ir.Model, node: ir.Node, step: int) -> None:
    """Let the Slice `node` select positions `step` to `step` + 1 (exclusive) of axis 1.

    Works in place, and clears the node's attributes.
    """
    node.attributes.clear()
    node.resize_inputs(4)
    bounds = (("start", step), ("end", step + 1), ("axis", 1))
    for index, (key, bound) in enumerate(bounds, 1):
        name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{key}")
        node.replace_input_with(index, ir.add_initializer(model, name, np.array([bound], np.int64)))
