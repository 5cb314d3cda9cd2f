"""Recognize what computes the angle of a Sin or Cos from inputs of the model.

Examples are rotary positions, the embedding of a time step and Fourier features of coordinates: a
position times a frequency, up to hundreds of radians, of which 256 steps hold few periods. No
platform has Sin or Cos, so the angle is computed in float without a further border between integers
and float.
"""

from __future__ import annotations

from ..ir import float_ops, ir

__all__ = ["ANGLE_OPS", "ANGLE_REASON", "is_angle_source"]

#: Why a product or a sum stays in float.
ANGLE_REASON = "it computes the angle of a Sin or Cos from inputs of the model, many periods"

_PERIODIC_OPS = {"Sin", "Cos"}
_MOVES = float_ops.DATA_MOVEMENT_OPS | {"Cast", "Concat"}
_PRODUCT_OPS = {"MatMul", "Linear"}
#: Operators that may compute an angle.
ANGLE_OPS = float_ops.AFFINE_OPS | _PRODUCT_OPS
_MAX_NODES = 32  # of each direction, so that a long chain is not walked from each of its nodes
_MAX_COORDINATES = 4  # of a position that is multiplied by frequencies


def is_angle_source(node: ir.Node) -> bool:
    """Whether only Sin and Cos read the results of `node`, which it computes from model inputs.

    Copies, and arithmetic with at most one matrix product, may lie on both sides, `_MAX_NODES` at
    most.
    """
    if not _is_arithmetic(node):
        return False
    return _feeds_only_periodic_ops(node) and _depends_on_inputs_only(node)


def _is_arithmetic(node: ir.Node) -> bool:
    """Whether `node` is elementwise arithmetic, or a matrix product with few coordinates."""
    op_type = ir.base_op_type(node)
    if op_type not in _PRODUCT_OPS:
        return op_type in float_ops.AFFINE_OPS
    shape = ir.get_shape(node.inputs[0])
    coordinates = shape[-1] if shape else None
    return coordinates is not None and coordinates <= _MAX_COORDINATES


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
            is_allowed = op_type in _MOVES or _is_arithmetic(use.node)
            if not is_allowed or len(visited) == _MAX_NODES:
                return False
            visited.add(use.node)
            remaining.append(use.node)
    return True


def _depends_on_inputs_only(node: ir.Node) -> bool:
    """Whether only copies and arithmetic, with one matrix product, lie between inputs and `node`.

    `node` counts, and there may be no product.
    """
    remaining, visited = [node], {node}
    while remaining:
        for producer in map(ir.producer, remaining.pop().inputs):
            if producer is None or producer in visited:
                continue
            is_allowed = ir.base_op_type(producer) in _MOVES or _is_arithmetic(producer)
            if not is_allowed or len(visited) == _MAX_NODES:
                return False
            visited.add(producer)
            remaining.append(producer)
    return sum(ir.base_op_type(each) in _PRODUCT_OPS for each in visited) <= 1
