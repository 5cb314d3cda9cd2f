"""Functions of numbers between layers by sums and products, where the platform has no table of them.

|x|        relu(x) + relu(-x): one of the summands is 0 everywhere, so the sum is exact
x^2        x*x;  x^3 by two products
max(a, b)  b + relu(a - b);  min(a, b) = a - relu(a - b)
"""

from __future__ import annotations

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir
from ..targets import Target
from ._base import RewriteBuilder, can_lower
from .constant_arithmetic import can_apply_batch_norm, emit_batch_norm, is_between_layers

__all__ = ["decompose_abs", "decompose_max_min"]


def decompose_abs(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write an Abs as a sum of two Relu."""
    if node.op_type != "Abs" or node.domain or not target.can_run(BATCH_NORM2D.name):
        return None
    source = ir.require_input(node)
    if not (can_apply_batch_norm(source) and is_between_layers(node)):
        return None
    make, shape = RewriteBuilder(model, node), list(source.shape or ())
    negative = emit_batch_norm(make, source, -np.ones(()), np.zeros(()))
    make("Add", [make("Relu", [part], shape, "side") for part in (source, negative)], shape, "sum")
    make.replace_node()
    return "relu(x) + relu(-x)", "exact"


def decompose_max_min(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write the larger or smaller of two tensors as a sum with a Relu of their difference."""
    if (
        node.op_type not in ("Max", "Min")
        or node.domain
        or len(node.inputs) != 2
        or not is_between_layers(node)
    ):
        return None
    a, b = (ir.require_input(node, i) for i in (0, 1))
    if (
        any(ir.const_value(v) is not None for v in (a, b))
        or len({ir.get_shape(v) for v in (a, b, node.outputs[0])}) != 1
    ):
        return None
    make, shape = RewriteBuilder(model, node), list(node.outputs[0].shape or ())
    over = make("Relu", [make("Sub", [a, b], shape, "difference")], shape, "over")
    make("Add", [b, over], shape, "larger") if node.op_type == "Max" else make(
        "Sub", [a, over], shape, "smaller"
    )
    if not all(can_lower(each, target) for each in make.nodes):
        make.discard()
        return None
    make.replace_node()
    return "a sum with the Relu of the difference", "two more roundings of half a step at most"
