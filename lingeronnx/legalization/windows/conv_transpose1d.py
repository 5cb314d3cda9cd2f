"""A transposed convolution of lines as a convolution that computes all phases of the result at once: exact.

With stride s, ``y[o] = sum x[i] * w[t]`` over ``i*s + t = o + p``. For ``o + p = m*s + r`` that is
a convolution of x with every s-th tap, ``sum x[m - j] * w[j*s + r]``: one for each phase r. They
are the outputs of one convolution, which are moved side by side, ``[N, s, O*M] -> [N, O*M, s] ->
[N, O, M*s]``, and cut to the length of y. Each number is the same sum, rounded once.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...ops.layers.conv import Conv1d
from ...targets import Target
from .._base import RewriteBuilder

__all__ = ["convert_conv_transpose1d"]


def convert_conv_transpose1d(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write a ConvTranspose of one dimension as Conv, Reshape, Transpose, Reshape and a Slice."""
    if node.op_type != "ConvTranspose" or node.domain or not Conv1d().is_available(target):
        return None
    weight, bias = (ir.const_value(v) for v in (*node.inputs[1:], None)[:2])
    source, result = (ir.get_shape(v) or () for v in (node.inputs[0], node.outputs[0]))
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    if (
        weight is None
        or weight.ndim != 3
        or (biased and bias is None)
        or None in (*source[1:], *result[1:])
    ):
        return None
    implicit = (
        ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes
    )
    if implicit or ir.get_attr(node, "group", 1) != 1 or len(source) != 3:
        return None
    stride = (ir.get_attr(node, "strides") or [1])[0]
    taps = _dilate_weight(weight, (ir.get_attr(node, "dilations") or [1])[0], stride)
    size, length, pad = (
        int(source[2] or 1),
        int(result[2] or 1),
        (ir.get_attr(node, "pads") or [0])[0],
    )
    outputs, count = weight.shape[1], taps.shape[2] // stride
    first, last = pad // stride, (length - 1 + pad) // stride
    pads = [count - 1 - first, last - size + 1]
    make = RewriteBuilder(model, node)
    value = make.slice_axis(
        ir.require_input(node), 2, max(0, -pads[0]), size - max(0, -pads[1]), "read"
    )
    # [I, O, j*s + r] -> [r, O, I, j], the last tap first
    phases = taps.reshape(*weight.shape[:2], count, stride)[:, :, ::-1].transpose(3, 1, 0, 2)
    inputs = [
        value,
        make.constant(np.ascontiguousarray(phases.reshape(stride * outputs, -1, count)), "phases"),
    ]
    if bias is not None:
        inputs.append(make.constant(np.tile(bias, stride), "phases_bias"))
    places = last - first + 1
    batch = (make.result.shape or ["N"])[0]
    attributes = {"kernel_shape": [count], "pads": [max(0, p) for p in pads]}
    value = make("Conv", inputs, [batch, stride * outputs, places], "phases", attributes)
    if stride > 1:
        value = make.reshape(value, [stride, outputs * places], "by_phase")
        value = make(
            "Transpose", [value], [batch, outputs * places, stride], "woven", {"perm": [0, 2, 1]}
        )
        value = make.reshape(value, [outputs, places * stride], "line")
    make.slice_axis(value, 2, pad - first * stride, pad - first * stride + length, "cut")
    make.replace_node()
    return (
        f"a transposed convolution of lines as a convolution of {stride} phases, woven together",
        "exact",
    )


def _dilate_weight(weight: np.ndarray, dilation: int, stride: int) -> np.ndarray:
    """Return the weight [I, O, taps] with zeros between dilated taps, and behind up to a multiple of the stride."""
    count = (weight.shape[2] - 1) * dilation + 1
    spread = np.zeros((*weight.shape[:2], -(-count // stride) * stride), weight.dtype)
    spread[:, :, :count:dilation] = weight
    return spread
