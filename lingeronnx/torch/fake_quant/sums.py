"""Fake quantizers of layers with weights and of two activations: exact sums and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k
from simulator.fixed_point import Rescale
from simulator.kernel import TensorSpec
from simulator.kernels.loops._common import image_size

from ...operators.formats.layers import FloatLinear
from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    get_accumulator_bound,
    pad_window,
    run_kernel,
    subtract_zero_points,
    to_counts,
    to_image,
    to_integers,
)
from .rounding import requantize, round_with_gradient

__all__ = ["SUM_FAKE_QUANTIZERS"]

# ---- weights ------------------------------------------------------------------------------------


def _conv(kernel: k.Conv, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Compute a convolution of counts in exact arithmetic, and requantize, with gradients.

    Padding stands for real 0. Returns a tuple of one tensor of counts.
    """
    (x,) = subtract_zero_points(inputs, kernel.zero)
    max_input = context.max_abs() + abs(kernel.zero)
    weight = context.get_parameter(1, kernel.weight, x)
    bias = context.get_parameter(2, kernel.bias, x)
    bound = get_accumulator_bound(weight, bias, max_input)
    axes, window = weight.ndim - 2, kernel._window()
    x, weight, bias = cast_to_exact_dtype(bound, pad_window(x, window, axes), weight, bias)
    convolve = F.conv2d if axes == 2 else F.conv1d
    acc = convolve(
        x, weight, bias, window.strides[2 - axes :], 0, window.dilations[2 - axes :], kernel.group
    )
    return (requantize(acc, kernel.rescale, bound, context.log2_scale),)


def _conv_transpose(
    kernel: k.ConvTranspose, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Convolve counts transposed, in exact arithmetic, and requantize, with gradients.

    Returns a tuple of one tensor of the shape that the kernel infers; outputs that `output_padding`
    adds beyond all taps are equal to the bias.
    """
    (x,) = subtract_zero_points(inputs, kernel.zero)
    max_input = context.max_abs() + abs(kernel.zero)
    weight = context.get_parameter(1, kernel.weight, x)
    bias = context.get_parameter(2, kernel.bias, x)
    # An output is at most the sum over all weights of its channel.
    channel_sums = weight.detach().abs().transpose(0, 1).flatten(1).sum(1)
    max_bias = 0 if bias is None else int(bias.detach().abs().max().item())
    bound = int(channel_sums.max().item()) * max_input + max_bias
    window = kernel._window()
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    x, weight, bias = cast_to_exact_dtype(bound, to_image(x), to_image(weight), bias)
    top, left = window.pads[:2]
    acc = F.conv_transpose2d(
        x, weight, bias, stride=window.strides, groups=kernel.group, dilation=window.dilations
    )
    height, width = image_size(spec.shape[2:])
    missing = [max(top + height - acc.shape[2], 0), max(left + width - acc.shape[3], 0)]
    if any(missing):  # outputs that output_padding adds beyond all taps are equal to the bias
        fill = acc.new_zeros(1, acc.shape[1], 1, 1) if bias is None else bias.reshape(1, -1, 1, 1)
        acc = F.pad(acc - fill, (0, missing[1], 0, missing[0])) + fill
    acc = acc[:, :, top : top + height, left : left + width].reshape(spec.shape)
    return (requantize(acc, kernel.rescale, bound, context.log2_scale),)


def _linear(kernel: k.Linear, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Multiply counts by the weights of a fully connected layer, add its bias, and requantize.

    Exact, with gradients. Returns a tuple of one tensor of counts.
    """
    (x,) = subtract_zero_points(inputs, kernel.zero)
    max_input = context.max_abs() + abs(kernel.zero)
    weight, bias = _get_weight(kernel, x, context), context.get_parameter(2, kernel.bias, x)
    bound = get_accumulator_bound(weight, bias, max_input)
    x, weight, bias = cast_to_exact_dtype(bound, x, weight, bias)
    return (
        requantize(F.linear(x, weight, bias), kernel.rescale, bound, context.log2_scale, axis=-1),
    )


def _get_weight(kernel: k.Linear | FloatLinear, x: Any, context: FakeQuantContext) -> Any:
    """Return the weights of a fully connected layer as counts, times the factors of their groups.

    They are the trained ones in `context`, or else the kernel's own; on the device of `x`.
    """
    weight = context.get_parameter(1, kernel.weight, x)
    return weight if kernel.factors is None else weight * to_counts(kernel.factors, x)


def _float_linear(
    kernel: FloatLinear, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Compute a fully connected layer with float output, in float64; return (float32 tensor,).

    The sums are divided by the scale, which may be one per output.
    """
    x = inputs[0].double() - kernel.zero
    weight, bias = _get_weight(kernel, x, context), context.get_parameter(2, kernel.bias, x)
    acc = F.linear(x, weight.double(), None if bias is None else bias.double())
    scale = kernel.scale
    if isinstance(scale, np.ndarray):
        scale = torch.from_numpy(scale).to(acc.device)
    return ((acc / scale).float(),)


def _affine(
    kernel: k.ChannelAffine, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Multiply counts by a factor per channel (axis 1), add a bias, and requantize, exactly.

    Returns a tuple of one tensor of counts.
    """
    (x,) = subtract_zero_points(inputs, kernel.zero)
    max_input = context.max_abs() + abs(kernel.zero)
    weight = context.get_parameter(1, kernel.weight, x)
    bias = context.get_parameter(2, kernel.bias, x)
    bound = get_accumulator_bound(weight[:, None], bias, max_input)
    x, weight, bias = cast_to_exact_dtype(bound, x, weight, bias)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    acc = x * weight.reshape(shape) + bias.reshape(shape)
    return (requantize(acc, kernel.rescale, bound, context.log2_scale),)


# ---- two activations ----------------------------------------------------------------------------


def _add_shift(
    kernel: k.AddShift, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Add or subtract two activations: both shifted to the output scale first, then saturated.

    Returns a tuple of one tensor of counts.
    """
    shifts = (kernel.shift_x, kernel.shift_y)
    operands = [
        requantize(x, Rescale.from_shift(shift, kernel.bits), context.max_abs(index))
        for index, (x, shift) in enumerate(zip(inputs, shifts, strict=True))
    ]
    half_range = 1 << (kernel.bits - 1)
    total = operands[0] + kernel.sign * operands[1]
    return (round_with_gradient(total, -half_range, half_range - 1, context.log2_scale),)


def _add_scaled(
    kernel: k.AddScaled, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Add or subtract two activations at a fine common scale, and requantize the result.

    Returns a tuple of one tensor of counts.
    """
    rules = (kernel.rescale_x, kernel.rescale_y)
    operands = [
        requantize(x.double(), rule, context.max_abs(index))
        for index, (x, rule) in enumerate(zip(inputs, rules, strict=True))
    ]
    total = operands[0] + kernel.sign * operands[1]
    bound = sum(rule.output_bound(context.max_abs(index)) for index, rule in enumerate(rules))
    return (requantize(total, kernel.out, bound, context.log2_scale),)


def _mul(kernel: k.Mul, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Multiply the two inputs elementwise as counts, exactly, and requantize, with gradients.

    Returns a tuple of one tensor of counts.
    """
    bound = context.max_abs() * context.max_abs(1)
    x, y = cast_to_exact_dtype(bound, *inputs)
    return (requantize(x * y, kernel.rescale, bound, context.log2_scale),)


def _matmul(kernel: k.MatMul, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Multiply the two inputs as matrices of counts, exactly, and requantize, with gradients.

    Returns a tuple of one tensor of counts.
    """
    bound = context.max_abs() * context.max_abs(1) * inputs[0].shape[-1]
    x, y = cast_to_exact_dtype(bound, *inputs)
    return (requantize(x @ y, kernel.rescale, bound, context.log2_scale),)


def _div_single(
    kernel: k.DivSingle, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Divide like the simulator; the gradient of a division by zero is zero.

    Returns the simulator's counts with the gradient of the real quotient.
    """
    x, y = (tensor.double() for tensor in inputs)
    safe = torch.where(y == 0, 1.0, y)
    smooth = torch.where(y == 0, 0.0, x / safe) * (kernel.scale_o * kernel.scale_y / kernel.scale_x)
    (exact,) = run_kernel(
        kernel,
        [
            to_integers(tensor, dtype)
            for tensor, dtype in zip(inputs, context.input_dtypes, strict=True)
        ],
        smooth,
    )
    half_range = 1 << (kernel.bits - 1)
    return (round_with_gradient(smooth, -half_range, half_range - 1, context.log2_scale, exact),)


#: Kernel -> its fake quantizer.
SUM_FAKE_QUANTIZERS: Mapping[type, FakeQuantizer] = {
    k.AddScaled: _add_scaled,
    k.AddShift: _add_shift,
    k.ChannelAffine: _affine,
    k.Conv: _conv,
    k.ConvTranspose: _conv_transpose,
    k.DivSingle: _div_single,
    k.Linear: _linear,
    k.MatMul: _matmul,
    k.Mul: _mul,
    FloatLinear: _float_linear,
}
