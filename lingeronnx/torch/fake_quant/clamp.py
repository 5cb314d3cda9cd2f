"""Fake quantizer of Relu and Clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simulator import kernels as k

from .common import FakeQuantContext, FakeQuantizer

__all__ = ["KERNELS"]


def _clip(kernel: k.Clip, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Clamp counts to the kernel's bounds, which are limited to their integer type.

    Returns a tuple of one tensor.
    """
    max_abs = context.max_abs()
    low, high = (min(max(bound, -max_abs), max_abs - 1) for bound in kernel.clamp_bounds)
    return (torch.clamp(inputs[0], low, high),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Clip: _clip,
    k.Relu: _clip,
}
