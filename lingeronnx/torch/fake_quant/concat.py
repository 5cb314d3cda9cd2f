"""Fake quantizer of Concat, which brings its inputs to one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simulator import kernels as k

from .common import FakeQuantContext, FakeQuantizer
from .rounding import requantize

__all__ = ["KERNELS"]


def _concat(kernel: k.Concat, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Concatenate the inputs on the kernel's axis, after requantizing those of another scale.

    An input is requantized unless its rule changes neither scale nor width. Inputs with a batch of
    1 are repeated for all samples, unless axis 0 is joined. Returns a tuple of one tensor of
    counts.
    """
    batch_size = max(x.shape[0] for x in inputs)
    axis = kernel.axis % inputs[0].ndim
    tensors = []
    for index, (x, rule) in enumerate(zip(inputs, kernel.rescales, strict=True)):
        is_unchanged = (
            rule.pow2_shift == 0 and rule.bits >= 8 * context.input_dtypes[index].itemsize
        )
        if not is_unchanged:
            x = requantize(x, rule, context.max_abs(index), context.log2_scale)
        if axis and x.shape[0] == 1:
            x = x.expand(batch_size, *x.shape[1:])
        tensors.append(x)
    return (torch.cat(tensors, axis),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Concat: _concat,
}
