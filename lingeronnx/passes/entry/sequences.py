"""Sequences that are taken apart again where they are made: exporters write `split` and `stack` so.

``SequenceAt(SplitToSequence(x, sizes), i)`` is an output of Split;
``SequenceAt(SequenceConstruct(...), i)`` is the i-th element;
``ConcatFromSequence(SequenceConstruct(...))`` is a Concat, of unsqueezed elements where it makes a
new axis. Constant sizes and indices only; `refuse` names what is left.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason


def replace_sequences(model: ir.Model) -> PassResult:
    """Rewrite the sequences of `model` that are known."""
    changed = 0
    for node in list(model.graph):
        if node.domain or node.graph is None:
            continue
        if node.op_type == "SplitToSequence":
            changed += _replace_split_to_sequence(model, node)
        elif node.op_type == "SequenceAt":
            changed += _replace_sequence_at(model, node)
        elif node.op_type == "ConcatFromSequence":
            changed += _replace_concat_from_sequence(model, node)
    return PassResult(
        changed,
        [
            _explain_unchanged(n)
            for n in model.graph
            if n.op_type in operators.SEQUENCE_OPS and not n.domain
        ],
    )


def _explain_unchanged(node: ir.Node) -> SkipReason:
    """Return why `node` is left."""
    if node.op_type == "SplitToSequence":
        return SkipReason(
            node, "its sizes are not known, or not every reader takes one element that is known"
        )
    return SkipReason(node, "it does not read a sequence made in place, at a place that is known")


def _constant_index(node: ir.Node) -> int | None:
    array = ir.const_value(node.inputs[1])
    return int(array.reshape(())) if array is not None and array.size == 1 else None


def _replace_split_to_sequence(model: ir.Model, node: ir.Node) -> int:
    """One Split in place of the sequence, where every reader takes one known element."""
    sizes = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    users = [use.node for use in node.outputs[0].uses()]
    axis, shape = ir.get_attr(node, "axis", 0), ir.get_shape(node.inputs[0])
    if (
        sizes is not None
        and sizes.ndim == 0
        and shape is not None
        and shape[axis] is not None
        and int(sizes) > 0
    ):
        whole, part = int(shape[axis] or 0), int(sizes)
        sizes = np.array(
            [part] * (whole // part) + ([whole % part] if whole % part else []), np.int64
        )
    if sizes is None or sizes.ndim != 1 or node.outputs[0].is_graph_output():
        return 0
    if not users or any(u.op_type != "SequenceAt" or _constant_index(u) is None for u in users):
        return 0
    newer = ir.get_opset(model) >= 13
    attributes = {"axis": axis} if newer else {"axis": axis, "split": [int(s) for s in sizes]}
    inputs: list[ir.Value | None] = [node.inputs[0]]
    base = str(node.outputs[0].name)
    if newer:
        inputs.append(
            ir.add_initializer(
                model, ir.unique_tensor_name(model, f"{base}_sizes"), sizes.astype(np.int64)
            )
        )
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


def _replace_sequence_at(model: ir.Model, node: ir.Node) -> int:
    maker, index = ir.producer(node.inputs[0]), _constant_index(node)
    if maker is None or maker.op_type != "SequenceConstruct" or index is None:
        return 0
    if not -len(maker.inputs) <= index < len(maker.inputs):
        return 0
    _replace_with_identity(model, node, ir.require_input(maker, index))
    _remove_if_unused(model, maker)
    return 1


def _replace_concat_from_sequence(model: ir.Model, node: ir.Node) -> int:
    maker = ir.producer(node.inputs[0])
    if maker is None or maker.op_type != "SequenceConstruct":
        return 0
    parts = [ir.require_input(maker, i) for i in range(len(maker.inputs))]
    axis, new = ir.get_attr(node, "axis"), []
    if ir.get_attr(node, "new_axis", 0):
        newer = ir.get_opset(model) >= 13
        where = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{node.name}_axis"), np.array([axis], np.int64)
        )
        for index, part in enumerate(parts):
            inputs, attributes = ([part, where], None) if newer else ([part], {"axes": [axis]})
            name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{index}")
            new.append(
                ir.make_node(
                    "Unsqueeze", inputs, attributes, origin=node, suffix=str(index), output=name
                )
            )
        parts = [row.outputs[0] for row in new]
    whole = ir.make_node(
        "Concat", parts, {"axis": axis}, origin=node, output="", like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [*new, whole])
    _remove_if_unused(model, maker)
    return 1


def _replace_with_identity(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Put an Identity of `value` in place of `node`: its output keeps name and readers."""
    same = ir.make_node("Identity", [value], origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [same])


def _remove_if_unused(model: ir.Model, node: ir.Node) -> None:
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        model.graph.remove(node, safe=True)
