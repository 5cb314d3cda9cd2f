"""Convert Min and Max with a constant to Clip.

``Max(x, 0)`` is Relu, ``Min(Max(x, 0), 6)`` is Relu6. Applies to one activation and one scalar
constant, in any order. Constants that broadcast the tensor or vary along it, NaN, and integers are
not converted.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def convert_min_max_to_clip(model: ir.Model) -> PassResult:
    """Convert Min and Max of `model` with a constant to Clip, in place.

    Others are listed as skipped, each with the reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in ("Min", "Max") or node.domain:
            continue
        reason = _convert_to_clip(model, node)
        if reason is None:
            changes += 1
        else:
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _convert_to_clip(model: ir.Model, node: ir.Node) -> str | None:
    """Convert a Min or Max to Clip; return the reason if it cannot be converted, else None.

    The bound is a single float32 constant; Max is a lower bound, Min an upper one.
    """
    operand = ir.match_constant_operand(node)
    if operand is None:
        return "its operands are not one activation and one constant"
    source, array = operand.source, operand.array
    if array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
        return "its constant is not a single float32 number"
    shape = ir.get_shape(source)
    if shape is None or array.ndim > len(shape):
        return "its constant broadcasts the tensor"
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_bound")
    bound = ir.add_initializer(model, name, array.reshape(()))
    inputs = [source, bound] if node.op_type == "Max" else [source, None, bound]
    clip = ir.make_node("Clip", inputs, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [clip])
    return None
