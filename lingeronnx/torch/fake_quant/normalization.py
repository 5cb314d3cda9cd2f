"""Fake quantizers of softmax, layer and instance norm, with gradients of the float functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from simulator import kernels as k
from simulator.kernels.layer_norm import InstanceNorm

from .common import FakeQuantContext, FakeQuantizer, run_kernel, to_flat_int64, to_integers
from .rounding import get_multiplier, round_with_gradient

__all__ = ["KERNELS"]


def _softmax(
    kernel: k.Softmax, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Compute softmax of the counts `inputs[0]`; return a tuple of one tensor of counts.

    The values are those of the simulator's integer kernel; the gradient is that of the float
    softmax.
    """
    return _softmax_rows(kernel, inputs[0], context, torch.softmax)


def _log_softmax(
    kernel: k.LogSoftmax, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Compute log softmax of the counts `inputs[0]`; return a tuple of one tensor of counts.

    The values are those of the simulator's integer kernel; the gradient is that of the float
    function.
    """
    return _softmax_rows(kernel, inputs[0], context, torch.log_softmax)


def _softmax_rows(kernel: Any, x: Any, context: FakeQuantContext, function: Any) -> tuple[Any, ...]:
    """Run a Softmax or LogSoftmax kernel on counts `x`, with the gradient of the float `function`.

    The values are those of the simulator. `function` (torch's softmax or log_softmax) runs along
    the kernel's axis, or over all axes from it on as one unless the kernel has a single axis.
    Returns a tuple of one tensor of counts.
    """
    table, middle = kernel.input_table, len(kernel.input_table) // 2
    # The table has the real values of counts with 25 fractional bits.
    unit = (int(table[middle + 16]) - int(table[middle - 16])) / 32 / 2.0**25
    axis = kernel.axis % x.ndim
    if kernel.single_axis:
        real = function(x * unit, axis)
    else:
        real = function((x * unit).reshape(*x.shape[:axis], -1), -1).reshape(x.shape)
    smooth = real * (2.0**15 * get_multiplier(kernel.rescale))
    (exact,) = run_kernel(kernel, [to_integers(x, context.input_dtypes[0])], x)
    half_range = 1 << (kernel.rescale.bits - 1)
    return (round_with_gradient(smooth, -half_range, half_range - 1, context.log2_scale, exact),)


def _layer_norm(
    kernel: k.LayerNorm, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Normalize the last axes of the counts `inputs[0]` with the kernel's gamma and beta.

    The values are those of the simulator's integer kernel, the gradient (also to gamma and beta) is
    that of the float formula. Returns a tuple of one tensor of counts.
    """
    (x,) = inputs
    gamma = context.get_parameter(1, kernel.gamma, x)
    beta = context.get_parameter(2, kernel.beta, x)
    element_count = gamma.numel()
    flat = x.reshape(*x.shape[: x.ndim - kernel.row_axes], element_count)
    variance = flat.var(-1, unbiased=False, keepdim=True) + kernel.epsilon / element_count**2
    normalized = (flat - flat.mean(-1, keepdim=True)) * torch.rsqrt(variance.clamp(min=1e-12))
    scaled = normalized * gamma.reshape(-1) * 2.0**kernel.fraction_bits + beta.reshape(-1)
    smooth = (scaled * get_multiplier(kernel.rescale)).reshape(x.shape)
    bound_kernel = replace(kernel, gamma=to_flat_int64(gamma), beta=to_flat_int64(beta))
    (exact,) = run_kernel(bound_kernel, [to_integers(x, context.input_dtypes[0])], x)
    half_range = 1 << (kernel.rescale.bits - 1)
    return (round_with_gradient(smooth, -half_range, half_range - 1, context.log2_scale, exact),)


def _instance_norm(
    kernel: InstanceNorm, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Normalize each channel of the counts `inputs[0]` with the kernel's gamma and beta.

    The values are those of the simulator's integer kernel, the gradient (also to gamma and beta) is
    that of the float formula. Returns a tuple of one tensor of counts.
    """
    (x,) = inputs
    gamma = context.get_parameter(1, kernel.gamma, x)
    beta = context.get_parameter(2, kernel.beta, x)
    flat = x.flatten(2)
    variance = flat.var(-1, unbiased=False, keepdim=True) + kernel.epsilon / flat.shape[-1] ** 2
    normalized = (flat - flat.mean(-1, keepdim=True)) * torch.rsqrt(variance.clamp(min=1e-12))
    scaled = normalized * gamma.reshape(-1, 1) * 2.0**15 + beta.reshape(-1, 1)
    smooth = (scaled * get_multiplier(kernel.rescale)).reshape(x.shape)
    bound_kernel = replace(kernel, gamma=to_flat_int64(gamma), beta=to_flat_int64(beta))
    (exact,) = run_kernel(bound_kernel, [to_integers(x, context.input_dtypes[0])], x)
    half_range = 1 << (kernel.rescale.bits - 1)
    return (round_with_gradient(smooth, -half_range, half_range - 1, context.log2_scale, exact),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    InstanceNorm: _instance_norm,
    k.LayerNorm: _layer_norm,
    k.LogSoftmax: _log_softmax,
    k.Softmax: _softmax,
}
