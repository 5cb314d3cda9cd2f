"""Averages over the steps of a sequence as a convolution: ``ReduceMean(x [N, T, C], axis 1)`` is a sum of T channels.

Unsqueeze to [N, T, 1, C], a 1x1 Conv with the weight 1/T from T channels to one, and a Reshape. Needs a static T.
"""

from __future__ import annotations

import numpy as np

from .. import ir


def time_mean(model: ir.Graph) -> int:
    """Rewrite the averages over axis 1 of three in `model`; return how many."""
    changed = 0
    for node in list(model.graph):
        if node.op_type == "ReduceMean" and not node.domain and _over_time(node):
            _rewrite(model, node)
            changed += 1
    return changed


def _over_time(node: ir.Node) -> bool:
    shape, axes = ir.shape(node.inputs[0]), ir.attr(node, "axes")
    if axes is None and len(node.inputs) > 1:
        array = ir.const(node.inputs[1])
        axes = None if array is None else array.reshape(-1).tolist()
    return shape is not None and len(shape) == 3 and None not in shape[1:] and axes in ([1], [-2])


def _rewrite(model: ir.Graph, node: ir.Node) -> None:
    source, base = ir.source(node), ir.written_name(node)
    shape = ir.shape(source) or ()
    steps, width = int(shape[1] or 0), int(shape[2] or 0)
    batch = source.shape[0] if source.shape is not None else "N"
    old = (model.opset_imports.get("") or 13) < 13

    def constant(what: str, array: np.ndarray) -> ir.Value:
        return ir.add_initializer(model, ir.fresh_name(model, f"{base}@{what}"), array)

    def sized(made: ir.Node, sizes: list[int]) -> ir.Node:
        made.outputs[0].shape = ir.oir_shape([batch, *sizes])
        return made

    axes = [] if old else [constant("axis", np.array([2], np.int64))]
    attrs = {"axes": [2]} if old else {}
    wide = ir.make_node("Unsqueeze", [source, *axes], attrs, name=f"{node.name}@apart",
                        output=ir.fresh_name(model, f"{base}@apart"), like=node.outputs[0])  # fmt: skip
    sized(wide, [steps, 1, width])
    weight = constant("weight", np.full((1, steps, 1, 1), 1 / steps, np.float32))
    total = ir.make_node("Conv", [wide.outputs[0], weight], {"kernel_shape": [1, 1]}, name=str(node.name),
                         output=ir.fresh_name(model, f"{base}@sum"), like=node.outputs[0])  # fmt: skip
    sized(total, [1, 1, width])
    target = [0, 1, width] if ir.attr(node, "keepdims", 1) else [0, width]
    flat = ir.make_node("Reshape", [total.outputs[0], constant("shape", np.array(target, np.int64))],
                        name=f"{node.name}@flat", output="", like=node.outputs[0])  # fmt: skip
    ir.replace(model, [node], [wide, total, flat])
