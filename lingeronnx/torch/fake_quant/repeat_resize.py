"""Fake quantizer of constant indices along each axis: expand, tile, pad, resize and slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simulator import kernels as k

from .common import FakeQuantContext, FakeQuantizer

__all__ = ["KERNELS"]


def _select_indices(
    kernel: k.IndexSelect, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Select constant indices along each axis of the input; negative ones give the fill value.

    `kernel.indices` has the indices by axis, None for all of an axis. Returns a tuple of one
    tensor.
    """
    (x,) = inputs
    for axis, index in enumerate(kernel.indices):
        if index is None:
            continue
        # The copy makes negative strides contiguous.
        indices = torch.from_numpy(np.array(index, np.int64)).to(x.device)
        x = x.index_select(axis, indices.clamp(min=0))
        gaps = (indices < 0).reshape(-1, *(1,) * (x.ndim - axis - 1))
        if bool(gaps.any()):
            assert kernel.fill_value is not None
            x = torch.where(gaps, float(kernel.fill_value), x)
    return (x,)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.IndexSelect: _select_indices,
}
