"""Fake quantizers of one activation, of windows and of what moves. Softmax and layer norm too."""

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

from ...errors import ModelError
from .fake_common import (
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

# ---- one activation ----------------------------------------------------------------------------------------------


def _quant(kernel: k.Quant, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    exact = run_kernel(kernel, [x.detach().float().cpu().numpy()], x)[0]
    top = 1 << (min(kernel.bits, 8) if kernel.rule == "luna" else kernel.bits) - 1
    smooth = (x.double() if kernel.bits > 24 else x) * kernel.scale
    if not kernel.zero_point:
        return (round_with_gradient(smooth, -top, top - 1, at.log2_scale, exact),)
    moved = round_with_gradient(
        smooth,
        -top - kernel.zero_point,
        top - 1 - kernel.zero_point,
        at.log2_scale,
        exact - kernel.zero_point,
    )
    return (moved + kernel.zero_point,)


def _dequant(kernel: k.Dequant, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    return (((inputs[0].double() - kernel.zero_point) / kernel.scale).float(),)


def _requant(kernel: k.Requant, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    if not kernel.saturate and (right := kernel.rescale.pow2_shift) is not None and right < 0:
        bits = 8 * kernel.rescale.dtype.itemsize
        moved = x.double() * 2.0**-right
        wrapped = torch.remainder(moved.detach() + 2.0 ** (bits - 1), 2.0**bits) - 2.0 ** (bits - 1)
        return (straight_through(moved if bits > 24 else moved.float(), wrapped),)
    return (
        requantize(
            x.double() if at.size() >= FLOAT32_EXACT else x,
            kernel.rescale,
            at.size(),
            at.log2_scale,
        ),
    )


def _clip(kernel: k.Clip, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    size = at.size()
    low, high = (min(max(bound, -size), size - 1) for bound in kernel.clamp_bounds)
    return (torch.clamp(inputs[0], low, high),)


def _table(kernel: k.Table, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    values = to_counts(kernel.values, x)
    index = x.detach().to(torch.int64) + len(values) // 2
    slope = _estimate_slopes(kernel.values, x)[index]
    return (straight_through(x * slope, values[index]),)


def _estimate_slopes(values: np.ndarray, like: Any) -> Any:
    """Return the mean slope of a table around each entry.

    Of a span wide enough to see past the rounding.
    """
    reach, last = max(len(values) // 64, 1), len(values) - 1
    at = np.arange(len(values))
    left, right = np.maximum(at - reach, 0), np.minimum(at + reach, last)
    span = values.astype(np.float64)
    return to_float_tensor((span[right] - span[left]) / (right - left), like)


def to_float_tensor(values: np.ndarray, like: Any) -> Any:
    """Return real values as a float32 tensor on the device of `like`."""
    return torch.from_numpy(values.astype(np.float32)).to(like.device)


def _glu(kernel: k.Glu, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    a, b = inputs[0].double().chunk(2, kernel.axis)
    index = b.detach().to(torch.int64) + 128
    gate = torch.from_numpy(kernel.sigmoid_table.astype(np.float64)).to(b.device)
    slope = _estimate_slopes(kernel.sigmoid_table, b).double()[index]
    return (
        requantize(
            a * straight_through(b * slope, gate[index]), kernel.rescale, 128 << 15, at.log2_scale
        ),
    )


# ---- windows -----------------------------------------------------------------------------------------------------


def _get_ceil_mode_overhang(kernel: Any, x: Any, window: SlidingWindow) -> list[int]:
    """Return how far the last windows reach beyond the padded image: with ceil_mode they may."""
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    rows, places = image_size(x.shape[2:]), image_size(spec.shape[2:])
    more = []
    for axis in (0, 1):
        reach = (
            (places[axis] - 1) * window.strides[axis]
            + window.dilations[axis] * (window.kernel[axis] - 1)
            + 1
        )
        more.append(max(reach - rows[axis] - window.pads[axis] - window.pads[axis + 2], 0))
    return more


def _max_pool(kernel: k.MaxPool, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
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
    # A window that lies in the padding only gives the least integer of the input's type.
    return (torch.where(y == -math.inf, -float(at.size()), y),)


def _avg_pool(kernel: k.AvgPool, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    window = kernel._window()
    bound = window.kernel[0] * window.kernel[1] * at.size()
    (x,) = cast_to_exact_dtype(bound, x)
    return (requantize(_sum_windows(kernel, x, window), kernel.rule, bound, at.log2_scale),)


def _sum_windows(kernel: Any, x: Any, window: SlidingWindow, padding_value: float = 0.0) -> Any:
    """Return the sum of each window; `padding_value` fills the padding, zeros what lies beyond."""
    more = _get_ceil_mode_overhang(kernel, x, window)
    filled = F.pad(
        pad_window(x, window, x.ndim - 2, padding_value),
        [0, more[1], 0, more[0]][: 2 * (x.ndim - 2)],
    )
    total = F.avg_pool2d(to_image(filled), window.kernel, window.strides, divisor_override=1)
    (spec,) = kernel.infer(TensorSpec(tuple(x.shape), np.dtype(np.int8)))
    places = image_size(spec.shape[2:])
    return total[:, :, : places[0], : places[1]].reshape(spec.shape)


def _mean_pool(kernel: k.Mean, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    window = kernel._window(TensorSpec(tuple(x.shape), at.input_dtypes[0]))
    number = _sum_windows(
        kernel, torch.ones_like(x[:1, :1]), window, float(kernel.count_include_pad)
    ).clamp(min=1)
    total = _sum_windows(kernel, x.double(), window) * 2.0**kernel.shift
    (exact,) = run_kernel(kernel, [to_integers(x, at.input_dtypes[0])], x)
    top = 1 << (kernel.bits - 1)
    return (
        round_with_gradient(
            total / (kernel.divisor or number), -top, top - 1, at.log2_scale, exact
        ),
    )


# ---- moving ------------------------------------------------------------------------------------------------------


def _concat(kernel: k.Concat, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    count = max(x.shape[0] for x in inputs)
    parts = [
        x
        if rule.pow2_shift == 0 and rule.bits >= 8 * at.input_dtypes[i].itemsize
        else requantize(x, rule, at.size(i), at.log2_scale)
        for i, (x, rule) in enumerate(zip(inputs, kernel.rescales, strict=True))
    ]
    axis = kernel.axis % inputs[0].ndim
    parts = [p.expand(count, *p.shape[1:]) if axis and p.shape[0] == 1 else p for p in parts]
    return (torch.cat(parts, axis),)


def _reshape(kernel: k.Reshape, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (spec,) = kernel.infer(TensorSpec(tuple(inputs[0].shape), np.dtype(np.int8)))
    return (inputs[0].reshape(spec.shape),)


def _transpose(kernel: k.Transpose, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    return (inputs[0].permute(tuple(kernel.perm)),)


def _pick(kernel: k.IndexSelect, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    for axis, index in enumerate(kernel.indices):
        if index is None:
            continue
        place = torch.from_numpy(np.array(index, np.int64)).to(
            x.device
        )  # a copy: indices may run backwards
        x = x.index_select(axis, place.clamp(min=0))
        gaps = (place < 0).reshape(-1, *(1,) * (x.ndim - axis - 1))
        if bool(gaps.any()):
            assert kernel.fill_value is not None
            x = torch.where(gaps, float(kernel.fill_value), x)
    return (x,)


def _gather(kernel: k.Gather, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    place = torch.from_numpy(np.asarray(kernel.indices, np.int64)).to(x.device)
    axis = kernel.axis % x.ndim
    chosen = x.index_select(axis, place.reshape(-1))
    return (chosen.reshape(*x.shape[:axis], *place.shape, *x.shape[axis + 1 :]),)


def _lookup(kernel: k.Lookup, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    (x,) = inputs
    index = x.to(torch.int64)
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(kernel.table)):
        raise ModelError(
            f"an index from {int(index.min())} to {int(index.max())}: the table has "
            f"{len(kernel.table)} rows"
        )
    return (at.held(0, kernel.table, x)[index],)


def _split(kernel: k.Split, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    return tuple(inputs[0].split([int(n) for n in kernel.sizes], kernel.axis))


def _constant(kernel: k.Constant, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    raise ModelError("a constant is no step of a bridge")  # the bridge holds them


# ---- another arithmetic ------------------------------------------------------------------------------------------


def _softmax(kernel: k.Softmax, inputs: Sequence[Any], at: FakeQuantContext) -> tuple[Any, ...]:
    return _softmax_rows(kernel, inputs[0], at, torch.softmax)


def _log_softmax(
    kernel: k.LogSoftmax, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    return _softmax_rows(kernel, inputs[0], at, torch.log_softmax)


def _softmax_rows(kernel: Any, x: Any, at: FakeQuantContext, function: Any) -> tuple[Any, ...]:
    entry, top = kernel.input_table, len(kernel.input_table) // 2
    unit = (
        (int(entry[top + 16]) - int(entry[top - 16])) / 32 / 2.0**25
    )  # of one count, in real numbers
    first = kernel.axis % x.ndim
    rows = x * unit if kernel.single_axis else (x * unit).reshape(*x.shape[:first], -1)
    smooth = function(rows, first if kernel.single_axis else -1).reshape(x.shape) * (
        2.0**15 * get_multiplier(kernel.rescale)
    )
    (exact,) = run_kernel(kernel, [to_integers(x, at.input_dtypes[0])], x)
    bits = 1 << (kernel.rescale.bits - 1)
    return (round_with_gradient(smooth, -bits, bits - 1, at.log2_scale, exact),)


def _layer_norm(
    kernel: k.LayerNorm, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    (x,) = inputs
    gamma, beta = at.held(1, kernel.gamma, x), at.held(2, kernel.beta, x)
    count = gamma.numel()
    flat = x.reshape(*x.shape[: x.ndim - kernel.row_axes], count)
    spread = flat.var(-1, unbiased=False, keepdim=True) + kernel.epsilon / count**2
    normal = (flat - flat.mean(-1, keepdim=True)) * torch.rsqrt(spread.clamp(min=1e-12))
    smooth = (
        normal * gamma.reshape(-1) * 2.0**kernel.fraction_bits + beta.reshape(-1)
    ) * get_multiplier(kernel.rescale)
    own = replace(kernel, gamma=to_flat_int64(gamma), beta=to_flat_int64(beta))
    (exact,) = run_kernel(own, [to_integers(x, at.input_dtypes[0])], x)
    top = 1 << (kernel.rescale.bits - 1)
    return (round_with_gradient(smooth.reshape(x.shape), -top, top - 1, at.log2_scale, exact),)


def _run_without_gradient(
    kernel: Any, inputs: Sequence[Any], at: FakeQuantContext
) -> tuple[Any, ...]:
    """Only forwards: a result that no gradient goes through, such as an index."""
    with torch.no_grad():
        arrays = [to_integers(x, dtype) for x, dtype in zip(inputs, at.input_dtypes, strict=True)]
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
