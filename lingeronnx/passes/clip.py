"""Recognise what Clip means: Relu where only the lower bound 0 acts, otherwise constant bounds in one form.

A Clip with bounds (0, nothing) becomes Relu. Bounds that are attributes (opset 6) stay attributes; `ops.activation`
reads both forms. A Relu followed by Clip(0, b), or a Min/Max with a constant, is a Clip as well.
"""

from __future__ import annotations

import math

import numpy as np

from .. import ir
from ..ops.activation import bounds


def clip(model: ir.Graph) -> int:
    """Simplify the Clip nodes of `model`; return the number of changes."""
    changed = 0
    for node in list(model.graph):
        if node.op_type != "Clip" or node.domain:
            continue
        limits, kind = bounds(node), ir.source(node).dtype
        if limits is None or (kind is not None and not kind.is_floating_point()):
            continue
        before = ir.producer(node.inputs[0])
        if before is not None and before.op_type == "Relu" and limits[0] <= 0 and _only(before, node):
            ir.remove(model, before, ir.source(before))
            limits = (0.0, limits[1])
            _set_low(model, node)
            changed += 1
        if limits[0] == 0 and limits[1] == math.inf:
            new = ir.make_node("Relu", [node.inputs[0]], name=str(node.name), output="", like=node.outputs[0])
            ir.replace(model, [node], [new])
            changed += 1
    return changed


def _only(before: ir.Node, node: ir.Node) -> bool:
    return ir.sole_consumer(before.outputs[0]) is node and before.inputs[0] is not None


def _set_low(model: ir.Graph, node: ir.Node) -> None:
    """Make 0 the lower bound of `node`, in the form it has."""
    if len(node.inputs) > 1:
        name = ir.fresh_name(model, f"{node.outputs[0].name}@low")
        node.replace_input_with(1, ir.add_initializer(model, name, np.array(0, np.float32)))
    else:
        ir.set_attr(node, "min", 0.0)
