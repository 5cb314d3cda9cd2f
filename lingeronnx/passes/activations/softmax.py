"""One meaning of Softmax: along the last axis, written out as a number from 0 on.

Before opset 13 the axes from `axis` on are taken together; where more than one of them is larger
than 1 the Softmax gets a Reshape on either side. An axis that is not the last one stays (opset 13
and newer).
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason


def canonicalize_softmax(model: ir.Model) -> PassResult:
    """Write the Softmax nodes of `model` in one form."""
    newer = ir.get_opset(model) >= 13
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        shape = (
            ir.get_shape(node.inputs[0])
            if node.op_type in operators.SOFTMAX_FAMILY_OPS and not node.domain
            else None
        )
        if not shape:
            continue
        axis_attribute = ir.get_attr(node, "axis")
        axis = (axis_attribute if axis_attribute is not None else -1 if newer else 1) % max(
            len(shape), 1
        )
        last = len(shape) - 1
        if newer or axis == last:
            if axis_attribute != axis:
                ir.set_attr(node, "axis", axis)
                changed += 1
        elif None not in shape[1:] and axis > 0:
            changed += _wrap_in_reshapes(model, node, shape, axis)
        else:
            why.append(
                SkipReason(
                    node, "it takes the batch and other axes together, or sizes are not known"
                )
            )
    return PassResult(changed, why)


def _wrap_in_reshapes(
    model: ir.Model, node: ir.Node, shape: tuple[int | None, ...], axis: int
) -> int:
    base, kind = node.outputs[0].name, node.outputs[0].type
    sizes = {"flat": [0] * axis + [-1], "shape": [0, *(int(d or 1) for d in shape[1:])]}
    flat, back = (
        ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_{key}"), np.array(dims, np.int64)
        )
        for key, dims in sizes.items()
    )
    dims = [*(node.inputs[0].shape or ())[:axis], int(np.prod([int(d or 1) for d in shape[axis:]]))]  # type: ignore[union-attr]
    before = ir.make_node(
        "Reshape",
        [node.inputs[0], flat],
        origin=node,
        suffix="flat",
        output=ir.unique_tensor_name(model, f"{base}_in"),
    )
    inner = ir.make_node(
        node.op_type,
        [before.outputs[0]],
        {"axis": axis},
        origin=node,
        output=ir.unique_tensor_name(model, f"{base}_out"),
    )
    after = ir.make_node(
        "Reshape",
        [inner.outputs[0], back],
        origin=node,
        suffix="back",
        output="",
        like=node.outputs[0],
    )
    for value in (before.outputs[0], inner.outputs[0]):
        value.type, value.shape = kind, ir.make_shape(dims)
    ir.replace_nodes(model, [node], [before, inner, after])
    return 1
