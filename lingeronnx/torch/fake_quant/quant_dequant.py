"""Fake quantizers at the border of the integers: quantize, dequantize, requantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simulator import kernels as k

from .common import FakeQuantContext, FakeQuantizer, run_kernel
from .rounding import FLOAT32_EXACT, requantize, round_with_gradient, straight_through

__all__ = ["KERNELS"]


def _quant(kernel: k.Quant, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Quantize real values to the simulator's counts, with the gradient of clipped rounding.

    The counts include the zero point; those of the rule "luna" have at most 8 bits.
    """
    (x,) = inputs
    exact = run_kernel(kernel, [x.detach().float().cpu().numpy()], x)[0]
    bits = min(kernel.bits, 8) if kernel.rule == "luna" else kernel.bits
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    smooth = (x.double() if kernel.bits > 24 else x) * kernel.scale
    if not kernel.zero_point:
        return (round_with_gradient(smooth, low, high, context.log2_scale, exact),)
    centered = round_with_gradient(
        smooth,
        low - kernel.zero_point,
        high - kernel.zero_point,
        context.log2_scale,
        exact - kernel.zero_point,
    )
    return (centered + kernel.zero_point,)


def _dequant(
    kernel: k.Dequant, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Convert counts to real values: (count - zero point) / scale; return (float32 tensor,)."""
    return (((inputs[0].double() - kernel.zero_point) / kernel.scale).float(),)


def _requant(
    kernel: k.Requant, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Change the scale of counts, with saturation or with wrap-around.

    Only a left shift without saturation wraps around, at the width of the output type.
    """
    (x,) = inputs
    shift = kernel.rescale.pow2_shift
    if not kernel.saturate and shift is not None and shift < 0:
        bits = 8 * kernel.rescale.dtype.itemsize
        shifted = x.double() * 2.0**-shift
        half_range = 2.0 ** (bits - 1)
        wrapped = torch.remainder(shifted.detach() + half_range, 2.0**bits) - half_range
        return (straight_through(shifted if bits > 24 else shifted.float(), wrapped),)
    return (
        requantize(
            x.double() if context.max_abs() >= FLOAT32_EXACT else x,
            kernel.rescale,
            context.max_abs(),
            context.log2_scale,
        ),
    )


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Dequant: _dequant,
    k.Quant: _quant,
    k.Requant: _requant,
}
