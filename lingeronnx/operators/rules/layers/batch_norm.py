"""Per-channel factor and offset: BatchNorm2dInt, ``y = sat(rescale(x*w[c] + b[c]))``.

The weight is int8, the bias int32. The operator works on images [N, C, H, W]; tensors of another
rank are reshaped before and after.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....ir.attributes import Attributes, get_number
from ....ir.plan import Affine
from ... import formats
from ...formats import Format
from ...lowering import LoweringContext
from .conv import WeightLayer

__all__ = [
    "BatchNorm2d",
    "emit_channel_affine",
    "emit_from_nchw",
    "emit_reshape_to_nchw",
    "fold_batch_norm_parameters",
    "get_weight_values",
    "nchw_shape",
    "replace_weight_values",
]


def fold_batch_norm_parameters(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return float64 arrays (a, c) of ``y = a*x + c`` per channel, for a BatchNormalization `node`.

    None is returned if a parameter (inputs 1 to 4) is not constant.
    """
    arrays = [ir.const_value(value) for value in node.inputs[1:5]]
    if any(array is None for array in arrays):
        return None
    gamma, beta, mean, var = (np.asarray(array, np.float64) for array in arrays)
    with np.errstate(all="ignore"):  # what is not finite is told where scales are chosen
        a = gamma / np.sqrt(var + ir.get_attr(node, "epsilon", 1e-5))
        return a, beta - mean * a


class BatchNorm2d(WeightLayer):
    """Batch normalization that could not be folded into a layer.

    The integer weight is ``gamma / sqrt(var + eps)``; the plan stores its scale as that of gamma.
    """

    integer_op = formats.BATCH_NORM2D
    floats = (("", "BatchNormalization"),)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the normalization `node` has no integer form, or None if it has one.

        Reasons: a parameter that is not constant, or an output shape of which more than the batch
        is unknown.
        """
        if fold_batch_norm_parameters(node) is None:
            return "its parameters are computed at run time"
        return None if nchw_shape(node) is not None else "its shape is not known before the run"

    def macs(self, node: ir.Node) -> int:
        """Return 0, for any `node`: elementwise multiplications are not counted."""
        return 0

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit BatchNorm2dInt into `context`, between two Reshapes unless the rank is 4.

        Its weight is the folded factor per channel, and its bias the folded offset at the scale of
        the accumulator (that of input times weight).
        """
        folded = fold_batch_norm_parameters(node)
        assert folded is not None
        factor, offset = folded
        attrs = self.make_integer_attributes(node, context)
        w = context.input_qparams(node, 1)
        weight = context.array(ir.input_name(node, 1), w.integers(factor), keeps_name=True)
        bias = context.add_accumulator_constant(
            f"{node.outputs[0].name}_bias",
            offset,
            get_number(attrs, "scale_x") * get_number(attrs, "scale_w"),
            context.has_wide_operands(node),
        )
        value = emit_reshape_to_nchw(
            context, node, context.get_integer_input(node, 0), context.input_qparams(node, 0)
        )
        emit_from_nchw(context, node, formats.BATCH_NORM2D, [value, weight, bias], attrs)


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
        formats.RESHAPE,
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
    low.emit(formats.RESHAPE, node, [value, _add_reshape_target(low, node, "shape", shape)], {})


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
        formats.BATCH_NORM2D,
        node,
        suffix,
        [value, *parameters],
        formats.BATCH_NORM2D.make_qparams_attributes(input_qparams, weight_qparams, output_qparams),
        shape,
        output_qparams,
    )


def get_weight_values(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the real values of the weight, input `index` of `node`, or None if it is not constant.

    Those of a float BatchNormalization are its folded factors gamma / sqrt(var + eps), whatever the
    index.
    """
    if node.op_type == "BatchNormalization" and not node.domain:
        folded = fold_batch_norm_parameters(node)
        return None if folded is None else folded[0]
    return ir.const_value(node.inputs[index])


def replace_weight_values(node: ir.Node, index: int, values: np.ndarray) -> dict[int, np.ndarray]:
    """Return new arrays, by input index, that set the weight, input `index` of `node`, to `values`.

    The node itself is not changed. For a float BatchNormalization, `values` are the wanted factors
    gamma / sqrt(var + eps), and gamma (1) and beta (2) are returned, such that the offset is kept.
    The arrays have the dtype of the old ones.
    """
    old = ir.require_const_value(node.inputs[index])
    if node.op_type != "BatchNormalization" or node.domain:
        return {index: values.astype(old.dtype)}
    folded = fold_batch_norm_parameters(node)
    assert folded is not None
    beta, mean, var = (np.asarray(ir.const_value(value), np.float64) for value in node.inputs[2:5])
    gamma = values * np.sqrt(var + ir.get_attr(node, "epsilon", 1e-5))
    return {1: gamma.astype(old.dtype), 2: (beta + mean * (values - folded[0])).astype(old.dtype)}
