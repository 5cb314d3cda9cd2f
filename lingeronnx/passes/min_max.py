"""Min and Max with a constant are a Clip: Relu as ``Max(x, 0)``, Relu6 as ``Min(Max(x, 0), 6)``.

One activation and one constant of a single value, in any order. Constants that widen the tensor or vary along it, NaN
and integers stay.
"""

from __future__ import annotations

import numpy as np

from .. import ir


def min_max(model: ir.Graph) -> int:
    """Rewrite Min and Max of `model` as Clip; return how many."""
    changed = 0
    for node in list(model.graph):
        if node.op_type not in ("Min", "Max") or node.domain or len(node.inputs) != 2:
            continue
        constants = [ir.const(v) for v in node.inputs]
        if (constants[0] is None) == (constants[1] is None):
            continue
        index = 0 if constants[0] is None else 1
        source, array = ir.source(node, index), constants[1 - index]
        rank = ir.shape(source)
        if array is None or array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
            continue
        if rank is None or array.ndim > len(rank):
            continue
        base = node.outputs[0].name
        bound = ir.add_initializer(model, ir.fresh_name(model, f"{base}_bound"), array.reshape(()))
        inputs = [source, bound] if node.op_type == "Max" else [source, None, bound]
        new = ir.make_node("Clip", inputs, of=node, output="", like=node.outputs[0])
        ir.replace(model, [node], [new])
        changed += 1
    return changed
