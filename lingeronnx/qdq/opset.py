"""Standard nodes of one opset, or of none in particular, written as a newer opset has them.

Integer graphs are of opset 12 and may carry axes as attributes in any. What changed its form
between 7 and 21 and may stand in them is here; operators that mean the same in both are left.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..graph import ir, operators
from ..graph.builder import convert_attributes_to_inputs

__all__ = ["upgrade_nodes"]


def upgrade_nodes(
    model: ir.Model, before: int, after: int, already_current: Collection[ir.Node]
) -> None:
    """Write the standard nodes of `model` as opset `after` has them, in place.

    What they were of opset `before`.
    already_current : nodes that mean already what `after` says; they may have attributes where that
    has inputs.
    """
    for node in list(model.graph):
        if node.domain:
            continue
        names, since = operators.ATTRIBUTES_TO_INPUTS.get(node.op_type, ((), 0))
        if since <= after and any(name in node.attributes for name in names):
            values = [ir.get_attr(node, name) for name in names]
            arrays = [
                None if value is None else np.asarray(value, np.int64).reshape(-1)
                for value in values
            ]
            convert_attributes_to_inputs(model, node, arrays, names)
        if (
            node.op_type in operators.SOFTMAX_FAMILY_OPS
            and before < 13
            and node not in already_current
        ):
            _upgrade_row_op(model, node)


def _upgrade_row_op(model: ir.Model, node: ir.Node) -> None:
    """Rows of all axes from `axis` on, 1 by default: flattened, and brought back to the shape."""
    axis, shape = int(ir.get_attr(node, "axis", 1)), ir.get_shape(node.inputs[0])
    if axis == -1 or (shape is not None and axis % len(shape) == len(shape) - 1):
        ir.set_attr(node, "axis", -1)
        return
    x, name = ir.require_input(node), str(node.outputs[0].name)
    size = ir.make_node(
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
    back = ir.make_node(
        "Reshape", [row.outputs[0], size.outputs[0]], output="", origin=node, like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [size, flat, row, back])
