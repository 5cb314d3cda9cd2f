"""Rounding with straight-through gradients: exact integers in floating point.

A quantized tensor is a float tensor of integers (counts). `requantize` and `round_with_gradient`
give the integers of the simulator in the forward pass. In the backward pass they propagate the
gradient where the value is not clipped, and give the gradient of log2 of the output scale:

    x = q / s,  q = clamp(round(v)),  v = real * s
    dL/dlog2(s) = ln 2 * sum(dL/dq * (v - q))    where v is not clipped
                  ln 2 * sum(dL/dq * (-q))       where it is clipped

This is LSQ's gradient (Esser et al. 2020) in counts. This module knows no operators or graphs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from simulator.channel_rescale import ChannelRescale, ChannelScaleForms
from simulator.fixed_point import (
    ChainedForm,
    ChainedRescale,
    HalfEvenShiftForm,
    LunaDivide,
    ReciprocalForm,
    Rescale,
    RoundedScaleForm,
    RoundedShift,
    RoundingMode,
    ScaleForm,
    ShiftForm,
    WideScaleForm,
)

from ...common.errors import ModelError
from ...ir.plan import Affine

__all__ = [
    "RequantizationRule",
    "get_multiplier",
    "get_scale_factor",
    "requantize",
    "round_with_gradient",
    "straight_through",
]

RequantizationRule = Rescale | RoundedShift | LunaDivide | ChainedRescale | ChannelRescale

#: Integers below these are exact in float32 and float64, and so is adding a half to them.
FLOAT32_EXACT, FLOAT64_EXACT = 1 << 23, 1 << 52
#: Integers below this are exact in float64.
FLOAT64_WHOLE = 1 << 53


class _QuantizeFunction(torch.autograd.Function):
    """Forward: the integers `q`. Backward: the gradients in the module docstring."""

    @staticmethod
    def forward(ctx: Any, v: Any, q: Any, log2_scale: Any, low: float, high: float) -> Any:
        """Return the counts `q` in the type of the real counts `v`; save both for `backward`.

        `low` and `high` are the ends of the range in counts.
        """
        ctx.save_for_backward(v, q)
        ctx.bounds = low - 0.5, high + 0.5
        ctx.has_log2_scale = log2_scale is not None
        return q.to(v.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Pass the gradient on where `v` is at most half a count out of range, else zero.

        The gradient of `log2_scale` is ln 2 times the sum of gradient times error: v - q in the
        range, -q outside it. It is None if the scale is not trained.
        """
        (grad,), (v, q) = grads, ctx.saved_tensors
        low, high = ctx.bounds
        inside = (v >= low) & (v <= high)
        log2_scale_grad = None
        if ctx.has_log2_scale and ctx.needs_input_grad[2]:
            error = torch.where(inside, v, 0.0) - q
            log2_scale_grad = math.log(2.0) * (grad * error).sum().float()
        return grad * inside, None, log2_scale_grad, None, None


class _StraightThroughFunction(torch.autograd.Function):
    """Forward: `exact`. Backward: the unchanged gradient to `smooth`."""

    @staticmethod
    def forward(ctx: Any, smooth: Any, exact: Any) -> Any:
        """Return a copy of `exact` in the type of `smooth`, which gets the gradient."""
        return exact.to(smooth.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return (the gradient unchanged, None): all of it goes to `smooth`, none to `exact`."""
        return grads[0], None


def straight_through(smooth: Any, exact: Any) -> Any:
    """Return the values of `exact` in the type of `smooth`.

    The gradient goes to `smooth` unchanged. Both have the same shape.
    """
    return _StraightThroughFunction.apply(smooth, exact)


def round_with_gradient(
    v: Any, low: float, high: float, log2_scale: Any = None, exact: Any = None
) -> Any:
    """Round half up and clamp: ``clamp(floor(v + 1/2), low, high)``, with gradients.

    Parameters
    ----------
    v
        Counts before rounding.
    low, high
        Range of the counts.
    log2_scale
        log2 of the scale of the result as a tensor, if its gradient is needed.
    exact
        The integers of the result, if they are computed in another way.
    """
    if exact is None:
        exact = torch.clamp(torch.floor(v.detach() + 0.5), low, high)
    return _QuantizeFunction.apply(v, exact, log2_scale, low, high)


def get_scale_factor(qparams: Affine, like: Any) -> Any:
    """Return the factor from real values to counts: a number, or a tensor to multiply `like` by.

    A tensor, on the device of `like`, if the scales are per channel.
    """
    factor = qparams.broadcast(tuple(like.shape))
    if isinstance(factor, np.ndarray):
        return torch.from_numpy(factor.copy()).to(like.device)
    return factor


def get_multiplier(rule: RequantizationRule) -> Any:
    """Return the real factor of a requantization: a number, or float64 [channels].

    Rounding and clipping do not count; the factors of a chain are multiplied.
    """
    if isinstance(rule, ChannelRescale):
        multipliers = [get_multiplier(rescale) for rescale in rule.rescales]
        return torch.tensor(multipliers, dtype=torch.float64)
    if isinstance(rule, Rescale):
        return math.ldexp(rule.multiplier, -rule.shift)
    if isinstance(rule, RoundedShift):
        return math.ldexp(1.0, -rule.shift)
    if isinstance(rule, ChainedRescale):
        return get_multiplier(rule.first) * get_multiplier(rule.second)
    return math.ldexp(1.0 / rule.divisor, rule.shift)


def requantize(
    acc: Any, rule: RequantizationRule, bound: int, log2_scale: Any = None, axis: int = 1
) -> Any:
    """Requantize an accumulator like the simulator, with gradients.

    Parameters
    ----------
    acc
        Integers of at most `bound` in magnitude.
    rule
        The requantization.
    log2_scale
        log2 of the scale of the result as a tensor, if its gradient is needed.
    axis
        Channel axis of a `ChannelRescale`.

    Returns
    -------
    tensor
        Counts in float32, or in float64 if the result has more than 24 bits.

    Raises
    ------
    ModelError
        If an accumulator is not exact in float64.
    """
    if bound > FLOAT64_WHOLE and bool((acc.detach().abs() >= FLOAT64_WHOLE).any()):
        raise ModelError(
            f"sums reach 2^{math.log2(acc.detach().abs().max().item()):.0f}, but fine-tuning "
            "supports integers below 2^53 only: quantize to fewer bits"
        )
    bits = rule.second.bits if isinstance(rule, ChainedRescale) else rule.bits
    dtype = torch.float32 if bits <= 24 else torch.float64
    form = rule.compile_for_bound(bound)
    factor, half_range, zero_point = get_multiplier(rule), 1 << (bits - 1), _get_zero_point(rule)
    if isinstance(form, ChannelScaleForms):
        shape = [1] * acc.ndim
        shape[axis % acc.ndim] = -1
        factor = factor.to(acc.device).reshape(shape)
        exact = _requantize_by_channel(form, acc.detach().to(torch.int64), shape).to(dtype)
    else:
        exact = _apply_form(form, acc.detach(), bound).to(dtype)
    low, high = -half_range, half_range - 1
    real_counts = (acc * factor).to(dtype)
    if not zero_point:
        return _QuantizeFunction.apply(real_counts, exact, log2_scale, low, high)
    centered = _QuantizeFunction.apply(
        real_counts, exact - zero_point, log2_scale, low - zero_point, high - zero_point
    )
    return centered + zero_point


def _get_zero_point(rule: RequantizationRule) -> int:
    """Return the zero point of the result of a requantization; 0 for rules without one.

    Of a rule per channel the first channel counts.
    """
    rule = rule.rescales[0] if isinstance(rule, ChannelRescale) else rule
    return rule.zero_point if isinstance(rule, Rescale) else 0


def _requantize_by_channel(form: ChannelScaleForms, acc: Any, shape: list[int]) -> Any:
    """Requantize int64 `acc` with a multiplier and shift per channel, as the simulator does.

    The result is clamped to [form.low, form.high].

    Parameters
    ----------
    form
        Limits, multipliers, offsets, shifts and modes, one per channel. Mode 0 fits 64 bits, 1
        needs wider products, higher ones are other rounding modes.
    shape
        Shape that [channels] is broadcast from: -1 on the channel axis, 1 elsewhere.
    """
    limit, multiplier, half, shift, mode = (
        torch.from_numpy(array).to(acc.device).reshape(shape) for array in form[:5]
    )
    acc = torch.maximum(torch.minimum(acc, limit), -limit)
    y = (acc * multiplier + half) >> shift
    if bool((mode > 1).any()):  # then in all channels, since a target has one rounding mode
        return _requantize_rounded_channels(form, acc, shape)
    if bool(mode.any()):  # products of more than 64 bits, computed in two halves
        upper, lower = (acc >> 32) * multiplier, (acc & 0xFFFFFFFF) * multiplier
        low_shift, high_shift = torch.clamp(shift, 1, 32), torch.clamp(shift - 32, 1)
        low_result = (upper << (32 - low_shift)) + ((lower + (1 << (low_shift - 1))) >> low_shift)
        high_result = (upper + (lower >> 32) + (1 << (high_shift - 1))) >> high_shift
        wide_result = torch.where(shift <= 32, low_result, high_result) + half
        y = torch.where(mode.bool(), wide_result, y)
    return torch.clamp(y, form.low, form.high)


def _requantize_rounded_channels(form: ChannelScaleForms, acc: Any, shape: list[int]) -> Any:
    """Requantize int64 `acc` channel by channel, in a rounding mode other than half up.

    `form` has an array per constant with an element per channel; the channel axis is that of -1 in
    `shape`, or 0 for a single channel.
    """
    limit, multiplier, zero_point, shift, mode = (array.reshape(-1).tolist() for array in form[:5])
    axis = shape.index(-1) if len(form.limit) > 1 else 0
    channels = []
    for index, channel in enumerate(torch.unbind(acc, axis)):
        channel_form = RoundedScaleForm(
            limit[index],
            multiplier[index],
            shift[index],
            form.low,
            form.high,
            zero_point[index],
            mode[index] - 2,
        )
        channels.append(_apply_form_int64(channel_form, channel))
    return torch.stack(channels, axis)


def _apply_form(form: Any, acc: Any, bound: int) -> Any:
    """Return integers `acc` of at most `bound` in magnitude, requantized by `form` elementwise.

    Shifts are computed in the float type of `acc` where that is exact; all else gives int64. The
    values are those of the simulator.
    """
    exact_limit = FLOAT32_EXACT if acc.dtype == torch.float32 else FLOAT64_EXACT
    if isinstance(form, ShiftForm) and bound + abs(int(form.half)) <= exact_limit:
        shifted = torch.floor((acc + int(form.half)) * math.ldexp(1.0, -int(form.shift)))
        return torch.clamp(shifted, int(form.low), int(form.high))
    return _apply_form_int64(form, acc.to(torch.int64))


def _apply_form_int64(form: Any, acc: Any) -> Any:
    """Apply a requantization to int64 elements, exactly as the simulator; returns clipped integers.

    `form` selects the arithmetic: shift, scale, half-even shift, reciprocal, or two in a chain.
    """
    if isinstance(form, ChainedForm):
        return _apply_form_int64(form.second, _apply_form_int64(form.first, acc))
    if isinstance(form, ShiftForm):
        return torch.clamp((acc + int(form.half)) >> int(form.shift), int(form.low), int(form.high))
    if isinstance(form, ReciprocalForm):
        factor = form.reciprocal * acc.double() * 2.0 ** (form.exponent - 31) * 2.0**form.shift
        quotient = torch.clamp(torch.floor(factor + 0.5), -(2.0**31), 2.0**31 - 1)
        return torch.clamp(quotient.to(torch.int64), form.low, form.high)
    acc = torch.clamp(acc, -form.limit, form.limit)
    if isinstance(form, ScaleForm):
        return torch.clamp((acc * form.multiplier + form.half) >> form.shift, form.low, form.high)
    if isinstance(form, HalfEvenShiftForm):
        half = (1 << (form.shift - 1)) - 1 + ((acc >> form.shift) & 1)
        return torch.clamp((acc + half) >> form.shift, form.low, form.high)
    if isinstance(form, RoundedScaleForm):
        return _apply_rounded_scale(form, acc)
    assert isinstance(form, WideScaleForm)
    upper, lower = (acc >> 32) * form.multiplier, (acc & 0xFFFFFFFF) * form.multiplier
    if form.shift <= 32:
        y = (upper << (32 - form.shift)) + ((lower + (1 << (form.shift - 1))) >> form.shift)
    else:
        shift = form.shift - 32
        y = (upper + (lower >> 32) + (1 << (shift - 1))) >> shift
    return torch.clamp(y + form.zero_point, form.low, form.high)


def _apply_rounded_scale(form: RoundedScaleForm, acc: Any) -> Any:
    """Return int64 `acc` times multiplier / 2^shift, in the rounding mode of `form`, clamped.

    `acc` must be within the form's limit. The product has up to 96 bits and is computed in two
    halves; the zero point is added after rounding.
    """
    upper, lower = (acc >> 32) * form.multiplier, (acc & 0xFFFFFFFF) * form.multiplier
    if form.shift <= 32:
        y = (upper << (32 - form.shift)) + (lower >> form.shift)
        remainder_high = lower & ((1 << form.shift) - 1)
        remainder_low = torch.zeros_like(lower)
        half = 1 << (form.shift - 1)
    else:
        product_high = upper + (lower >> 32)
        y = product_high >> (form.shift - 32)
        remainder_high = product_high & ((1 << (form.shift - 32)) - 1)
        remainder_low = lower & 0xFFFFFFFF
        half = 1 << (form.shift - 33)
    is_tie = (remainder_high == half) & (remainder_low == 0)
    rounds_up = {
        RoundingMode.DOWN: torch.zeros_like(is_tie),
        RoundingMode.UP: (remainder_high > 0) | (remainder_low > 0),
        RoundingMode.HALF_UP: remainder_high >= half,
        RoundingMode.HALF_EVEN: torch.where(is_tie, y & 1 == 1, remainder_high >= half),
        RoundingMode.HALF_AWAY: torch.where(is_tie, acc > 0, remainder_high >= half),
    }[RoundingMode(form.rounding)]
    return torch.clamp(y + rounds_up.to(y.dtype) + form.zero_point, form.low, form.high)
