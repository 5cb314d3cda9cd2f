"""Replace arithmetic with constants by a BatchNormalization, exactly, if the platform lacks it.

Add, Sub, Mul and Div with one constant operand, and Neg, are ``y = a*x + c`` with scalar or
broadcast a and c. The axes up to the last one along which a or c varies are viewed as channels:

    [N, C, ..] -> Reshape [N, channels, 1, rest] -> BatchNormalization (a, c; mean 0, variance 1) ->
    Reshape [N, C, ..]

This does not apply before the first layer or after the last one, where the host computes in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import float_ops, ir
from ...operators.integer_ops import BATCH_NORM2D
from ...operators.macs import count_macs
from ...targets import Target
from ._base import RewriteBuilder

__all__ = ["can_apply_batch_norm", "convert_to_batch_norm", "emit_batch_norm", "is_between_layers"]

_AFFINE_OPS = float_ops.AFFINE_OPS | {"Neg"}


def convert_to_batch_norm(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace arithmetic of `node` with a constant, between layers, by a BatchNormalization.

    Only if the target has BatchNorm2dInt, and for an input of rank 2 or more with known sizes and
    no folded batch. Returns the description and the cost of the change, or None without a change.
    """
    affine = _match_affine(node) if target.can_run(BATCH_NORM2D.name) else None
    if affine is None:
        return None
    source, a, c = affine
    if not can_apply_batch_norm(source) or not is_between_layers(node):
        return None
    builder = RewriteBuilder(model, node)
    emit_batch_norm(builder, source, a, c)
    builder.replace_node()
    return f"{node.op_type} with a constant as a BatchNormalization", "exact"


def can_apply_batch_norm(source: ir.Value) -> bool:
    """Whether a BatchNormalization may replace arithmetic on `source`, by its shape.

    It needs rank 2 or more, known sizes after axis 0, and no batch that is folded with other axes.
    """
    shape = ir.get_shape(source) or ()
    return len(shape) > 1 and None not in shape[1:] and not ir.has_folded_batch(source)


def emit_batch_norm(
    builder: RewriteBuilder, source: ir.Value, a: np.ndarray, c: np.ndarray
) -> ir.Value:
    """Append ``a*source + c`` as a BatchNormalization on an image, and a Reshape back.

    `a` and `c` are scalars, or arrays that broadcast to the shape of a sample. The channels are the
    axes up to the last one along which they vary; an image [N, C, H, W] that varies by channel only
    is not reshaped. Returns the result, of the shape of `source`.
    """
    sizes = [int(dim or 1) for dim in ir.require_shape(source)[1:]]
    last_axis = max(_find_last_varying_axis(a), _find_last_varying_axis(c))
    image = [math.prod(sizes[: last_axis + 1]), 1, math.prod(sizes[last_axis + 1 :])]
    scale, offset = (_get_channel_values(array, sizes, image[0]) for array in (a, c))
    is_image = len(sizes) == 3 and last_axis == 0
    value = source if is_image else builder.reshape(source, image, "image")
    arrays = {
        "scale": scale,
        "offset": offset,
        "mean": np.zeros_like(scale),
        "variance": np.ones_like(scale),
    }
    constants = [
        builder.constant(np.ascontiguousarray(array), name) for name, array in arrays.items()
    ]
    result = builder(
        "BatchNormalization",
        [value, *constants],
        list(value.shape or ()),
        "affine",
        {"epsilon": 0.0},
    )
    return result if is_image else builder.reshape(result, sizes, "back")


def _find_last_varying_axis(array: np.ndarray) -> int:
    """Return the last axis of `array` that is longer than 1, or 0 if there is none."""
    return max((axis for axis in range(array.ndim) if array.shape[axis] > 1), default=0)


def _get_channel_values(array: np.ndarray, sizes: list[int], channels: int) -> np.ndarray:
    """Broadcast `array` to `sizes`, the shape of a sample; return its first value per channel.

    The result is float32 (channels,); the channels are the leading axes, as one.
    """
    spread = np.broadcast_to(array, sizes)
    if not spread.size:
        return np.zeros(0, np.float32)
    return spread.reshape(channels, -1)[:, 0].astype(np.float32)


class _AffineMatch(NamedTuple):
    """Arithmetic ``a*x + c``, with float64 arrays a and c that broadcast to a sample."""

    x: ir.Value
    a: np.ndarray
    c: np.ndarray


def _match_affine(node: ir.Node) -> _AffineMatch | None:
    """Return x, a and c if `node` computes a x + c with a finite constant, equal for all samples.

    None for other nodes. Operators are Neg, Add, Sub, Mul and Div by a constant without zeros; x is
    a computed float32 tensor of the shape of the result. The constants a and c are without the
    batch axis and broadcast to the shape of a sample.
    """
    if node.domain or node.op_type not in _AFFINE_OPS:
        return None
    x = _find_float_operand(node)
    if x is None or ir.get_shape(x) != ir.get_shape(node.outputs[0]):
        return None
    rank = len(ir.get_shape(node.outputs[0]) or ())
    ones, zeros = (np.full((1,) * max(rank - 1, 0), value) for value in (1.0, 0.0))
    if node.op_type == "Neg":
        return _AffineMatch(x, -ones, zeros)
    is_first = node.inputs[0] is x
    k = _drop_batch_axis(ir.const_value(node.inputs[1] if is_first else node.inputs[0]), rank)
    if k is None:
        return None
    if node.op_type == "Div":
        return _AffineMatch(x, 1.0 / k, zeros) if is_first and k.all() else None
    if node.op_type == "Mul":
        return _AffineMatch(x, k, zeros)
    if node.op_type == "Add":
        return _AffineMatch(x, ones, k)
    return _AffineMatch(x, ones, -k) if is_first else _AffineMatch(x, -ones, k)


def _find_float_operand(node: ir.Node) -> ir.Value | None:
    """Return the only non-constant input of `node` if it is float32; None otherwise.

    None too if several inputs are computed.
    """
    operands = [value for value in node.inputs if ir.const_value(value) is None]
    if len(operands) != 1 or operands[0] is None:
        return None
    dtype = operands[0].dtype
    return operands[0] if dtype is not None and dtype.name == "FLOAT" else None


def _drop_batch_axis(array: np.ndarray | None, rank: int) -> np.ndarray | None:
    """Return `array` without its batch axis, as float64 with `rank` - 1 axes.

    Lower ranks are filled up with leading axes. None if it is not a finite float array, or differs
    between samples.
    """
    if array is None or array.dtype.kind != "f" or array.ndim > rank:
        return None
    if not np.isfinite(array).all():
        return None
    full = array.astype(np.float64).reshape((1,) * (rank - array.ndim) + array.shape)
    return full[0] if full.shape[:1] == (1,) else None


def is_between_layers(node: ir.Node) -> bool:
    """Whether there is a layer upstream of `node`, and one downstream, at any distance."""
    return _reaches_layer(node, _get_producers) and _reaches_layer(node, _get_consumers)


def _get_producers(node: ir.Node) -> list[ir.Node | None]:
    """Return the producers of the inputs of `node`, None for graph inputs and constants."""
    return [ir.producer(value) for value in node.inputs]


def _get_consumers(node: ir.Node) -> list[ir.Node | None]:
    """Return the nodes that read the outputs of `node`, once per use."""
    return [use.node for value in node.outputs for use in value.uses()]


def _reaches_layer(
    start: ir.Node, get_neighbors: Callable[[ir.Node], Sequence[ir.Node | None]]
) -> bool:
    """Whether a layer can be reached from `start` through `get_neighbors`, `start` aside.

    Layers are the nodes with multiply-accumulates and LayerNormalization.
    """
    visited, pending = {id(start)}, [start]
    while pending:
        for node in get_neighbors(pending.pop()):
            if node is None or id(node) in visited:
                continue
            if count_macs(node) or ir.base_op_type(node) == "LayerNormalization":
                return True
            visited.add(id(node))
            pending.append(node)
    return False
