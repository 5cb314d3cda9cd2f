"""Replace a 1-D transposed convolution by a convolution that computes all phases of the result.

With stride s, ``y[o] = sum x[i] * w[t]`` over ``i*s + t = o + p``. For ``o + p = m*s + r`` that is
a convolution of x with every s-th tap, ``sum x[m - j] * w[j*s + r]``: one for each phase r. They
are the outputs of one convolution, which are interleaved, ``[N, s, O*M] -> [N, O*M, s] ->
[N, O, M*s]``, and sliced to the length of y. Each element is the same sum, rounded once: exact.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from ....operators.conv.lowering import Conv1d
from ....targets import Target
from .._base import RewriteBuilder, get_constant_bias, is_standard_op

__all__ = ["convert_conv_transpose1d"]


def convert_conv_transpose1d(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a 1-D ConvTranspose by Conv, Reshape, Transpose, Reshape and a Slice.

    The Conv computes the `stride` phases of the result as channels, which are then interleaved.
    Only if the target has Conv1d, for constant weights, known lengths, explicit pads and one group.
    Returns the description and the cost of the change, or None without a change.
    """
    if not is_standard_op(node, "ConvTranspose") or not Conv1d().is_available(target):
        return None
    if not _has_supported_form(node):
        return None
    weight, bias = ir.require_const_value(node.inputs[1]), get_constant_bias(node)
    in_length = int(ir.require_shape(node.inputs[0])[2] or 1)
    out_length = int(ir.require_shape(node.outputs[0])[2] or 1)
    stride, dilation, pad = (
        (ir.get_attr(node, name) or [default])[0]
        for name, default in (("strides", 1), ("dilations", 1), ("pads", 0))
    )
    taps = _dilate_weight(weight, dilation, stride)
    outputs, tap_count = weight.shape[1], taps.shape[2] // stride
    first, last = pad // stride, (out_length - 1 + pad) // stride
    pads = [tap_count - 1 - first, last - in_length + 1]
    builder = RewriteBuilder(model, node)
    value = builder.slice_axis(
        ir.require_input(node), 2, max(0, -pads[0]), in_length - max(0, -pads[1]), "read"
    )
    # [I, O, j*s + r] -> [r, O, I, j], the last tap first
    phases = taps.reshape(*weight.shape[:2], tap_count, stride)[:, :, ::-1].transpose(3, 1, 0, 2)
    phases = np.ascontiguousarray(phases.reshape(stride * outputs, -1, tap_count))
    inputs = [value, builder.constant(phases, "phases")]
    if bias is not None:
        inputs.append(builder.constant(np.tile(bias, stride), "phases_bias"))
    phase_length = last - first + 1
    batch = (builder.result.shape or ["N"])[0]
    attributes = {"kernel_shape": [tap_count], "pads": [max(0, size) for size in pads]}
    shape = [batch, stride * outputs, phase_length]
    value = builder("Conv", inputs, shape, "phases", attributes)
    if stride > 1:
        value = builder.reshape(value, [stride, outputs * phase_length], "by_phase")
        shape = [batch, outputs * phase_length, stride]
        value = builder("Transpose", [value], shape, "woven", {"perm": [0, 2, 1]})
        value = builder.reshape(value, [outputs, phase_length * stride], "line")
    start = pad - first * stride
    builder.slice_axis(value, 2, start, start + out_length, "cut")
    builder.replace_node()
    return (
        f"1-D transposed convolution computed as a convolution of {stride} interleaved phases",
        "exact",
    )


def _has_supported_form(node: ir.Node) -> bool:
    """Whether the ConvTranspose `node` is 1-D with known lengths, explicit pads and one group.

    Weight and bias must be constants; an `output_shape` excludes it.
    """
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        return False
    weight = ir.const_value(node.inputs[1])
    if weight is None or weight.ndim != 3 or ir.get_attr(node, "group", 1) != 1:
        return False
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if has_bias and get_constant_bias(node) is None:
        return False
    in_shape, out_shape = (ir.get_shape(value) or () for value in (node.inputs[0], node.outputs[0]))
    return len(in_shape) == 3 and None not in (*in_shape[1:], *out_shape[1:])


def _dilate_weight(weight: np.ndarray, dilation: int, stride: int) -> np.ndarray:
    """Return `weight` [I, O, taps] with `dilation` - 1 zeros between its taps.

    Zeros at the end make the number of taps a multiple of `stride`.
    """
    count = (weight.shape[2] - 1) * dilation + 1
    dilated = np.zeros((*weight.shape[:2], -(-count // stride) * stride), weight.dtype)
    dilated[:, :, :count:dilation] = weight
    return dilated
