"""Fake quantizers of maxima and means over windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k
from simulator.kernel import TensorSpec
from simulator.kernels.loops._common import SlidingWindow, image_size

from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    pad_window,
    run_kernel,
    to_image,
    to_integers,
)
from .rounding import requantize, round_with_gradient

__all__ = ["KERNELS"]


def _get_ceil_mode_overhang(kernel: Any, x: Any, window: SlidingWindow) -> list[int]:
    """Return the elements by which the last windows exceed the padded image: (rows, columns).

    In elements, at least 0; only ceil_mode gives more.
    """
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    input_size, output_size = image_size(x.shape[2:]), image_size(spec.shape[2:])
    overhang = []
    for axis in (0, 1):
        window_span = window.dilations[axis] * (window.kernel[axis] - 1) + 1
        covered = (output_size[axis] - 1) * window.strides[axis] + window_span
        padded_size = input_size[axis] + window.pads[axis] + window.pads[axis + 2]
        overhang.append(max(covered - padded_size, 0))
    return overhang


def _max_pool(
    kernel: k.MaxPool, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return a tuple of the maximum of each window of counts; padding never wins.

    A window of padding only gives the smallest integer of the input type.
    """
    (x,) = inputs
    window, axes = kernel._window(), x.ndim - 2
    filled = pad_window(x, window, axes, -math.inf, _get_ceil_mode_overhang(kernel, x, window))
    pool = F.max_pool2d if axes == 2 else F.max_pool1d
    y = pool(
        filled,
        window.kernel[2 - axes :],
        window.strides[2 - axes :],
        0,
        window.dilations[2 - axes :],
    )
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    y = y[tuple(slice(n) for n in spec.shape)]
    # A window that contains only padding gives the smallest integer of the input type.
    return (torch.where(y == -math.inf, -float(context.max_abs()), y),)


def _avg_pool(
    kernel: k.AvgPool, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Sum each window of counts exactly, and requantize; the divisor is in the kernel's rule.

    Returns a tuple of one tensor of counts.
    """
    (x,) = inputs
    window = kernel._window()
    bound = window.kernel[0] * window.kernel[1] * context.max_abs()
    (x,) = cast_to_exact_dtype(bound, x)
    return (requantize(_sum_windows(kernel, x, window), kernel.rule, bound, context.log2_scale),)


def _sum_windows(kernel: Any, x: Any, window: SlidingWindow, padding_value: float = 0.0) -> Any:
    """Return the sum of each window of x [N, C, *space], with `padding_value` in the padding.

    Elements beyond the padding (ceil_mode) count as 0.
    """
    axes = x.ndim - 2
    overhang = _get_ceil_mode_overhang(kernel, x, window)
    filled = F.pad(
        pad_window(x, window, axes, padding_value), [0, overhang[1], 0, overhang[0]][: 2 * axes]
    )
    total = F.avg_pool2d(to_image(filled), window.kernel, window.strides, divisor_override=1)
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    height, width = image_size(spec.shape[2:])
    return total[:, :, :height, :width].reshape(spec.shape)


def _mean_pool(kernel: k.Mean, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Divide the sum of each window by the number of its elements, or by the kernel's divisor.

    Returns the simulator's counts with the gradient of the real mean.
    """
    (x,) = inputs
    window = kernel._window(TensorSpec(tuple(x.shape), context.input_dtypes[0]))
    element_count = _sum_windows(
        kernel, torch.ones_like(x[:1, :1]), window, float(kernel.count_include_pad)
    ).clamp(min=1)
    total = _sum_windows(kernel, x.double(), window) * 2.0**kernel.shift
    (exact,) = run_kernel(kernel, [to_integers(x, context.input_dtypes[0])], x)
    top = 1 << (kernel.bits - 1)
    return (
        round_with_gradient(
            total / (kernel.divisor or element_count), -top, top - 1, context.log2_scale, exact
        ),
    )


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.AvgPool: _avg_pool,
    k.MaxPool: _max_pool,
    k.Mean: _mean_pool,
}
