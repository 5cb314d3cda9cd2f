"""Fake quantizers of operators that change the shape, or the order of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator import kernels as k
from simulator.kernel import TensorSpec

from .common import FakeQuantContext, FakeQuantizer

__all__ = ["KERNELS"]


def _reshape(
    kernel: k.Reshape, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return a tuple of `inputs[0]` in the shape that the kernel infers from its shape."""
    (spec,) = kernel.infer(TensorSpec(tuple(inputs[0].shape), np.dtype(np.int8)))
    return (inputs[0].reshape(spec.shape),)


def _transpose(
    kernel: k.Transpose, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return a tuple of `inputs[0]` with its axes permuted as in `kernel.perm`."""
    return (inputs[0].permute(tuple(kernel.perm)),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Reshape: _reshape,
    k.Transpose: _transpose,
}
