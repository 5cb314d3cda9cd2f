"""Recognize what computes the angle of a Sin or Cos from inputs of the model.

Examples are rotary positions and the embedding of a time step: a position times a frequency, up to
hundreds of radians, of which 256 steps hold few periods. No platform has Sin or Cos, so the angle
is computed in float without a further border between integers and float.
"""

from __future__ import annotations

from ..ir import float_ops, ir

__all__ = ["ANGLE_REASON", "is_angle_source"]

#: Why a product or a sum stays in float.
ANGLE_REASON = "it computes the angle of a Sin or Cos from inputs of the model, many periods"

_PERIODIC_OPS = {"Sin", "Cos"}
_MOVES = float_ops.DATA_MOVEMENT_OPS | {"Cast", "Concat"}
_LAYER_OPS = (float_ops.LAYER_OPS - float_ops.RECURRENT_OPS) | {"Linear"}
_ARITHMETIC_OPS = float_ops.AFFINE_OPS | _LAYER_OPS


def is_angle_source(node: ir.Node) -> bool:
    """Whether only Sin and Cos read the results of `node`, which it computes from model inputs.

    Copies, and arithmetic with at most one layer, may lie on both sides.
    """
    if ir.base_op_type(node) not in _ARITHMETIC_OPS:
        return False
    if not _feeds_only_periodic_ops(node.outputs[0]):
        return False
    layers = _count_layers(node)
    return layers is not None and layers <= 1


def _feeds_only_periodic_ops(value: ir.Value) -> bool:
    """Whether all consumers of `value`, of which there must be some, lead to Sin and Cos only."""
    uses = list(value.uses())
    if not uses or value.is_graph_output():
        return False
    for use in uses:
        op_type = ir.base_op_type(use.node)
        if op_type in _PERIODIC_OPS:
            continue
        if op_type not in _MOVES | _ARITHMETIC_OPS:
            return False
        if not _feeds_only_periodic_ops(use.node.outputs[0]):
            return False
    return True


def _count_layers(node: ir.Node) -> int | None:
    """Return the number of layers up to `node`; None if anything but copies is upstream.

    Arithmetic on copies counts as a copy.
    """
    op_type = ir.base_op_type(node)
    if op_type not in _MOVES | _ARITHMETIC_OPS:
        return None
    total = int(op_type in _LAYER_OPS)
    for value in node.inputs:
        producer = ir.producer(value)
        if producer is None:
            continue
        layers = _count_layers(producer)
        if layers is None:
            return None
        total += layers
    return total
