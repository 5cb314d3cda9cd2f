"""Drop nodes that pass their input on: Identity, Dropout at inference, no-op Cast, Pad, Transpose, Concat of one.

Also arithmetic with a neutral constant (x*1, x/1, x+0, x-0, x^1), Reshape, Flatten, Expand, Squeeze, Slice and Clip
that change nothing, and Expand before products that repeat their factor just so: chips multiply by one per channel.

Where the node stands between a graph input and a graph output both names are needed and it stays.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir, operators
from ...ops.functions.activation import bounds
from .._pass import Answer, Reason


def drop_identity(model: ir.Graph) -> Answer:
    """Remove pass-through nodes of `model`."""
    dropped, why = 0, list[Reason]()
    for node in list(model.graph):
        if not node.inputs or node.inputs[0] is None or not _passes_through(node):
            continue
        keep = node.inputs[0]
        if ir.const(keep) is not None and len(node.inputs) == 2 and node.op_type in ("Add", "Mul"):
            keep = ir.source(node, 1)
        if any(extra.uses() or extra.is_graph_output() for extra in node.outputs[1:]):
            why.append(Reason(node, "another output of it is read"))
        elif ir.removable(node, keep):
            ir.remove(model, node, keep)
            dropped += 1
        else:
            why.append(Reason(node, "the names on both of its sides are needed"))
    return Answer(dropped, why)


def _passes_through(node: ir.Node) -> bool:
    source = node.inputs[0]
    kind = node.op_type if node.domain in ("", "ai.onnx") else ""
    if kind in ("Identity", "Dropout"):
        training = node.inputs[2] if kind == "Dropout" and len(node.inputs) > 2 else None
        mode = ir.const(training)
        return training is None or (mode is not None and not mode.any())
    if kind == "Cast":
        return source is not None and source.dtype is not None and int(source.dtype) == ir.attr(node, "to")
    if kind == "Pad":
        pads = ir.attr(node, "pads") or (ir.const(node.inputs[1]) if len(node.inputs) > 1 else None)
        return pads is not None and not np.any(np.asarray(pads))
    if kind == "Transpose":
        perm = ir.attr(node, "perm")
        return perm is not None and perm == sorted(perm)
    if kind in operators.NEUTRAL:
        return _neutral(node, operators.NEUTRAL[kind])
    if kind == "Tile":  # its shape does not tell: batches that are not known look alike
        repeats = ir.const(node.inputs[1])
        return repeats is not None and bool((repeats == 1).all())
    if kind == "Expand" and _repeated_anyway(node):
        return True
    if kind in (*operators.SHAPED, "Expand", "Slice"):
        return _same_shape(node.inputs[0], node.outputs[0]) and (kind != "Slice" or _forward(node))
    if kind == "Clip":
        return bounds(node) == (-math.inf, math.inf)
    return kind == "Concat" and len(node.inputs) == 1


def _neutral(node: ir.Node, number: int) -> bool:
    """Whether one operand is `number` throughout and does not widen the other."""
    index = 0 if ir.const(node.inputs[0]) is not None else 1
    if index == 0 and node.op_type not in ("Add", "Mul"):
        return False
    array, other = ir.const(node.inputs[index]), ir.source(node, 1 - index)
    shape = ir.shape(other)
    if array is None or shape is None or ir.const(other) is not None or array.ndim > len(shape):
        return False
    if not (array == number).all() or (other.dtype is not None and array.dtype != other.dtype.numpy()):
        return False
    tail = shape[len(shape) - array.ndim :]
    return all(have in (1, want) for have, want in zip(array.shape, tail, strict=True))


def _same_shape(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether both have the same known shape; the batch may be unknown in both."""
    one, two = ir.shape(first), ir.shape(second)
    return bool(one) and one == two and None not in (one or ())[1:]


def _repeated_anyway(node: ir.Node) -> bool:
    """Whether every reader of an Expand is a product with another factor that has all of its sizes."""
    result = node.outputs[0]

    def sized(user: ir.Node, other: ir.Value | None) -> bool:
        return user.op_type == "Mul" and not user.domain and other is not result and _same_shape(result, other)

    uses = [] if result.is_graph_output() else list(result.uses())
    return bool(uses) and all(len(u.node.inputs) == 2 and sized(u.node, u.node.inputs[1 - u.idx]) for u in uses)


def _forward(node: ir.Node) -> bool:
    steps = ir.const(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else np.ones(1)
    return steps is not None and bool((steps > 0).all())
