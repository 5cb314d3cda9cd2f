"""Rewrite data movement along axis 0 of a sample for batches, with one more leading axis.

An integer graph is made for one sample, and may treat it as a matrix that it transposes, slices and
concatenates. In a batch the matrices of all samples are stacked along axis 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["separate_batch_axis"]


def separate_batch_axis(model: ir.Model) -> None:
    """Rewrite data movement along axis 0 so that it stays within samples, in place.

    Parameters
    ----------
    model
        Standard graph for one sample. Other nodes, nodes of constants and nodes with unknown
        dimensions are not changed.
    """
    reserved_names = ir.get_tensor_names(model)
    for node in list(model.graph):
        attributes = None if node.domain else _shift_axes(model, node)
        if attributes is None:
            continue
        data_inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        data = [value for value in data_inputs if value is not None]
        shapes = [ir.get_shape(value) for value in data]
        output_shape = ir.get_shape(node.outputs[0])
        is_static = all(_is_static(ir.get_shape(value)) for value in (*data, *node.outputs))
        if not is_static or any(value.is_initializer() for value in data):
            continue
        separated = [
            _make_reshape(model, value, (-1, *(shape or ())), reserved_names)
            for value, shape in zip(data, shapes, strict=True)
        ]
        inputs = [*(reshape.outputs[0] for reshape in separated), *node.inputs[len(data) :]]
        name = ir.reserve_name(f"{node.outputs[0].name}_apart", reserved_names)
        moved = ir.make_node(node.op_type, inputs, attributes, output=name, origin=node)
        stacked_shape = (-1, *(output_shape or ())[1:])
        stacked = _make_reshape(model, moved.outputs[0], stacked_shape, reserved_names)
        ir.replace_nodes(model, [node], [*separated, moved, stacked])


def _is_static(shape: Sequence[int | None] | None) -> bool:
    """Whether a shape has axes, and all its dimensions are known."""
    return bool(shape) and None not in (shape or ())


def _shift_axes(model: ir.Model, node: ir.Node) -> Mapping[str, Any] | None:
    """Return a node's attributes for inputs with one more leading axis, or None.

    None is for a node that does not rearrange axis 0. The axes of a Slice are a constant input,
    which is replaced.
    """
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    shape = ir.get_shape(node.inputs[0]) if node.inputs else None
    if not shape:
        return None
    rank = len(shape)
    if node.op_type == "Transpose":
        perm = attributes.get("perm") or list(range(rank))[::-1]
        if perm[0] == 0:
            return None
        return {**attributes, "perm": [0, *(axis + 1 for axis in perm)]}
    if node.op_type in ("Concat", "Gather"):
        axis = int(attributes.get("axis", 0)) % rank
        return None if axis else {**attributes, "axis": 1}
    if node.op_type != "Slice" or len(node.inputs) <= 3:
        return None
    axes = ir.const_value(node.inputs[3])
    if axes is None or 0 not in axes % rank:
        return None
    ir.set_constant_input(model, node, 3, axes % rank + 1, "apart")
    return attributes


def _make_reshape(
    model: ir.Model, value: ir.Value, shape: Sequence[int | None], reserved_names: set[str]
) -> ir.Node:
    """Return a new Reshape of `value` to the constant `shape`; it is not inserted.

    Adds the shape to the initializers of `model` and the new names to `reserved_names`, in place.
    """
    name = ir.reserve_name(f"{value.name}_seen", reserved_names)
    constant = ir.add_initializer(
        model, ir.reserve_name(f"{name}_sizes", reserved_names), np.array(shape, np.int64)
    )
    return ir.make_node("Reshape", [value, constant], output=name, name=name)
