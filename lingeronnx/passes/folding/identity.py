"""Drop nodes that pass their input on.

Identity, Dropout at inference, no-op Cast, Pad, Transpose, Concat of one.
Also arithmetic with a neutral constant (x*1, x/1, x+0, x-0, x^1), Reshape, Flatten, Expand,
Squeeze, Slice and Clip that change nothing, and Expand before products that repeat their factor
just so: chips multiply by one per channel.

Where the node stands between a graph input and a graph output both names are needed and it stays.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from ...ops.functions.activation import get_clip_bounds
from .._pass import PassResult, SkipReason


def drop_identity(model: ir.Model) -> PassResult:
    """Remove pass-through nodes of `model`."""
    dropped, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if not node.inputs or node.inputs[0] is None or not _is_no_op(node):
            continue
        keep = node.inputs[0]
        if (
            ir.const_value(keep) is not None
            and len(node.inputs) == 2
            and node.op_type in ("Add", "Mul")
        ):
            keep = ir.require_input(node, 1)
        if any(extra.uses() or extra.is_graph_output() for extra in node.outputs[1:]):
            why.append(SkipReason(node, "another output of it is read"))
        elif ir.can_bypass_node(node, keep):
            ir.bypass_node(model, node, keep)
            dropped += 1
        else:
            why.append(SkipReason(node, "the names on both of its sides are needed"))
    return PassResult(dropped, why)


def _is_no_op(node: ir.Node) -> bool:
    source = node.inputs[0]
    kind = node.op_type if node.domain in ("", "ai.onnx") else ""
    if kind in ("Identity", "Dropout"):
        training = node.inputs[2] if kind == "Dropout" and len(node.inputs) > 2 else None
        mode = ir.const_value(training)
        return training is None or (mode is not None and not mode.any())
    if kind == "Cast":
        return (
            source is not None
            and source.dtype is not None
            and int(source.dtype) == ir.get_attr(node, "to")
        )
    if kind == "Pad":
        pads = ir.get_attr(node, "pads") or (
            ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
        )
        return pads is not None and not np.any(np.asarray(pads))
    if kind == "Transpose":
        perm = ir.get_attr(node, "perm")
        return perm is not None and perm == sorted(perm)
    if kind in operators.IDENTITY_OPERANDS:
        return _has_identity_operand(node, operators.IDENTITY_OPERANDS[kind])
    if kind == "Tile":  # its shape does not tell: batches that are not known look alike
        repeats = ir.const_value(node.inputs[1])
        return repeats is not None and bool((repeats == 1).all())
    if kind == "Expand" and _is_broadcast_by_readers(node):
        return True
    if kind in (*operators.RESHAPING_OPS, "Expand", "Slice"):
        return _has_same_shape(node.inputs[0], node.outputs[0]) and (
            kind != "Slice" or _has_positive_steps(node)
        )
    if kind == "Clip":
        return get_clip_bounds(node) == (-math.inf, math.inf)
    return kind == "Concat" and len(node.inputs) == 1


def _has_identity_operand(node: ir.Node, number: int) -> bool:
    """Whether one operand is `number` throughout and does not widen the other."""
    index = 0 if ir.const_value(node.inputs[0]) is not None else 1
    if index == 0 and node.op_type not in ("Add", "Mul"):
        return False
    array, other = ir.const_value(node.inputs[index]), ir.require_input(node, 1 - index)
    shape = ir.get_shape(other)
    if (
        array is None
        or shape is None
        or ir.const_value(other) is not None
        or array.ndim > len(shape)
    ):
        return False
    if not (array == number).all() or (
        other.dtype is not None and array.dtype != other.dtype.numpy()
    ):
        return False
    tail = shape[len(shape) - array.ndim :]
    return all(have in (1, want) for have, want in zip(array.shape, tail, strict=True))


def _has_same_shape(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether both have the same known shape; the batch may be unknown in both."""
    one, two = ir.get_shape(first), ir.get_shape(second)
    return bool(one) and one == two and None not in (one or ())[1:]


def _is_broadcast_by_readers(node: ir.Node) -> bool:
    """Whether every reader of an Expand is a product with another factor that has all of its sizes."""
    result = node.outputs[0]

    def sized(user: ir.Node, other: ir.Value | None) -> bool:
        return (
            user.op_type == "Mul"
            and not user.domain
            and other is not result
            and _has_same_shape(result, other)
        )

    uses = [] if result.is_graph_output() else list(result.uses())
    return bool(uses) and all(
        len(u.node.inputs) == 2 and sized(u.node, u.node.inputs[1 - u.idx]) for u in uses
    )


def _has_positive_steps(node: ir.Node) -> bool:
    steps = (
        ir.const_value(node.inputs[4])
        if len(node.inputs) > 4 and node.inputs[4] is not None
        else np.ones(1)
    )
    return steps is not None and bool((steps > 0).all())
