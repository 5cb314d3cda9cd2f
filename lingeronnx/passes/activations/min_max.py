"""Min and Max with a constant are a Clip: Relu as ``Max(x, 0)``, Relu6 as ``Min(Max(x, 0), 6)``.

One activation and one constant of a single value, in any order. Constants that widen the tensor or
vary along it, NaN and integers stay.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def convert_min_max_to_clip(model: ir.Model) -> PassResult:
    """Rewrite Min and Max of `model` as Clip."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in ("Min", "Max") or node.domain:
            continue
        constants = [ir.const_value(v) for v in node.inputs]
        if len(constants) != 2 or (constants[0] is None) == (constants[1] is None):
            why.append(SkipReason(node, "it is not of one activation and one constant"))
            continue
        index = 0 if constants[0] is None else 1
        source, array = ir.require_input(node, index), constants[1 - index]
        rank = ir.get_shape(source)
        if array is None or array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
            why.append(SkipReason(node, "its constant is not one float number"))
            continue
        if rank is None or array.ndim > len(rank):
            why.append(SkipReason(node, "its constant widens the tensor"))
            continue
        base = node.outputs[0].name
        bound = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_bound"), array.reshape(())
        )
        inputs = [source, bound] if node.op_type == "Max" else [source, None, bound]
        new = ir.make_node("Clip", inputs, origin=node, output="", like=node.outputs[0])
        ir.replace_nodes(model, [node], [new])
        changed += 1
    return PassResult(changed, why)
