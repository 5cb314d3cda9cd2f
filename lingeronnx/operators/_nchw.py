"""Emit operators that work on images [N, C, H, W] for tensors of any rank.

Tensors of another rank are reshaped before and after.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir import ir
from ..ir.attributes import Attributes
from ..ir.plan import Affine
from . import integer_ops
from .integer_ops import Format
from .lowering_context import LoweringContext

__all__ = ["emit_channel_affine", "emit_from_nchw", "emit_reshape_to_nchw", "nchw_shape"]


def nchw_shape(node: ir.Node) -> tuple[int | None, ...] | None:
    """Return the output shape of `node` as an image: [N, C, H, W], or [N, C, 1, all others].

    A shape of rank 4 is returned as it is, even with unknown dimensions; otherwise None is returned
    if a dimension after the batch, or the rank, is unknown, or there is no second axis.
    """
    shape = ir.get_shape(node.outputs[0]) or ()
    if len(shape) == 4:
        return shape
    dims = [dim for dim in shape[1:] if dim is not None]
    if not dims or len(dims) != len(shape) - 1:
        return None
    return (*shape[:2], 1, math.prod(dims[1:]))


def emit_reshape_to_nchw(
    low: LoweringContext, node: ir.Node, value: ir.Value, q: Affine
) -> ir.Value:
    """Reshape `value`, of the output shape of `node` and parameters `q`, to [N, C, H, W].

    Return it. All axes after the channels become the width if the rank is not 4; `value` itself is
    returned, and nothing emitted into `low`, if it has rank 4.
    """
    image = nchw_shape(node)
    assert image is not None
    if image == ir.get_shape(node.outputs[0]):
        return value
    return low.emit_intermediate(
        integer_ops.RESHAPE,
        node,
        "image",
        [value, _add_reshape_target(low, node, "image_shape", image)],
        {},
        image,
        q,
    )


def emit_from_nchw(
    low: LoweringContext,
    node: ir.Node,
    form: Format,
    inputs: list[ir.Value | None],
    attrs: Attributes,
) -> None:
    """Emit `form`, which gives [N, C, H, W], and reshape its result to the output shape of `node`.

    The Reshape is left out if the shapes are equal. `inputs` and `attrs` are those of `form`; both
    nodes are emitted into `low`.
    """
    image, shape = nchw_shape(node), ir.require_shape(node.outputs[0])
    assert image is not None
    if image == shape:
        low.emit(form, node, inputs, attrs)
        return
    value = low.emit_intermediate(
        form, node, "of_image", inputs, attrs, image, low.output_qparams(node)
    )
    low.emit(integer_ops.RESHAPE, node, [value, _add_reshape_target(low, node, "shape", shape)], {})


def _add_reshape_target(
    low: LoweringContext, node: ir.Node, suffix: str, shape: tuple[int | None, ...]
) -> ir.Value:
    """Add the int64 constant to `low` that a Reshape to `shape` takes, and return it.

    Its batch is 1 on targets that run single samples, else -1; other unknown dimensions are 1. Its
    name is that of the output of `node` with `suffix`.
    """
    sizes = [1 if low.target.single_sample else -1, *(int(d or 1) for d in shape[1:])]
    return low.array(f"{node.outputs[0].name}_{suffix}", np.array(sizes, np.int64))


def emit_channel_affine(
    low: LoweringContext,
    node: ir.Node,
    suffix: str,
    value: ir.Value,
    input_qparams: Affine,
    output_qparams: Affine,
    weight_qparams: Affine,
    factors: float | np.ndarray,
    offset: float = 0.0,
) -> ir.Value:
    """Emit ``value * factors + offset`` per channel as an intermediate of `node`.

    Parameters
    ----------
    low
        Context of the lowering.
    node
        Float node whose output has the shape of `value`.
    suffix
        Suffix of the names of node and parameters.
    value
        Integers [N, C, H, W].
    input_qparams, output_qparams, weight_qparams
        Quantization parameters of `value`, of the result and of `factors`.
    factors
        One factor, or one per channel.
    offset
        Real offset of all channels.

    Returns
    -------
    ir.Value
        The result [N, C, H, W].
    """
    shape = nchw_shape(node) or ()
    channels = int(shape[1] or 1)
    weights = weight_qparams.integers(np.broadcast_to(factors, (channels,)))
    base = f"{node.outputs[0].name}_{suffix}"
    bias = math.floor(offset * input_qparams.scale * weight_qparams.scale + 0.5)
    parameters = [
        low.array(f"{base}_factor", weights),
        low.array(f"{base}_offset", np.full(channels, bias, np.int32)),
    ]
    return low.emit_intermediate(
        integer_ops.BATCH_NORM2D,
        node,
        suffix,
        [value, *parameters],
        integer_ops.BATCH_NORM2D.make_qparams_attributes(
            input_qparams, weight_qparams, output_qparams
        ),
        shape,
        output_qparams,
    )
