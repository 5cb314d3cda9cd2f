"""Make the target of Reshape a constant, and Flatten's kin readable: exporters compute `x.size(0)` at run time.

A Reshape whose traced result keeps axis 0 and has static other dimensions becomes ``Reshape(x, [0, ...])``; the chain
of Shape, Gather and Concat that computed the target dies with it.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir
from .._pass import Answer, Reason


def is_computed(node: ir.Node) -> bool:
    """Whether `node` is a Reshape whose target is computed at run time."""
    return node.op_type == "Reshape" and not node.domain and ir.const(node.inputs[1]) is None


def constant_reshape(model: ir.Graph) -> Answer:
    """Make Reshape targets of `model` constant where the shapes allow it."""
    changed, why = 0, list[Reason]()
    for node in model.graph:
        if not is_computed(node):
            continue
        source, result = ir.shape(node.inputs[0]), ir.shape(node.outputs[0])
        if source is None or result is None or not source or not result:
            why.append(Reason(node, "it makes or takes a tensor without axes"))
            continue
        inner, outer = ([d for d in s[1:] if d is not None] for s in (source, result))
        if len(inner) + 1 < len(source) or len(outer) + 1 < len(result):
            why.append(Reason(node, "an axis other than the first is not known"))
            continue
        if source[0] is not None and result[0] is not None:
            target = [result[0], *outer]
        else:
            target = [0 if math.prod(inner) == math.prod(outer) else -1, *outer]
        node.attributes.pop("allowzero", None)  # the 0 of the target means "as before"
        name = ir.fresh_name(model, f"{node.outputs[0].name}_shape")
        node.replace_input_with(1, ir.add_initializer(model, name, np.array(target, np.int64)))
        changed += 1
    if changed:
        ir.remove_unused(model)
    return Answer(changed, why)
