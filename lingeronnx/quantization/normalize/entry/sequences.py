"""Replace tensor sequences that are created and taken apart in place, as exporters write them.

``SequenceAt(SplitToSequence(x, sizes), i)`` is an output of Split;
``SequenceAt(SequenceConstruct(...), i)`` is the i-th element;
``ConcatFromSequence(SequenceConstruct(...))`` is a Concat, of unsqueezed elements if it creates a
new axis. Sizes and indices must be constant; `reject_unsupported` reports the other sequences.
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason


def replace_sequences(model: ir.Model) -> PassResult:
    """Replace tensor sequences of `model` that are created and read in the main graph, in place.

    A sequence that is split or constructed there becomes a Split, the element at a constant index,
    or a Concat. Sequence operators that remain are skipped with a reason.
    """
    rewrites = {
        "SplitToSequence": _replace_split_to_sequence,
        "SequenceAt": _replace_sequence_at,
        "ConcatFromSequence": _replace_concat_from_sequence,
    }
    changes = 0
    for node in list(model.graph):
        if node.op_type in rewrites and not node.domain and node.graph is not None:
            changes += rewrites[node.op_type](model, node)
    skipped = [
        _explain_unchanged(node)
        for node in model.graph
        if node.op_type in float_ops.SEQUENCE_OPS and not node.domain
    ]
    return PassResult(changes, skipped)


def _explain_unchanged(node: ir.Node) -> SkipReason:
    """Return the reason why `node`, a sequence operator that remains, was not replaced."""
    if node.op_type == "SplitToSequence":
        return SkipReason(
            node, "its sizes are not known, or not every consumer selects one constant element"
        )
    return SkipReason(node, "it does not read a constant element of a sequence created in place")


def _constant_index(node: ir.Node) -> int | None:
    """Return the constant index of a SequenceAt, or None if it is computed."""
    array = ir.const_value(node.inputs[1])
    return int(array.reshape(())) if array is not None and array.size == 1 else None


def _replace_split_to_sequence(model: ir.Model, node: ir.Node) -> int:
    """Replace `node`, a SplitToSequence, by a Split.

    Its consumers become Identities of the outputs. Returns 1; 0, without a change, if a size is
    unknown, if the sequence is a graph output, or if a consumer is no SequenceAt with a constant
    index.
    """
    sizes = _get_split_sizes(node)
    if sizes is None or node.outputs[0].is_graph_output():
        return 0
    users = [use.node for use in node.outputs[0].uses()]
    if not users or not all(_selects_constant_element(user) for user in users):
        return 0
    inputs: list[ir.Value | None] = [node.inputs[0]]
    attributes = {"axis": ir.get_attr(node, "axis", 0)}
    base = str(node.outputs[0].name)
    if ir.get_opset(model) >= 13:
        name = ir.unique_tensor_name(model, f"{base}_sizes")
        inputs.append(ir.add_initializer(model, name, np.array(sizes, np.int64)))
    else:
        attributes["split"] = sizes
    results = [
        ir.Value(name=ir.unique_tensor_name(model, f"{base}_{i}")) for i in range(len(sizes))
    ]
    split = ir.node("Split", inputs, attributes, outputs=results, name=node.name)
    ir.mark_origin(split, node)
    model.graph.insert_before(node, split)
    for user in users:
        _replace_with_identity(model, user, results[_constant_index(user) or 0])
    model.graph.remove(node, safe=True)
    return 1


def _selects_constant_element(node: ir.Node) -> bool:
    """Whether `node` is a SequenceAt with a constant index."""
    return node.op_type == "SequenceAt" and _constant_index(node) is not None


def _get_split_sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes of the elements of a SplitToSequence along its axis.

    A vector in input 1 has the sizes; a scalar is the size of all but the last, which may be
    shorter. None if input 1 is absent or not constant, or if the axis has an unknown size.
    """
    array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    if array is None or array.ndim > 1:
        return None
    if array.ndim == 1:
        return [int(size) for size in array]
    shape, chunk = ir.get_shape(node.inputs[0]), int(array)
    total = None if shape is None else shape[ir.get_attr(node, "axis", 0)]
    if total is None or chunk <= 0:
        return None
    remainder = total % chunk
    return [chunk] * (total // chunk) + ([remainder] if remainder else [])


def _replace_sequence_at(model: ir.Model, node: ir.Node) -> int:
    """Replace `node`, a SequenceAt of a SequenceConstruct with a constant index, by the element.

    Returns 1, or 0 without a change if the sequence has another producer or the index is computed
    or out of range. A construct that nothing reads any more is removed.
    """
    construct, index = ir.producer(node.inputs[0]), _constant_index(node)
    if construct is None or construct.op_type != "SequenceConstruct" or index is None:
        return 0
    if not -len(construct.inputs) <= index < len(construct.inputs):
        return 0
    _replace_with_identity(model, node, ir.require_input(construct, index))
    _remove_if_unused(model, construct)
    return 1


def _replace_concat_from_sequence(model: ir.Model, node: ir.Node) -> int:
    """Replace `node`, a ConcatFromSequence of a SequenceConstruct, by a Concat of the elements.

    With `new_axis` the elements are unsqueezed first. Returns 1, or 0 without a change if another
    node makes the sequence. A construct that nothing reads any more is removed.
    """
    construct = ir.producer(node.inputs[0])
    if construct is None or construct.op_type != "SequenceConstruct":
        return 0
    elements = [ir.require_input(construct, i) for i in range(len(construct.inputs))]
    axis = ir.get_attr(node, "axis")
    unsqueezes: list[ir.Node] = []
    if ir.get_attr(node, "new_axis", 0):
        has_axes_input = ir.get_opset(model) >= 13
        axes_value = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{node.name}_axis"), np.array([axis], np.int64)
        )
        for index, element in enumerate(elements):
            unsqueeze = ir.make_node(
                "Unsqueeze",
                [element, axes_value] if has_axes_input else [element],
                None if has_axes_input else {"axes": [axis]},
                origin=node,
                suffix=str(index),
                output=ir.unique_tensor_name(model, f"{node.outputs[0].name}_{index}"),
            )
            unsqueezes.append(unsqueeze)
        elements = [unsqueeze.outputs[0] for unsqueeze in unsqueezes]
    concat = ir.make_node(
        "Concat", elements, {"axis": axis}, origin=node, output="", like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [*unsqueezes, concat])
    _remove_if_unused(model, construct)
    return 1


def _replace_with_identity(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Replace `node` by an Identity of `value`, which keeps the output name and consumers."""
    identity = ir.make_node("Identity", [value], origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [identity])


def _remove_if_unused(model: ir.Model, node: ir.Node) -> None:
    """Remove `node` if its first output has no consumers and is no graph output."""
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        model.graph.remove(node, safe=True)
