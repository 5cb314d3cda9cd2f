"""Fake quantizers of one activation, of pools, of data movement, and of softmax and layer norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import kernels as k
from simulator.kernel import TensorSpec
from simulator.kernels.loops._common import SlidingWindow, image_size

from ...common.errors import ModelError
from .common import (
    FakeQuantContext,
    FakeQuantizer,
    cast_to_exact_dtype,
    pad_window,
    run_kernel,
    to_counts,
    to_flat_int64,
    to_image,
    to_integers,
)
from .rounding import (
    FLOAT32_EXACT,
    get_multiplier,
    requantize,
    round_with_gradient,
    straight_through,
)

__all__ = ["VALUE_FAKE_QUANTIZERS"]

# ---- one activation -----------------------------------------------------------------------------


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


def _clip(kernel: k.Clip, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Clamp counts to the kernel's bounds, which are limited to their integer type.

    Returns a tuple of one tensor.
    """
    max_abs = context.max_abs()
    low, high = (min(max(bound, -max_abs), max_abs - 1) for bound in kernel.clamp_bounds)
    return (torch.clamp(inputs[0], low, high),)


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
    return to_float_tensor((real_values[right] - real_values[left]) / (right - left), like)


def to_float_tensor(values: np.ndarray, like: Any) -> Any:
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
    return (requantize(product, kernel.rescale, 128 << 15, context.log2_scale),)


# ---- pools --------------------------------------------------------------------------------------


def _get_ceil_mode_overhang(kernel: Any, x: Any, window: SlidingWindow) -> list[int]:
    """Return the elements by which the last windows exceed the padded image: (rows, columns).

    In elements, at least 0; only ceil_mode gives more.
    """
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    input_size, output_size = image_size(x.shape[2:]), image_size(spec.shape[2:])
    overhang = []
    for axis in (0, 1):
        window_span = window.dilations[axis] * (window.kernel[axis] - 1) + 1
        covered = (output_size[axis] - 1) * window.strides[axis] + window_span
        padded_size = input_size[axis] + window.pads[axis] + window.pads[axis + 2]
        overhang.append(max(covered - padded_size, 0))
    return overhang


def _max_pool(
    kernel: k.MaxPool, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return a tuple of the maximum of each window of counts; padding never wins.

    A window of padding only gives the smallest integer of the input type.
    """
    (x,) = inputs
    window, axes = kernel._window(), x.ndim - 2
    filled = pad_window(x, window, axes, -math.inf, _get_ceil_mode_overhang(kernel, x, window))
    pool = F.max_pool2d if axes == 2 else F.max_pool1d
    y = pool(
        filled,
        window.kernel[2 - axes :],
        window.strides[2 - axes :],
        0,
        window.dilations[2 - axes :],
    )
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    y = y[tuple(slice(n) for n in spec.shape)]
    # A window that contains only padding gives the smallest integer of the input type.
    return (torch.where(y == -math.inf, -float(context.max_abs()), y),)


def _avg_pool(
    kernel: k.AvgPool, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Sum each window of counts exactly, and requantize; the divisor is in the kernel's rule.

    Returns a tuple of one tensor of counts.
    """
    (x,) = inputs
    window = kernel._window()
    bound = window.kernel[0] * window.kernel[1] * context.max_abs()
    (x,) = cast_to_exact_dtype(bound, x)
    return (requantize(_sum_windows(kernel, x, window), kernel.rule, bound, context.log2_scale),)


def _sum_windows(kernel: Any, x: Any, window: SlidingWindow, padding_value: float = 0.0) -> Any:
    """Return the sum of each window of x [N, C, *space], with `padding_value` in the padding.

    Elements beyond the padding (ceil_mode) count as 0.
    """
    axes = x.ndim - 2
    overhang = _get_ceil_mode_overhang(kernel, x, window)
    filled = F.pad(
        pad_window(x, window, axes, padding_value), [0, overhang[1], 0, overhang[0]][: 2 * axes]
    )
    total = F.avg_pool2d(to_image(filled), window.kernel, window.strides, divisor_override=1)
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    height, width = image_size(spec.shape[2:])
    return total[:, :, :height, :width].reshape(spec.shape)


def _mean_pool(kernel: k.Mean, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Divide the sum of each window by the number of its elements, or by the kernel's divisor.

    Returns the simulator's counts with the gradient of the real mean.
    """
    (x,) = inputs
    window = kernel._window(TensorSpec(tuple(x.shape), context.input_dtypes[0]))
    element_count = _sum_windows(
        kernel, torch.ones_like(x[:1, :1]), window, float(kernel.count_include_pad)
    ).clamp(min=1)
    total = _sum_windows(kernel, x.double(), window) * 2.0**kernel.shift
    (exact,) = run_kernel(kernel, [to_integers(x, context.input_dtypes[0])], x)
    top = 1 << (kernel.bits - 1)
    return (
        round_with_gradient(
            total / (kernel.divisor or element_count), -top, top - 1, context.log2_scale, exact
        ),
    )


# ---- data movement ------------------------------------------------------------------------------


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


def _pick(
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


def _gather(kernel: k.Gather, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Select slices of the input at constant indices of `kernel.axis`.

    The axes of the index array replace that axis. Returns a tuple of one tensor.
    """
    (x,) = inputs
    indices = torch.from_numpy(np.asarray(kernel.indices, np.int64)).to(x.device)
    axis = kernel.axis % x.ndim
    selected = x.index_select(axis, indices.reshape(-1))
    return (selected.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]),)


def _lookup(kernel: k.Lookup, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Return a tuple of the rows of the kernel's table at the indices that the input holds.

    The table is a learned parameter if it is trained. Raises ModelError for an index that is
    negative or not below the number of rows.
    """
    (x,) = inputs
    index = x.to(torch.int64)
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(kernel.table)):
        raise ModelError(
            f"an index from {int(index.min())} to {int(index.max())}: the table has "
            f"{len(kernel.table)} rows"
        )
    return (context.get_parameter(0, kernel.table, x)[index],)


def _split(kernel: k.Split, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Split `inputs[0]` along `kernel.axis` into parts of `kernel.sizes`; return all parts."""
    return tuple(inputs[0].split([int(n) for n in kernel.sizes], kernel.axis))


def _constant(
    kernel: k.Constant, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Raise ModelError: a network contains constants as tensors, not as steps."""
    raise ModelError("a constant is not a step of a network")


# ---- other arithmetic ---------------------------------------------------------------------------


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


def _run_without_gradient(
    kernel: Any, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return the outputs of the simulator's kernel for counts `inputs`, without any gradient.

    For kernels such as ArgMax, whose result is an index.
    """
    with torch.no_grad():
        arrays = [
            to_integers(x, dtype) for x, dtype in zip(inputs, context.input_dtypes, strict=True)
        ]
        return tuple(run_kernel(kernel, arrays, inputs[0]))


#: Kernel -> its fake quantizer.
VALUE_FAKE_QUANTIZERS: Mapping[type, FakeQuantizer] = {
    k.ArgMax: _run_without_gradient,
    k.AvgPool: _avg_pool,
    k.Clip: _clip,
    k.Concat: _concat,
    k.Constant: _constant,
    k.Dequant: _dequant,
    k.Div: _run_without_gradient,
    k.Gather: _gather,
    k.Glu: _glu,
    k.LayerNorm: _layer_norm,
    k.LogSoftmax: _log_softmax,
    k.Lookup: _lookup,
    k.MaxPool: _max_pool,
    k.Mean: _mean_pool,
    k.IndexSelect: _pick,
    k.Quant: _quant,
    k.Relu: _clip,
    k.Requant: _requant,
    k.Reshape: _reshape,
    k.Softmax: _softmax,
    k.Split: _split,
    k.Table: _table,
    k.Transpose: _transpose,
}
