"""Decompose elementwise functions between layers, if the platform has no table for them.

|x|        relu(x) + relu(-x): one of the summands is always 0, so the sum is exact
max(a, b)  b + relu(a - b);  min(a, b) = a - relu(a - b)
"""

from __future__ import annotations

import numpy as np

from ...ir import ir
from ...operators.integer_ops import BATCH_NORM2D
from ...targets import Target
from ._base import RewriteBuilder, is_standard_op
from .constant_arithmetic import can_apply_batch_norm, emit_batch_norm, is_between_layers

__all__ = ["decompose_abs", "decompose_max_min"]


def decompose_abs(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace an Abs between layers by relu(x) + relu(-x), if the target has BatchNorm2dInt.

    Returns the description and the cost of the change. None, without a change, for other nodes and
    for an input of rank 1, of unknown sizes, or with a folded batch.
    """
    if not is_standard_op(node, "Abs") or not target.can_run(BATCH_NORM2D.name):
        return None
    source = ir.require_input(node)
    if not (can_apply_batch_norm(source) and is_between_layers(node)):
        return None
    builder, shape = RewriteBuilder(model, node), list(source.shape or ())
    negative = emit_batch_norm(builder, source, -np.ones(()), np.zeros(()))
    parts = [builder("Relu", [part], shape, "side") for part in (source, negative)]
    builder("Add", parts, shape, "sum")
    builder.replace_node()
    return "relu(x) + relu(-x)", "exact"


def decompose_max_min(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace Max(a, b) by b + relu(a - b), or Min(a, b) by a - relu(a - b), of computed tensors.

    Only for two operands and a result of equal shape, between layers, and if the target supports
    the nodes. Returns the description and the cost of the change, or None without a change.
    """
    if not is_standard_op(node, "Max", "Min") or len(node.inputs) != 2:
        return None
    a, b = ir.require_input(node, 0), ir.require_input(node, 1)
    if any(ir.const_value(value) is not None for value in (a, b)):
        return None
    shapes = set(map(ir.get_shape, (a, b, node.outputs[0])))
    if len(shapes) != 1 or not is_between_layers(node):
        return None
    builder, shape = RewriteBuilder(model, node), list(node.outputs[0].shape or ())
    difference = builder("Sub", [a, b], shape, "difference")
    excess = builder("Relu", [difference], shape, "over")
    if node.op_type == "Max":
        builder("Add", [b, excess], shape, "larger")
    else:
        builder("Sub", [a, excess], shape, "smaller")
    if not builder.replace_node_if_supported(target):
        return None
    return "a sum with the Relu of the difference", "two more roundings of half a step at most"
