"""Fake quantizers of weights, and of two activations: sums and products in exact widths."""

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

from ...formats.layers import FloatLinear
from .fake_common import (
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

# ---- weights -----------------------------------------------------------------------------------------------------


def _conv(kernel: k.Conv, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,), size = subtract_zero_points(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    bound = get_accumulator_bound(weight, bias, size)
    axes, window = weight.ndim - 2, kernel._window()
    x, weight, bias = cast_to_exact_dtype(bound, pad_window(x, window, axes), weight, bias)
    convolve = F.conv2d if axes == 2 else F.conv1d
    acc = convolve(
        x, weight, bias, window.strides[2 - axes :], 0, window.dilations[2 - axes :], kernel.group
    )
    return (requantize(acc, kernel.rescale, bound, at.log2_scale),)


def _conv_transpose(
    kernel: k.ConvTranspose, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    (x,), size = subtract_zero_points(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    # Every output adds up at most all inputs' taps of its channel.
    bound = int(weight.detach().abs().transpose(0, 1).flatten(1).sum(1).max().item()) * size + (
        0 if bias is None else int(bias.detach().abs().max().item())
    )
    window = kernel._window()
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    x, weight, bias = cast_to_exact_dtype(bound, to_image(x), to_image(weight), bias)
    top, left = window.pads[:2]
    acc = F.conv_transpose2d(
        x, weight, bias, stride=window.strides, groups=kernel.group, dilation=window.dilations
    )
    height, width = image_size(spec.shape[2:])
    short = [max(top + height - acc.shape[2], 0), max(left + width - acc.shape[3], 0)]
    if any(short):  # what output_padding adds lies beyond every tap, where only the bias is
        beyond = acc.new_zeros(1, acc.shape[1], 1, 1) if bias is None else bias.reshape(1, -1, 1, 1)
        inner = acc - beyond
        acc = F.pad(inner, (0, short[1], 0, short[0])) + beyond
    acc = acc[:, :, top : top + height, left : left + width].reshape(spec.shape)
    return (requantize(acc, kernel.rescale, bound, at.log2_scale),)


def _linear(kernel: k.Linear, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,), size = subtract_zero_points(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = _get_weight(kernel, x, at), at.held(2, kernel.bias, x)
    bound = get_accumulator_bound(weight, bias, size)
    x, weight, bias = cast_to_exact_dtype(bound, x, weight, bias)
    return (requantize(F.linear(x, weight, bias), kernel.rescale, bound, at.log2_scale, axis=-1),)


def _get_weight(kernel: k.Linear | FloatLinear, x: Any, at: FakeQuantContext) -> Any:
    """Return the weights, times their groups' factors where there are any."""
    weight = at.held(1, kernel.weight, x)
    return weight if kernel.factors is None else weight * to_counts(kernel.factors, x)


def _float_linear(
    kernel: FloatLinear, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    x = inputs[0].double() - kernel.zero
    weight, bias = _get_weight(kernel, x, at), at.held(2, kernel.bias, x)
    acc = F.linear(x, weight.double(), None if bias is None else bias.double())
    scale = (
        torch.from_numpy(kernel.scale).to(acc.device)
        if isinstance(kernel.scale, np.ndarray)
        else kernel.scale
    )
    return ((acc / scale).float(),)


def _affine(
    kernel: k.ChannelAffine, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    (x,), size = subtract_zero_points(inputs, kernel.zero), at.size() + abs(kernel.zero)
    weight, bias = at.held(1, kernel.weight, x), at.held(2, kernel.bias, x)
    bound = get_accumulator_bound(weight[:, None], bias, size)
    x, weight, bias = cast_to_exact_dtype(bound, x, weight, bias)
    place = (1, -1, *(1,) * (x.ndim - 2))
    return (
        requantize(
            x * weight.reshape(place) + bias.reshape(place), kernel.rescale, bound, at.log2_scale
        ),
    )


# ---- two activations ---------------------------------------------------------------------------------------------


def _add_shift(kernel: k.AddShift, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    shifts = (kernel.shift_x, kernel.shift_y)
    parts = [
        requantize(v, Rescale.from_shift(s, kernel.bits), at.size(i))
        for i, (v, s) in enumerate(zip(inputs, shifts, strict=True))
    ]
    top = 1 << (kernel.bits - 1)
    return (round_with_gradient(parts[0] + kernel.sign * parts[1], -top, top - 1, at.log2_scale),)


def _add_scaled(
    kernel: k.AddScaled, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    rules = (kernel.rescale_x, kernel.rescale_y)
    fine = [
        requantize(v.double(), rule, at.size(i))
        for i, (v, rule) in enumerate(zip(inputs, rules, strict=True))
    ]
    total = fine[0] + kernel.sign * fine[1]
    bound = sum(rule.output_bound(at.size(i)) for i, rule in enumerate(rules))
    return (requantize(total, kernel.out, bound, at.log2_scale),)


def _mul(kernel: k.Mul, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    bound = at.size() * at.size(1)
    x, y = cast_to_exact_dtype(bound, *inputs)
    return (requantize(x * y, kernel.rescale, bound, at.log2_scale),)


def _matmul(kernel: k.MatMul, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    bound = at.size() * at.size(1) * inputs[0].shape[-1]
    x, y = cast_to_exact_dtype(bound, *inputs)
    return (requantize(x @ y, kernel.rescale, bound, at.log2_scale),)


def _div_single(
    kernel: k.DivSingle, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    """Where it divides by zero there is no slope."""
    x, y = (v.double() for v in inputs)
    safe = torch.where(y == 0, 1.0, y)
    smooth = torch.where(y == 0, 0.0, x / safe) * (kernel.scale_o * kernel.scale_y / kernel.scale_x)
    (exact,) = run_kernel(
        kernel,
        [to_integers(v, kind) for v, kind in zip(inputs, at.input_dtypes, strict=True)],
        smooth,
    )
    top = 1 << (kernel.bits - 1)
    return (round_with_gradient(smooth, -top, top - 1, at.log2_scale, exact),)


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
