"""The user's node that each node was created for, recorded in its metadata in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ._onnx_ir import Node
from .graph_queries import base_op_type

__all__ = [
    "constant_base_name",
    "display_op_type",
    "has_constant_base_name",
    "has_origin",
    "mark_fused",
    "mark_origin",
    "origin_name",
    "set_constant_base_name",
]

#: Metadata key of the user's node that a node was created for. Exists in memory only.
_ORIGIN = "lingeronnx.origin"

#: Metadata key of the operator of that user's node.
_ORIGIN_OPERATOR = "lingeronnx.operator"

#: Operators that only passes create, in place of an operator of the user's.
_PASS_ONLY_OPS = frozenset({"BatchNormalization", "Curve", "Linear"})

#: Metadata key of the base name for constants that are created for a node.
_CONSTANT_BASE_NAME = "lingeronnx.shared"


def mark_origin(node: Node, old: Node) -> None:
    """Record in `node` the name and operator of the user's node for which `old` exists.

    If `old` was itself created for another node, that one is recorded, else `old`.
    """
    node.meta[_ORIGIN] = origin_name(old)
    node.meta[_ORIGIN_OPERATOR] = old.meta.get(_ORIGIN_OPERATOR, base_op_type(old))


def has_origin(node: Node) -> bool:
    """Whether `node` was created for another node, which is recorded in it."""
    return _ORIGIN in node.meta


def origin_name(node: Node) -> str:
    """Return the name of the user's node that `node` was created for, or the node's own name."""
    return str(node.meta.get(_ORIGIN, node.name))


def mark_fused(node: Node, old: Sequence[Node]) -> None:
    """Record that `node` replaces all nodes of `old`: it shows their operators to users.

    They are joined by ", ", each once. `display_op_type` uses them only if the operator of `node`
    is one that only passes create.
    """
    op_types = dict.fromkeys(display_op_type(old_node) for old_node in old)
    node.meta[_ORIGIN_OPERATOR] = ", ".join(op_types)


def display_op_type(node: Node) -> str:
    """Return the operator of `node` as users know it.

    For an operator that only passes create, this is the operator of the model it was created from.
    """
    op_type = base_op_type(node)
    if op_type in _PASS_ONLY_OPS:
        return str(node.meta.get(_ORIGIN_OPERATOR, op_type))
    return op_type


def set_constant_base_name(node: Node, name: str) -> None:
    """Set the base name of constants created for `node`; nodes of one name share them."""
    node.meta[_CONSTANT_BASE_NAME] = name


def constant_base_name(node: Node) -> str:
    """Return the base name of constants that are created for `node`.

    This is the name that was set for them (nodes of one base name share constants), or the name of
    the node's first output.
    """
    return str(node.meta.get(_CONSTANT_BASE_NAME, node.outputs[0].name))


def has_constant_base_name(node: Node) -> bool:
    """Whether a base name was set for constants of `node`, which it shares with others."""
    return _CONSTANT_BASE_NAME in node.meta
