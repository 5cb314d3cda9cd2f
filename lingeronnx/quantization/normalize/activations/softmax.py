"""Convert Softmax to one form: along a single axis, given as a nonnegative number.

Before opset 13 the axes from `axis` on are flattened; if more than one of them is larger than 1,
the Softmax gets a Reshape on both sides. Since opset 13, an axis that is not the last one is kept.
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason


def canonicalize_softmax(model: ir.Model) -> PassResult:
    """Let Softmax, LogSoftmax and Hardmax of `model` have one `axis` >= 0, in place.

    Before opset 13 an axis other than the last stands for all axes from it on; these are flattened
    by a Reshape before the node and restored by one after it. Skipped with a reason if they contain
    the batch or have unknown sizes. Nodes whose input has no known rank are left out silently.
    """
    is_single_axis = ir.get_opset(model) >= 13
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if not ir.is_standard_op(node, *float_ops.SOFTMAX_FAMILY_OPS):
            continue
        shape = ir.get_shape(node.inputs[0])
        if not shape:
            continue
        default_axis = -1 if is_single_axis else 1
        axis = ir.get_attr(node, "axis", default_axis) % len(shape)
        if is_single_axis or axis == len(shape) - 1:
            if ir.get_attr(node, "axis") != axis:
                ir.set_attr(node, "axis", axis)
                changes += 1
        elif None not in shape[1:] and axis > 0:
            _wrap_in_reshapes(model, node, axis)
            changes += 1
        else:
            reason = "it combines the batch with other axes, or its shape is not known"
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _wrap_in_reshapes(model: ir.Model, node: ir.Node, axis: int) -> None:
    """Flatten the axes from `axis` on before `node` and restore them after it.

    Replaces `node` by Reshape, the operator on axis `axis`, and a Reshape to the shape per sample.
    """
    base, value_type = node.outputs[0].name, node.outputs[0].type
    sample_dims = ir.get_sample_dims(node.inputs[0])
    targets = {"flat": [0] * axis + [-1], "shape": [0, *sample_dims]}
    flat_target, original_target = (
        ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_{key}"), np.array(target, np.int64)
        )
        for key, target in targets.items()
    )
    flat_size = int(np.prod(sample_dims[axis - 1 :]))
    dims = [*(node.inputs[0].shape or ())[:axis], flat_size]  # type: ignore[union-attr]
    flatten = ir.make_node(
        "Reshape",
        [node.inputs[0], flat_target],
        origin=node,
        suffix="flat",
        output=ir.unique_tensor_name(model, f"{base}_in"),
    )
    softmax = ir.make_node(
        node.op_type,
        [flatten.outputs[0]],
        {"axis": axis},
        origin=node,
        output=ir.unique_tensor_name(model, f"{base}_out"),
    )
    restore = ir.make_node(
        "Reshape",
        [softmax.outputs[0], original_target],
        origin=node,
        suffix="back",
        output="",
        like=node.outputs[0],
    )
    for value in (flatten.outputs[0], softmax.outputs[0]):
        value.type, value.shape = value_type, ir.Shape(dims)
    ir.replace_nodes(model, [node], [flatten, softmax, restore])
