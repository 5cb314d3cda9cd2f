"""Fake quantizers of convolutions and transposed convolutions: exact sums of products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.nn import functional as F

from simulator import kernels as k
from simulator.kernel import TensorSpec
from simulator.kernels.loops._common import image_size

from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    get_accumulator_bound,
    pad_window,
    subtract_zero_points,
    to_image,
)
from .rounding import requantize

__all__ = ["KERNELS"]


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


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Conv: _conv,
    k.ConvTranspose: _conv_transpose,
}
