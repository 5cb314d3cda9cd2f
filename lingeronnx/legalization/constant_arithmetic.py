"""Sums and products with constants as a BatchNormalization, where the platform has no operator for them: exact.

Add, Sub, Mul and Div with one constant operand, and Neg, are ``y = a*x + c`` with a and c of one
value, or of one per place. The axes up to the last one along which they vary are read as channels:

    [N, C, ..] -> Reshape [N, channels, 1, rest] -> BatchNormalization (a, c; mean 0, variance 1) ->
    Reshape [N, C, ..]

Not in front of the first layer and not behind the last one: there the host computes it in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..formats import BATCH_NORM2D
from ..graph import ir, operators
from ..ops.macs import count_macs
from ..targets import Target
from ._base import RewriteBuilder

__all__ = ["can_apply_batch_norm", "convert_to_batch_norm", "emit_batch_norm", "is_between_layers"]

_AFFINE_OPS = operators.AFFINE_OPS | {"Neg"}


def convert_to_batch_norm(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a sum or product with a constant as a BatchNormalization."""
    affine = _match_affine(node) if target.can_run(BATCH_NORM2D.name) else None
    if affine is None:
        return None
    source, a, c = affine
    if not can_apply_batch_norm(source) or not is_between_layers(node):
        return None
    make = RewriteBuilder(model, node)
    emit_batch_norm(make, source, a, c)
    make.replace_node()
    return f"{node.op_type} with a constant as a BatchNormalization", "exact"


def can_apply_batch_norm(source: ir.Value) -> bool:
    """Whether the sizes of a sample are known, one at least, and its batch is on axis 0 alone."""
    shape = ir.get_shape(source) or ()
    return len(shape) > 1 and None not in shape[1:] and not ir.has_folded_batch(source)


def emit_batch_norm(
    builder: RewriteBuilder, source: ir.Value, a: np.ndarray, c: np.ndarray
) -> ir.Value:
    """Return a*source + c by a BatchNormalization.

    A and c are numbers, or have an axis for each of a sample.
    """
    sizes = [int(d or 1) for d in ir.require_shape(source)[1:]]
    spread = [np.broadcast_to(v, sizes) for v in (a, c)]
    last = max((axis for v in (a, c) for axis in range(v.ndim) if v.shape[axis] > 1), default=0)
    image = [math.prod(sizes[: last + 1]), 1, math.prod(sizes[last + 1 :])]
    factors, summands = (
        v.reshape(image[0], -1)[:, 0].astype(np.float32) if v.size else np.zeros(0, np.float32)
        for v in spread
    )
    plain = len(sizes) == 3 and last == 0
    value = source if plain else builder.reshape(source, image, "image")
    arrays = {
        "scale": factors,
        "offset": summands,
        "mean": np.zeros_like(factors),
        "variance": np.ones_like(factors),
    }
    constants = [
        builder.constant(np.ascontiguousarray(array), name) for name, array in arrays.items()
    ]
    normal = builder(
        "BatchNormalization",
        [value, *constants],
        list(value.shape or ()),
        "affine",
        {"epsilon": 0.0},
    )
    return normal if plain else builder.reshape(normal, sizes, "back")


def _match_affine(node: ir.Node) -> tuple[ir.Value, np.ndarray, np.ndarray] | None:
    """Return (x, a, c) of ``y = a*x + c``, float64 with an axis for each of a sample, or None for anything else."""
    if node.domain or node.op_type not in _AFFINE_OPS:
        return None
    computed = [value for value in node.inputs if ir.const_value(value) is None]
    if len(computed) != 1 or computed[0] is None:
        return None
    source = computed[0]
    rank, kind = len(ir.get_shape(node.outputs[0]) or ()), source.dtype
    if (
        kind is None
        or kind.name != "FLOAT"
        or ir.get_shape(source) != ir.get_shape(node.outputs[0])
    ):
        return None
    one, none = (np.full((1,) * max(rank - 1, 0), v) for v in (1.0, 0.0))
    if node.op_type == "Neg":
        return source, -one, none
    array = ir.const_value(node.inputs[1] if node.inputs[0] is source else node.inputs[0])
    k = _drop_batch_axis(array, rank)
    if k is None:
        return None
    if node.op_type == "Mul":
        return source, k, none
    if node.op_type == "Div":
        return (source, 1.0 / k, none) if node.inputs[0] is source and k.all() else None
    if node.op_type == "Add":
        return source, one, k
    return (source, one, -k) if node.inputs[0] is source else (source, -one, k)


def _drop_batch_axis(array: np.ndarray | None, rank: int) -> np.ndarray | None:
    """Return a constant that is the same for every sample with the axes of a sample, `rank` - 1."""
    if (
        array is None
        or array.dtype.kind != "f"
        or array.ndim > rank
        or not np.isfinite(array).all()
    ):
        return None
    full = array.astype(np.float64).reshape((1,) * (rank - array.ndim) + array.shape)
    return full[0] if full.shape[:1] == (1,) else None


def is_between_layers(node: ir.Node) -> bool:
    """Whether a layer stands somewhere before `node`, and one behind it."""
    return _reaches_layer(node, lambda n: [ir.producer(v) for v in n.inputs]) and _reaches_layer(
        node, lambda n: [use.node for v in n.outputs for use in v.uses()]
    )


def _reaches_layer(
    start: ir.Node, get_neighbors: Callable[[ir.Node], Sequence[ir.Node | None]]
) -> bool:
    visited, ahead = {id(start)}, [start]
    while ahead:
        for node in get_neighbors(ahead.pop()):
            if node is not None and id(node) not in visited:
                if count_macs(node) or ir.base_op_type(node) == "LayerNormalization":
                    return True
                visited.add(id(node))
                ahead.append(node)
    return False
