"""Nodes that move what lies along axis 0 within a sample, written for a batch.

With one more axis in front.
An integer graph is made for one sample, and may see it as a matrix that it turns, cuts and joins.
In a batch the matrices of all samples lie one behind the other along axis 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["separate_batch_axis"]


def separate_batch_axis(model: ir.Model) -> None:
    """Let nodes of the standard graph `model`, made for one sample, move numbers within samples alone, in place.

    What is no such node, or has sizes that are not known, stays as it is.
    """
    taken = ir.get_tensor_names(model)
    for node in list(model.graph):
        within = None if node.domain else _shift_axes(model, node)
        data = [
            value
            for value in node.inputs[: None if node.op_type == "Concat" else 1]
            if value is not None
        ]
        sizes = [ir.get_shape(value) for value in (*data, *node.outputs)]
        if (
            within is None
            or any(value.is_initializer() for value in data)
            or any(None in (s or (None,)) for s in sizes)
        ):
            continue
        given = [
            _make_reshape(model, value, (-1, *(ir.get_shape(value) or ())), taken) for value in data
        ]
        inputs = [*(one.outputs[0] for one in given), *node.inputs[len(data) :]]
        name = ir.reserve_name(f"{node.outputs[0].name}_apart", taken)
        moved = ir.make_node(node.op_type, inputs, within, output=name, origin=node)
        back = _make_reshape(
            model, moved.outputs[0], (-1, *(ir.get_shape(node.outputs[0]) or ())[1:]), taken
        )
        ir.replace_nodes(model, [node], [*given, moved, back])


def _shift_axes(model: ir.Model, node: ir.Node) -> Mapping[str, Any] | None:
    """Return the node's attributes behind one more axis; None for one that leaves axis 0 as it is.

    The axes of a Slice are a constant, which is written anew.
    """
    told = {key: ir.get_attr(node, key) for key in node.attributes}
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    if not shape:
        return None
    if node.op_type == "Transpose":
        perm = told.get("perm") or list(range(len(shape)))[::-1]
        return None if perm[0] == 0 else {**told, "perm": [0, *(axis + 1 for axis in perm)]}
    if node.op_type in ("Concat", "Gather"):
        axis = int(told.get("axis", 0)) % len(shape)
        return None if axis else {**told, "axis": 1}
    axes = (
        ir.const_value(node.inputs[3]) if node.op_type == "Slice" and len(node.inputs) > 3 else None
    )
    if axes is None or 0 not in axes % len(shape):
        return None
    ir.set_constant_input(model, node, 3, axes % len(shape) + 1, "apart")
    return told


def _make_reshape(
    model: ir.Model, value: ir.Value, sizes: Sequence[int | None], taken: set[str]
) -> ir.Node:
    """Return the node that gives `value` these sizes; taken : names that are in use."""
    name = ir.reserve_name(f"{value.name}_seen", taken)
    held = ir.add_initializer(
        model, ir.reserve_name(f"{name}_sizes", taken), np.array(sizes, np.int64)
    )
    return ir.make_node("Reshape", [value, held], output=name, name=name)
