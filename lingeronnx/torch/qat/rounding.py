"""Rounding with straight-through gradients: integers, exact to the bit, held in floating point.

A quantized tensor is a float tensor of whole numbers (counts). `requantize` and
`round_with_gradient` give the simulator's integers in the forward pass; backwards they pass the
gradient where the value was not cut off, and give the gradient of the scale's logarithm at the
place where the tensor is written:

    x = q / s,  q = clamp(round(v)),  v = real * s        dL/dlog2(s) = ln 2 * sum(dL/dq * (v - q))
    inside
                                                                      = ln 2 * sum(dL/dq * (-q))        cut off

which is LSQ's gradient (Esser et al. 2020) in terms of counts. Must not know: operators, graphs.
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

from ...errors import ModelError
from ...plan import Affine

__all__ = [
    "RequantizationRule",
    "get_multiplier",
    "get_scale_factor",
    "requantize",
    "round_with_gradient",
    "straight_through",
]

RequantizationRule = Rescale | RoundedShift | LunaDivide | ChainedRescale | ChannelRescale

#: Whole numbers below these are exact in float32 and float64, and so is adding a half to them.
FLOAT32_EXACT, FLOAT64_EXACT = 1 << 23, 1 << 52
#: Whole numbers below this are exact in float64.
FLOAT64_WHOLE = 1 << 53


class _QuantizeFunction(torch.autograd.Function):
    """Forward: the integers `q`. Backward: as the file's first lines say."""

    @staticmethod
    def forward(ctx: Any, v: Any, q: Any, probe: Any, low: float, high: float) -> Any:
        ctx.save_for_backward(v, q)
        ctx.bounds = low - 0.5, high + 0.5
        ctx.probed = probe is not None
        return q.to(v.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (v, q) = grads, ctx.saved_tensors
        low, high = ctx.bounds
        inside = (v >= low) & (v <= high)
        of_scale = None
        if ctx.probed and ctx.needs_input_grad[2]:
            of_scale = math.log(2.0) * (grad * (torch.where(inside, v, 0.0) - q)).sum().float()
        return grad * inside, None, of_scale, None, None


class _StraightThroughFunction(torch.autograd.Function):
    """Forward: `exact`. Backward: the gradient goes to `smooth` as it is."""

    @staticmethod
    def forward(ctx: Any, smooth: Any, exact: Any) -> Any:
        return exact.to(smooth.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def straight_through(smooth: Any, exact: Any) -> Any:
    """Return `exact` with the gradient of `smooth` (same shape)."""
    return _StraightThroughFunction.apply(smooth, exact)


def round_with_gradient(
    v: Any, low: float, high: float, log2_scale: Any = None, exact: Any = None
) -> Any:
    """Return ``clamp(floor(v + 1/2), low, high)``, or the integers `exact` where they are worked out otherwise.

    v : counts before rounding. probe : log2 of the scale of the result as a tensor, where its
    gradient is wanted.
    """
    if exact is None:
        exact = torch.clamp(torch.floor(v.detach() + 0.5), low, high)
    return _QuantizeFunction.apply(v, exact, log2_scale, low, high)


def get_scale_factor(held: Affine, like: Any) -> Any:
    """Return the scale, or where there are several a tensor of them, that multiplies `like`."""
    factor = held.broadcast(tuple(like.shape))
    return (
        torch.from_numpy(factor.copy()).to(like.device)
        if isinstance(factor, np.ndarray)
        else factor
    )


def get_multiplier(rule: RequantizationRule) -> Any:
    """Return what the accumulator is multiplied by.

    A number, float64 [channels] for `ChannelRescale`.
    """
    if isinstance(rule, ChannelRescale):
        return torch.tensor([get_multiplier(each) for each in rule.rescales], dtype=torch.float64)
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
    """Return the accumulator `acc` (whole numbers of at most `bound`) requantized by `rule`, as the simulator does.

    axis : of the channels, for a `ChannelRescale`. float32, or float64 where the result has more
    than 24 bits. ModelError for sums that no float64 holds.
    """
    if bound > FLOAT64_WHOLE and bool((acc.detach().abs() >= FLOAT64_WHOLE).any()):
        raise ModelError(
            f"sums reach 2^{math.log2(acc.detach().abs().max().item()):.0f}; a bridge holds whole "
            "numbers "
            "below 2^53: quantize to fewer bits"
        )
    bits = rule.second.bits if isinstance(rule, ChainedRescale) else rule.bits
    kind = torch.float32 if bits <= 24 else torch.float64
    form = rule.compile_for_bound(bound)
    factor, top, zero = get_multiplier(rule), 1 << (bits - 1), _get_zero_point(rule)
    if isinstance(form, ChannelScaleForms):
        shape = [-1 if i == axis % acc.ndim else 1 for i in range(acc.ndim)]
        factor = factor.to(acc.device).reshape(shape)
        exact = _requantize_by_channel(form, acc.detach().to(torch.int64), shape).to(kind)
    else:
        exact = _apply_form(form, acc.detach(), bound).to(kind)
    if not zero:
        return _QuantizeFunction.apply((acc * factor).to(kind), exact, log2_scale, -top, top - 1)
    return (
        _QuantizeFunction.apply(
            (acc * factor).to(kind), exact - zero, log2_scale, -top - zero, top - 1 - zero
        )
        + zero
    )


def _get_zero_point(rule: RequantizationRule) -> int:
    """Return the integer of the result that stands for 0."""
    rule = rule.rescales[0] if isinstance(rule, ChannelRescale) else rule
    return rule.zero_point if isinstance(rule, Rescale) else 0


def _requantize_by_channel(form: ChannelScaleForms, acc: Any, shape: list[int]) -> Any:
    """Return what `simulator.channel_rescale.requantize_channels` gives, for int64 `acc`.

    `shape` puts [channels] along their axis.
    """
    limit, multiplier, half, shift, wide = (
        torch.from_numpy(a).to(acc.device).reshape(shape) for a in form[:5]
    )
    acc = torch.maximum(torch.minimum(acc, limit), -limit)
    y = (acc * multiplier + half) >> shift
    if bool((wide > 1).any()):  # all of them: a target has one rounding
        forms = zip(
            *(array.reshape(-1).tolist() for array in (limit, multiplier, shift, half, wide)),
            strict=True,
        )
        axis = next(i for i, n in enumerate(shape) if n != 1) if len(form.limit) > 1 else 0
        parts = [
            _apply_form_int64(
                RoundedScaleForm(top, factor, right, form.low, form.high, zero, way - 2), part
            )
            for (top, factor, right, zero, way), part in zip(
                forms, torch.unbind(acc, axis), strict=True
            )
        ]
        return torch.stack(parts, axis)
    if bool(wide.any()):  # there the product needs more than 64 bits: two halves
        upper, lower = (acc >> 32) * multiplier, (acc & 0xFFFFFFFF) * multiplier
        few, many = torch.clamp(shift, 1, 32), torch.clamp(shift - 32, 1)
        near = (upper << (32 - few)) + ((lower + (1 << (few - 1))) >> few)
        far = (upper + (lower >> 32) + (1 << (many - 1))) >> many
        y = torch.where(wide.bool(), torch.where(shift <= 32, near, far) + half, y)
    return torch.clamp(y, form.low, form.high)


def _apply_form(form: Any, acc: Any, bound: int) -> Any:
    """Return what `simulator.fixed_point.apply_rescale` gives, elementwise."""
    if isinstance(form, ShiftForm) and bound + abs(int(form.half)) <= (
        FLOAT32_EXACT if acc.dtype == torch.float32 else FLOAT64_EXACT
    ):
        moved = torch.floor((acc + int(form.half)) * math.ldexp(1.0, -int(form.shift)))
        return torch.clamp(moved, int(form.low), int(form.high))
    return _apply_form_int64(form, acc.to(torch.int64))


def _apply_form_int64(form: Any, acc: Any) -> Any:
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
        return _apply_tied(form, acc)
    assert isinstance(form, WideScaleForm)
    upper, lower = (acc >> 32) * form.multiplier, (acc & 0xFFFFFFFF) * form.multiplier
    if form.shift <= 32:
        y = (upper << (32 - form.shift)) + ((lower + (1 << (form.shift - 1))) >> form.shift)
    else:
        shift = form.shift - 32
        y = (upper + (lower >> 32) + (1 << (shift - 1))) >> shift
    return torch.clamp(y + form.zero_point, form.low, form.high)


def _apply_tied(form: RoundedScaleForm, acc: Any) -> Any:
    """Return what a `RoundedScaleForm` gives for int64 `acc` within its limit."""
    upper, lower = (acc >> 32) * form.multiplier, (acc & 0xFFFFFFFF) * form.multiplier
    if form.shift <= 32:
        y = (upper << (32 - form.shift)) + (lower >> form.shift)
        more, less, half = (
            lower & ((1 << form.shift) - 1),
            torch.zeros_like(lower),
            1 << (form.shift - 1),
        )
    else:
        whole = upper + (lower >> 32)
        y, less, half = whole >> (form.shift - 32), lower & 0xFFFFFFFF, 1 << (form.shift - 33)
        more = whole & ((1 << (form.shift - 32)) - 1)
    tie = (more == half) & (less == 0)
    up = {
        RoundingMode.DOWN: torch.zeros_like(tie),
        RoundingMode.UP: (more > 0) | (less > 0),
        RoundingMode.HALF_UP: more >= half,
        RoundingMode.HALF_EVEN: torch.where(tie, y & 1 == 1, more >= half),
        RoundingMode.HALF_AWAY: torch.where(tie, acc > 0, more >= half),
    }[RoundingMode(form.rounding)]
    return torch.clamp(y + up.to(y.dtype) + form.zero_point, form.low, form.high)
