"""Replace a 1-D convolution with a long kernel, such as a DFT, by a product with frames.

    y[o, t] = sum_k w[o, k] x[t*stride + k]  =  peak * sum_k w[o, k] (x[t*stride + k] / peak),
    peak = max |x|

The host splits the signal into frames and divides them by the largest sample of the call, so that 8
bits serve quiet and loud signals alike (block floating point). The chip computes the product, and
the host multiplies by the peak again. This applies only if the consumers run on the host anyway,
such as a power, a root or a logarithm that the chip does not have.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....operators.conv_geometry import ConvGeometry
from ....operators.lowerings import can_lower, find_lowering_rule
from ....targets import Target
from ...normalize.layers.linear import declare_linear_function
from .._base import RewriteBuilder, get_constant_bias, match_conv

__all__ = ["HOST_REASON_KEY", "collect_host_reasons", "convert_conv_to_frames"]

#: Metadata key of nodes that a rewrite assigns to the host; its value is the reason.
HOST_REASON_KEY = "lingeronnx.host"

_HOST_REASON = "it splits a signal into frames, and scales them by their largest sample"
_MIN_PEAK = float(np.finfo(np.float32).tiny)  # divisor of a silent signal


def convert_conv_to_frames(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a convolution of one channel, whose kernel is too long, by a layer over frames.

    Only a 1-D one, without padding and dilation, whose kernel exceeds `max_kernel_1d` and all of
    whose consumers the host computes. The signal is divided by its peak, and the result multiplied
    by it; all new nodes but the Linear are marked for the host. Returns the description and the
    cost of the change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or target.linear_limits is None or target.conv_limits is None:
        return None
    geometry, weight = conv
    if not _is_single_channel_1d(geometry):
        return None
    if geometry.kernel[0] <= target.conv_limits.max_kernel_1d:
        return None
    if not _is_consumed_by_host(node, target):
        return None
    builder = RewriteBuilder(model, node)
    normalized, peak = _emit_normalized_signal(builder, geometry)
    frames = _emit_frames(builder, normalized, geometry)
    layer = _emit_frame_product(builder, frames, peak, geometry, weight)
    for new_node in builder.nodes:
        if new_node is not layer:
            new_node.metadata_props[HOST_REASON_KEY] = _HOST_REASON
    builder.replace_node()
    declare_linear_function(model)
    frame_count = int(geometry.result[2] or 0)
    return (
        f"kernel of {geometry.kernel[0]} samples replaced by a product with {frame_count} frames",
        "exact",
    )


def _is_single_channel_1d(geometry: ConvGeometry) -> bool:
    """Whether `geometry` is 1-D over one input channel, without pads and dilation."""
    if len(geometry.kernel) != 1 or geometry.inputs != 1:
        return False
    return not any(geometry.pads) and geometry.dilations == (1,)


def _get_batch(geometry: ConvGeometry) -> ir.Dim:
    """Return the batch size of the result of the convolution; "N" if it has no shape."""
    return (geometry.result or ["N"])[0]


def _count_frame_blocks(geometry: ConvGeometry) -> int:
    """Return the kernel length in blocks of one stride, rounded up: the blocks of a frame.

    A frame begins with each block.
    """
    return int(-(-geometry.kernel[0] // geometry.strides[0]))


def _emit_normalized_signal(
    builder: RewriteBuilder, geometry: ConvGeometry
) -> tuple[ir.Value, ir.Value]:
    """Append the division of the convolution's input by its peak; return the result and the peak.

    The peak [N, 1, 1] is max |x| of a sample, at least `_MIN_PEAK`.
    """
    x, batch = ir.require_input(builder.node), _get_batch(geometry)
    magnitude = builder("Abs", [x], list(x.shape or ()), "size")
    peak = builder("GlobalMaxPool", [magnitude], [batch, 1, 1], "largest")
    min_peak = builder.constant(np.array(_MIN_PEAK, np.float32), "silence")
    peak = builder("Max", [peak, min_peak], [batch, 1, 1], "peak")
    return builder("Div", [x, peak], list(x.shape or ()), "even"), peak


def _emit_frames(builder: RewriteBuilder, signal: ir.Value, geometry: ConvGeometry) -> ir.Value:
    """Append nodes that cut `signal` [N, 1, length] into overlapping frames; return the result.

    It is [N, frames, blocks * stride]: a frame has as many blocks of `stride` samples as cover the
    kernel, and the next one begins a stride later. Zeros are added at the end where the last frame
    needs them.
    """
    stride, batch = geometry.strides[0], _get_batch(geometry)
    frame_count, blocks = int(geometry.result[2] or 0), _count_frame_blocks(geometry)
    needed_length = (frame_count + blocks - 1) * stride
    length = int(geometry.input_shape[2] or 0)
    if needed_length > length:  # the last frame ends with zeros, whose weight is zero
        pads = np.array([0, 0, 0, 0, 0, needed_length - length], np.int64)
        signal = builder(
            "Pad", [signal, builder.constant(pads, "pads")], [batch, 1, needed_length], "filled"
        )
    signal = builder.slice_axis(signal, 2, 0, needed_length, "line")
    rows = builder.reshape(signal, [frame_count + blocks - 1, stride], "rows")
    parts = [
        builder.slice_axis(rows, 1, block, block + frame_count, f"piece{block}")
        for block in range(blocks)
    ]
    if blocks == 1:
        return parts[0]
    return builder("Concat", parts, [batch, frame_count, blocks * stride], "frames", {"axis": 2})


def _emit_frame_product(
    builder: RewriteBuilder,
    frames: ir.Value,
    peak: ir.Value,
    geometry: ConvGeometry,
    weight: np.ndarray,
) -> ir.Node:
    """Append the product of `frames` with the kernel `weight`, scaled by `peak`.

    Return its Linear node. The result is [N, outputs, frames]; the bias of the convolution is added
    after the scaling.
    """
    node, batch, shape = builder.node, _get_batch(geometry), list(geometry.result)
    frame_length = _count_frame_blocks(geometry) * geometry.strides[0]
    taps = np.zeros((geometry.outputs, frame_length), np.float32)
    taps[:, : geometry.kernel[0]] = weight[:, 0]
    zero_bias = builder.constant(np.zeros(geometry.outputs, np.float32), "none")
    product = builder(
        "Linear",
        [frames, builder.constant(taps, "taps"), zero_bias],
        [batch, int(geometry.result[2] or 0), geometry.outputs],
        "product",
        domain=ir.FUNCTION_DOMAIN,
    )
    layer = builder.nodes[-1]
    transposed = builder("Transpose", [product], shape, "turned", {"perm": [0, 2, 1]})
    scaled = builder("Mul", [transposed, peak], shape, "scaled")
    bias = get_constant_bias(node)
    if bias is not None:
        bias_column = builder.constant(bias.reshape(-1, 1), "bias")
        builder("Add", [scaled, bias_column], shape, "shifted")
    return layer


def collect_host_reasons(model: ir.Model) -> dict[str, str]:
    """Return node name -> reason, for the nodes of `model` that rewrites assign to the host."""
    return {
        str(node.name): node.metadata_props[HOST_REASON_KEY]
        for node in model.graph
        if HOST_REASON_KEY in node.metadata_props
    }


def _is_consumed_by_host(node: ir.Node, target: Target) -> bool:
    """Whether the host computes all consumers of `node`; False if there are none.

    For a consumer that only moves data, its own consumers count.
    """
    consumers = [use.node for value in node.outputs for use in value.uses()]
    if not consumers:
        return False
    for consumer in consumers:
        op, _ = find_lowering_rule(consumer, target)
        if op is not None and op.is_data_movement:
            if not _is_consumed_by_host(consumer, target):
                return False
        elif can_lower(consumer, target):
            return False
    return True
