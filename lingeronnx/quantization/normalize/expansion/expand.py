"""Expand composite operators of a model: by a composition, else by the standard's function body."""

from __future__ import annotations

from collections.abc import Collection

from ....ir import float_ops, ir
from ....ir.function_bodies import expand_to_bodies, has_function_body
from .compositions import COMPOSITIONS, is_dilated

__all__ = ["can_expand", "expand_nodes"]

#: Operators whose bodies consist of more operators that no platform has.
_FINAL_OPS = (
    float_ops.UNARY_ELEMENTWISE_OPS
    | float_ops.BROADCASTING_OPS
    | float_ops.CORRECTLY_ROUNDED_OPS
    | float_ops.SOFTMAX_FAMILY_OPS
    | float_ops.RANDOM_OPS
    | float_ops.DATA_GENERATING_OPS
    | float_ops.QUANTIZATION_OPS
    | {"CastLike", "LayerNormalization"}
)
_MAX_DEPTH = 4  # of bodies in bodies; the standard has two levels


def can_expand(node: ir.Node, opset: int) -> bool:
    """Whether `node` may have a composition, or a function body that could lower to integers."""
    if ir.is_standard_op(node, "AveragePool"):
        return is_dilated(node)
    if (node.domain, node.op_type) in COMPOSITIONS:
        return True
    if node.domain or node.op_type in _FINAL_OPS:
        return False
    return has_function_body(node.op_type, opset)


def expand_nodes(model: ir.Model, names: Collection[str]) -> set[str]:
    """Expand the nodes `names` of the main graph of `model`, in place; return those expanded.

    Shapes must be known. Composite operators in a function body are expanded too.
    """
    expanded: set[str] = set()
    for _ in range(_MAX_DEPTH):
        nodes = [node for node in model.graph if ir.origin_name(node) in names]
        replaced = _expand_once(model, nodes)
        if not replaced:
            break
        expanded |= replaced
    if expanded:
        ir.assign_node_names(model)
    return expanded


def _expand_once(model: ir.Model, nodes: Collection[ir.Node]) -> set[str]:
    """Expand those of `nodes` that can be, in place; return the user's names of these nodes."""
    opset = ir.get_opset(model)
    replaced, without_composition = set[str](), list[ir.Node]()
    for node in nodes:
        if not can_expand(node, opset):
            continue
        name = ir.origin_name(node)
        compose = COMPOSITIONS.get((node.domain, node.op_type))
        if compose is not None and compose(model, node):
            replaced.add(name)
        else:
            without_composition.append(node)
    names = [ir.origin_name(node) for node in expand_to_bodies(model, without_composition)]
    return replaced.union(names)
