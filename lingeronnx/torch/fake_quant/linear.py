"""Fake quantizers of fully connected layers and of products of two matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k

from ...operators.linear.integer_op import FloatLinear
from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    get_accumulator_bound,
    run_kernel,
    subtract_zero_points,
    to_counts,
    to_flat_int64,
    to_integers,
)
from .rounding import get_multiplier, requantize, round_with_gradient

__all__ = ["KERNELS"]


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


def _matmul(kernel: k.MatMul, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Multiply the two inputs as matrices of counts, exactly, and requantize, with gradients.

    Returns a tuple of one tensor of counts.
    """
    bound = context.max_abs() * context.max_abs(1) * inputs[0].shape[-1]
    x, y = cast_to_exact_dtype(bound, *inputs)
    return (requantize(x @ y, kernel.rescale, bound, context.log2_scale),)


def _wide_linear(
    kernel: k.WideLinear, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Compute a fully connected layer of counts of up to 32 bits by the simulator.

    The gradient, also to trained weights and biases, is that of the layer in float64. Returns a
    tuple of one tensor of counts.
    """
    (x,) = inputs
    weight = context.get_parameter(1, kernel.weight, x)
    bias = context.get_parameter(2, kernel.bias, x)
    bound_kernel = replace(
        kernel,
        weight=to_integers(weight, kernel.weight.dtype),
        bias=None if bias is None else to_flat_int64(bias),
    )
    (exact,) = run_kernel(bound_kernel, [to_integers(x, context.input_dtypes[0])], x)
    total = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    half_range = 1 << (kernel.rescale.bits - 1)
    smooth = total * get_multiplier(kernel.rescale)
    return (round_with_gradient(smooth, -half_range, half_range - 1, context.log2_scale, exact),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Linear: _linear,
    k.MatMul: _matmul,
    k.WideLinear: _wide_linear,
    FloatLinear: _float_linear,
}
