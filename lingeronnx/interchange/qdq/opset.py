"""Upgrade standard nodes to a newer opset.

Integer graphs have opset 12, and may have axes as attributes in any opset. Handles the operators
that changed between opsets 7 and 21 and may occur in these graphs; other nodes are unchanged.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...ir import float_ops, ir
from ...ir.builder import convert_attributes_to_inputs

__all__ = ["upgrade_nodes"]


def upgrade_nodes(
    model: ir.Model, before: int, after: int, already_current: Collection[ir.Node]
) -> None:
    """Upgrade the standard nodes of a model in place.

    Parameters
    ----------
    model
        Model to upgrade.
    before, after
        Opset of its nodes, and the target opset.
    already_current
        Nodes with the semantics of `after`, although some may have attributes that are inputs in
        `after`.
    """
    for node in list(model.graph):
        if node.domain:
            continue
        _upgrade_attributes(model, node, after)
        is_old_softmax = before < 13 and node.op_type in float_ops.SOFTMAX_FAMILY_OPS
        if is_old_softmax and node not in already_current:
            _upgrade_row_op(model, node)


def _upgrade_attributes(model: ir.Model, node: ir.Node, opset: int) -> None:
    """Turn attributes of `node` that are inputs in `opset` into constant int64 inputs, in place.

    Does nothing if the operator has none, or if none of them is set.
    """
    names, first_opset = float_ops.ATTRIBUTES_TO_INPUTS.get(node.op_type, ((), 0))
    if first_opset > opset or not any(name in node.attributes for name in names):
        return
    arrays: list[np.ndarray | None] = []
    for name in names:
        value = ir.get_attr(node, name)
        arrays.append(None if value is None else np.asarray(value, np.int64).reshape(-1))
    convert_attributes_to_inputs(model, node, arrays, names)


def _upgrade_row_op(model: ir.Model, node: ir.Node) -> None:
    """Upgrade a softmax of an opset before 13, whose rows are all axes from `axis` (1) on.

    In place. If only the last axis is a row, `axis` becomes -1; else the input is also flattened
    and the output reshaped to the shape of the input.
    """
    axis, shape = int(ir.get_attr(node, "axis", 1)), ir.get_shape(node.inputs[0])
    if axis == -1 or (shape is not None and axis % len(shape) == len(shape) - 1):
        ir.set_attr(node, "axis", -1)
        return
    x, name = ir.require_input(node), str(node.outputs[0].name)
    shape_node = ir.make_node(
        "Shape",
        [x],
        output=ir.unique_tensor_name(model, f"{name}_shape"),
        origin=node,
        suffix="shape",
    )
    flat = ir.make_node(
        "Flatten",
        [x],
        {"axis": axis},
        output=ir.unique_tensor_name(model, f"{name}_rows"),
        origin=node,
        suffix="rows",
    )
    row = ir.make_node(
        node.op_type,
        [flat.outputs[0]],
        {"axis": -1},
        output=ir.unique_tensor_name(model, f"{name}_shares"),
        origin=node,
        suffix="shares",
    )
    reshape_inputs = [row.outputs[0], shape_node.outputs[0]]
    reshaped = ir.make_node("Reshape", reshape_inputs, output="", origin=node, like=node.outputs[0])
    ir.replace_nodes(model, [node], [shape_node, flat, row, reshaped])
