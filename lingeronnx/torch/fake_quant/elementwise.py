"""Fake quantizers of operators on two activations, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simulator import kernels as k
from simulator.fixed_point import Rescale

from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    run_kernel,
    run_without_gradient,
    to_integers,
)
from .rounding import requantize, round_with_gradient

__all__ = ["KERNELS"]


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


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.AddScaled: _add_scaled,
    k.AddShift: _add_shift,
    k.Div: run_without_gradient,
    k.DivSingle: _div_single,
    k.Mul: _mul,
}
