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
_MAX_NODES = 32  # of each direction, so that a long chain is not walked from each of its nodes
_ARITHMETIC_OPS = float_ops.AFFINE_OPS | _LAYER_OPS


def is_angle_source(node: ir.Node) -> bool:
    """Whether only Sin and Cos read the results of `node`, which it computes from model inputs.

    Copies, and arithmetic with at most one layer, may lie on both sides, `_MAX_NODES` at most.
    """
    if ir.base_op_type(node) not in _ARITHMETIC_OPS:
        return False
    return _feeds_only_periodic_ops(node) and _depends_on_inputs_only(node)


def _feeds_only_periodic_ops(node: ir.Node) -> bool:
    """Whether all consumers of `node`, of which there must be some, lead to Sin and Cos only."""
    remaining, visited = [node], {node}
    while remaining:
        value = remaining.pop().outputs[0]
        uses = list(value.uses())
        if not uses or value.is_graph_output():
            return False
        for use in uses:
            op_type = ir.base_op_type(use.node)
            if op_type in _PERIODIC_OPS or use.node in visited:
                continue
            if op_type not in _MOVES | _ARITHMETIC_OPS or len(visited) == _MAX_NODES:
                return False
            visited.add(use.node)
            remaining.append(use.node)
    return True


def _depends_on_inputs_only(node: ir.Node) -> bool:
    """Whether nothing but copies, arithmetic and at most one layer lies between inputs and `node`.

    `node` counts.
    """
    remaining, visited = [node], {node}
    while remaining:
        for producer in map(ir.producer, remaining.pop().inputs):
            if producer is None or producer in visited:
                continue
            is_allowed = ir.base_op_type(producer) in _MOVES | _ARITHMETIC_OPS
            if not is_allowed or len(visited) == _MAX_NODES:
                return False
            visited.add(producer)
            remaining.append(producer)
    return sum(ir.base_op_type(each) in _LAYER_OPS for each in visited) <= 1
