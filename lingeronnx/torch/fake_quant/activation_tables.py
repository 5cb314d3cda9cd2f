"""Fake quantizers of activation functions that are tables, with the slope as gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simulator import kernels as k
from simulator.piecewise import load_piecewise

from .common import FakeQuantContext, FakeQuantizer, run_kernel, to_counts, to_integers
from .rounding import requantize, straight_through

__all__ = ["KERNELS"]


def _table(kernel: k.Table, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Look up counts in the kernel's table; return a tuple of one tensor of counts.

    The gradient is the slope of the table, estimated around each entry.
    """
    (x,) = inputs
    values = to_counts(kernel.values, x)
    index = x.detach().to(torch.int64) + len(values) // 2
    slope = _estimate_slopes(kernel.values, x)[index]
    return (straight_through(x * slope, values[index]),)


def _estimate_slopes(values: np.ndarray, like: Any) -> Any:
    """Return the mean slope of a table around each entry, over a span of several entries.

    The span is 1/64 of the table to each side; the result is a float tensor like `like`.
    """
    span, last = max(len(values) // 64, 1), len(values) - 1
    index = np.arange(len(values))
    left, right = np.maximum(index - span, 0), np.minimum(index + span, last)
    real_values = values.astype(np.float64)
    return _to_float_tensor((real_values[right] - real_values[left]) / (right - left), like)


def _to_float_tensor(values: np.ndarray, like: Any) -> Any:
    """Return real values as a float32 tensor on the device of `like`."""
    return torch.from_numpy(values.astype(np.float32)).to(like.device)


def _glu(kernel: k.Glu, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Multiply the first half of the input by the sigmoid of the second, and requantize.

    The halves are along `kernel.axis`; the sigmoid is the kernel's table, with estimated slopes.
    """
    a, b = inputs[0].double().chunk(2, kernel.axis)
    index = b.detach().to(torch.int64) + 128
    gate = torch.from_numpy(kernel.sigmoid_table.astype(np.float64)).to(b.device)
    slope = _estimate_slopes(kernel.sigmoid_table, b).double()[index]
    product = a * straight_through(b * slope, gate[index])
    bound = 128 << (kernel.gate_bits - 1)
    return (requantize(product, kernel.rescale, bound, context.log2_scale),)


def _piecewise_curve(
    kernel: k.PiecewiseCurve, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Evaluate sigmoid or tanh of counts by the simulator, with the gradient of the function.

    Returns a tuple of one tensor of counts.
    """
    (x,) = inputs
    table = load_piecewise(kernel.function, kernel.table)
    fraction_bits = kernel.shift + (11 if table.bits == 16 else 27)
    function = torch.sigmoid if kernel.function == "sigmoid" else torch.tanh
    smooth = function(x.double() * 2.0**-fraction_bits) * 2.0 ** (kernel.bits - 1)
    (exact,) = run_kernel(kernel, [to_integers(x, context.input_dtypes[0])], x)
    return (straight_through(smooth.to(exact.dtype), exact),)


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.Glu: _glu,
    k.PiecewiseCurve: _piecewise_curve,
    k.Table: _table,
}
