"""A long kernel over one line of samples, such as a Fourier transform of a waveform, as a product with its frames.

    y[o, t] = sum_k w[o, k] x[t*stride + k]  =  peak * sum_k w[o, k] (x[t*stride + k] / peak),
    peak = max |x|

The host cuts the frames and divides them by the largest sample of the call, so that 8 bits serve a
whisper as they serve a shout (block floating point); the product is the chip's, and the host
multiplies by the peak again. Only where what reads the layer is the host's anyway: a power, a root,
a logarithm that the chip has not.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops import can_lower, find_lowering_rule
from ...passes.layers.linear import declare_linear_function
from ...targets import Target
from .._base import RewriteBuilder, match_conv

__all__ = ["HOST_REASON_KEY", "collect_host_reasons", "convert_conv_to_frames"]

#: What the metadata of a node say that a rewrite leaves to the host: why.
HOST_REASON_KEY = "lingeronnx.host"

_HOST_REASON = "it cuts a line of samples into frames, and scales them by their largest"
_MIN_PEAK = float(np.finfo(np.float32).tiny)  # what silence is divided by


def convert_conv_to_frames(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write a convolution of one channel, whose kernel is too long, as a fully connected layer of frames."""
    conv = match_conv(node, target)
    if conv is None or target.linear_limits is None or target.conv_limits is None:
        return None
    g, weight = conv
    plain = len(g.kernel) == 1 and g.inputs == 1 and not any(g.pads) and g.dilations == (1,)
    if (
        not plain
        or g.kernel[0] <= target.conv_limits.max_kernel_1d
        or not _is_consumed_by_host(node, target)
    ):
        return None
    stride, count, batch = g.strides[0], int(g.result[2] or 0), (g.result or ["N"])[0]
    pieces = -(-g.kernel[0] // stride)  # of a frame; a frame begins with each piece of the line
    needed, given = (count + pieces - 1) * stride, int(g.input_shape[2] or 0)
    make, x = RewriteBuilder(model, node), ir.require_input(node)
    size = make("Abs", [x], list(x.shape or ()), "size")
    peak = make("GlobalMaxPool", [size], [batch, 1, 1], "largest")
    peak = make(
        "Max",
        [peak, make.constant(np.array(_MIN_PEAK, np.float32), "silence")],
        [batch, 1, 1],
        "peak",
    )
    line = make("Div", [x, peak], list(x.shape or ()), "even")
    if needed > given:  # the last frame ends with zeros, which have no weight
        pads = make.constant(np.array([0, 0, 0, 0, 0, needed - given], np.int64), "pads")
        line = make("Pad", [line, pads], [batch, 1, needed], "filled")
    line = make.slice_axis(line, 2, 0, needed, "line")
    rows = make.reshape(line, [count + pieces - 1, stride], "rows")
    parts = [
        make.slice_axis(rows, 1, first, first + count, f"piece{first}") for first in range(pieces)
    ]
    frames = (
        parts[0]
        if pieces == 1
        else make("Concat", parts, [batch, count, pieces * stride], "frames", {"axis": 2})
    )
    taps = np.zeros((g.outputs, pieces * stride), np.float32)
    taps[:, : g.kernel[0]] = weight[:, 0]
    none = make.constant(np.zeros(g.outputs, np.float32), "none")
    product = make(
        "Linear",
        [frames, make.constant(taps, "taps"), none],
        [batch, count, g.outputs],
        "product",
        domain=ir.FUNCTION_DOMAIN,
    )
    layer = make.nodes[-1]
    turned = make("Transpose", [product], list(g.result), "turned", {"perm": [0, 2, 1]})
    scaled = make("Mul", [turned, peak], list(g.result), "scaled")
    bias = (
        ir.const_value(node.inputs[2])
        if len(node.inputs) > 2 and node.inputs[2] is not None
        else None
    )
    if bias is not None:
        make("Add", [scaled, make.constant(bias.reshape(-1, 1), "bias")], list(g.result), "shifted")
    for each in make.nodes:
        if each is not layer:
            each.metadata_props[HOST_REASON_KEY] = _HOST_REASON
    make.replace_node()
    declare_linear_function(model)
    return (
        f"a kernel of {g.kernel[0]} over samples written as a product with {count} frames",
        "exact",
    )


def collect_host_reasons(model: ir.Model) -> dict[str, str]:
    """Return {node: why} of what rewrites leave to the host."""
    return {
        str(node.name): node.metadata_props[HOST_REASON_KEY]
        for node in model.graph
        if HOST_REASON_KEY in node.metadata_props
    }


def _is_consumed_by_host(node: ir.Node, target: Target) -> bool:
    """Whether all that reads the layer, behind what only moves its numbers, is beyond the chip."""
    readers = [use.node for value in node.outputs for use in value.uses()]
    if not readers:
        return False
    for reader in readers:
        op, _ = find_lowering_rule(reader, target)
        moves = op is not None and op.is_data_movement
        if not (_is_consumed_by_host(reader, target) if moves else not can_lower(reader, target)):
            return False
    return True
