"""Fake quantizer of a factor and a bias per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator import kernels as k

from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    get_accumulator_bound,
    subtract_zero_points,
)
from .rounding import requantize

__all__ = ["KERNELS"]


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


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.ChannelAffine: _affine,
}
