"""Offsets of float sums with which QuantizeLinear rounds ties up, and the proof of exactness.

A layer's sum is A / u, with A an integer (the accumulator) and u = scale_x * scale_w a power of
two. The chip computes floor(A / 2^s + 1/2), with 2^s = u / scale_o; QuantizeLinear rounds A / 2^s
to the nearest integer, ties to even. With half a step of the sum added it rounds (A + 1/2) / 2^s:

    s >= 1       A = m * 2^s + r: (r + 1/2) / 2^s is below 1/2 for r < 2^(s-1), else above: it is
                 never a tie, and the nearest integer is the chip's.
    s <= 0       A / 2^s is an integer: nothing is rounded, and nothing is added.

In float32 this holds if

    sum |w| * max|x| + |b| < 2^24     all partial sums are integers over u of at most 24 bits, so
                                      they are exact in any order;
    s <= 24 - b                       A + 1/2 has at most 24 bits for |A| < 2^23. For larger |A|,
                                      |A| / 2^s is at least 2^(b-1), and results of b bits saturate
                                      in both cases.

Otherwise there is no exact form of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale, RoundedShift
from simulator.kernel import Kernel

from ....operators.exact_nodes import NotExactError, max_magnitude
from ....operators.linear.integer_op import FloatLinear

__all__ = [
    "FLOAT32_EXACT_LIMIT",
    "TieOffset",
    "compute_tie_offset",
    "compute_operand_offsets",
    "check_float32_sum",
]

#: All integers up to this magnitude are exact in float32.
FLOAT32_EXACT_LIMIT = 1 << 24
_MANTISSA_BITS = 24

_Layer: TypeAlias = k.Conv | k.ConvTranspose | k.Linear | k.ChannelAffine | FloatLinear


@dataclass(frozen=True)
class IntegerSum:
    """A float sum: an integer of magnitude up to `bound`, divided by the scale `unit`."""

    bound: int
    unit: float


@dataclass(frozen=True)
class TieOffset:
    """The number that is added before a QuantizeLinear so that it rounds ties up.

    value : in float units; 0 if nothing is rounded. bound : magnitude of the sum's integers.
    """

    value: float
    bound: int


def _exact_exponent(ratio: float, label: str) -> int:
    """Return log2 of `ratio`; NotExactError, naming it `label`, if it is not a power of two."""
    mantissa, exponent = math.frexp(ratio)
    if mantissa != 0.5:
        raise NotExactError(f"{label} is {ratio:g}, which is not a power of two")
    return exponent - 1


def tie_offset_for_sum(total: IntegerSum, rescale: object, scale: float, bits: int) -> TieOffset:
    """Return the offset with which QuantizeLinear of a sum rounds as the kernel's `rescale`.

    Parameters
    ----------
    total
        The sum: its bound and scale.
    rescale
        Requantization of the kernel.
    scale, bits
        Scale and width of the result.

    Raises
    ------
    NotExactError
        If no offset makes the result exact.
    """
    right = rescale.pow2_shift if isinstance(rescale, Rescale) else None
    if right is None:
        raise NotExactError("the ratio of its scales is not a power of two")
    if right != _exact_exponent(total.unit / scale, "the ratio of its scales"):
        raise NotExactError(f"its shift of {right} does not match its scales")
    _check_exact_in_float32(total)
    if right <= 0:
        return TieOffset(0.0, total.bound)
    max_shift = _MANTISSA_BITS - bits
    if right > max_shift:
        raise NotExactError(
            f"its shift is {right}; float32 can represent half a step up to a shift of {max_shift}"
        )
    half = 0.5 / total.unit
    if float(np.float32(half)) != half:
        raise NotExactError(f"half a step of its sum is {half:g}, which float32 cannot represent")
    return TieOffset(half, total.bound)


def _check_exact_in_float32(total: IntegerSum) -> None:
    """Raise NotExactError if `total` may reach `FLOAT32_EXACT_LIMIT`, where float32 rounds."""
    if total.bound >= FLOAT32_EXACT_LIMIT:
        raise NotExactError(
            f"its sums reach {total.bound}; float32 is exact up to {FLOAT32_EXACT_LIMIT}"
        )


def _layer_sum(
    kernel: _Layer,
    scales: Sequence[float],
    types: Sequence[np.dtype],
    weight_scale: float | None,
) -> IntegerSum:
    """Return the largest magnitude and the scale of the sums of a layer with weights and bias.

    `scales` and `types` are those of the inputs. NotExactError if the weight has one scale per
    channel (`weight_scale` None), or the input has a zero point.
    """
    if weight_scale is None:
        raise NotExactError("its weight has one scale per channel")
    if kernel.zero:
        raise NotExactError("its input has a zero point")
    weight = np.abs(kernel.weight.astype(np.int64))
    if isinstance(kernel, k.ConvTranspose):
        # an output reads at most all taps of its channel: sum over all inputs and taps
        by_group = weight.reshape(kernel.group, -1, *weight.shape[1:]).sum(axis=1)
        weight = by_group.reshape(-1, *weight.shape[2:])
    sums = weight.reshape(len(weight), -1).sum(axis=1)
    bias = np.zeros(1, np.int64)
    if kernel.bias is not None:
        bias = np.abs(np.asarray(kernel.bias).astype(np.int64))
    bound = int((sums * max_magnitude(types[0]) + bias).max(initial=0))
    return IntegerSum(bound, scales[0] * weight_scale)


def check_float32_sum(kernel: FloatLinear, scales: Sequence[float], weight: float | None) -> None:
    """Raise NotExactError unless float32 represents all sums of a layer with float results.

    `scales` are those of its inputs, int8; `weight` is the scale of its weight or None for several.
    Sums must stay below `FLOAT32_EXACT_LIMIT`, and the product of scales must be a power of two.
    """
    total = _layer_sum(kernel, scales, [np.dtype(np.int8)], weight)
    _exact_exponent(total.unit, "the product of its scales")
    _check_exact_in_float32(total)


def _product_sum(scales: Sequence[float], types: Sequence[np.dtype], inner: int) -> IntegerSum:
    """Return largest magnitude and scale of a sum of `inner` products of two inputs.

    `scales` and `types` are those of the inputs.
    """
    return IntegerSum(inner * math.prod(map(max_magnitude, types)), scales[0] * scales[1])


def compute_tie_offset(
    kernel: Kernel,
    scales: Sequence[float],
    shapes: Sequence[tuple[int, ...]],
    types: Sequence[np.dtype],
    weight: float | None,
    out: float,
    bits: int,
) -> TieOffset:
    """Compute the offset that makes the float result of a kernel exact after QuantizeLinear.

    Parameters
    ----------
    kernel
        Kernel of the simulator.
    scales, shapes, types
        Of the integer inputs.
    weight
        Scale of the kernel's weight; None for several or none.
    out, bits
        Scale and width of the result.

    Raises
    ------
    NotExactError
        If no offset makes the result exact.
    """
    if isinstance(kernel, k.Conv | k.ConvTranspose | k.Linear | k.ChannelAffine):
        return tie_offset_for_sum(
            _layer_sum(kernel, scales, types, weight), kernel.rescale, out, bits
        )
    if isinstance(kernel, k.MatMul):
        return tie_offset_for_sum(
            _product_sum(scales, types, shapes[0][-1]), kernel.rescale, out, bits
        )
    if isinstance(kernel, k.Mul):
        return tie_offset_for_sum(_product_sum(scales, types, 1), kernel.rescale, out, bits)
    if isinstance(kernel, k.Requant):
        magnitude = max_magnitude(types[0])
        if not kernel.saturate and _overflows(kernel.rescale, magnitude, bits):
            raise NotExactError("values that do not fit the result lose their top bits")
        return tie_offset_for_sum(IntegerSum(magnitude, scales[0]), kernel.rescale, out, bits)
    if isinstance(kernel, k.AvgPool):
        return _average_pool_offset(kernel, scales, types, out, bits)
    if isinstance(kernel, k.AddScaled):
        return _scaled_add_offset(kernel, scales, types, out, bits)
    raise NotExactError("its integer arithmetic only approximates the float operator")


def _overflows(rescale: Rescale | RoundedShift, magnitude: int, bits: int) -> bool:
    """Whether `rescale` shifts left, and this takes `magnitude` beyond 2^(`bits` - 1)."""
    right = rescale.pow2_shift
    return right is not None and right < 0 and magnitude << -right > 1 << (bits - 1)


def _average_pool_offset(
    kernel: k.AvgPool, scales: Sequence[float], types: Sequence[np.dtype], out: float, bits: int
) -> TieOffset:
    """Return the offset with which QuantizeLinear rounds as the average pooling `kernel`.

    `scales` and `types` are those of the inputs; `out` and `bits` scale and width of the result.
    NotExactError with `ceil_mode`, for a window whose area is no power of two, and for a rule that
    rounds twice.
    """
    area, rule = math.prod(kernel.kernel), kernel.rule
    if kernel.ceil_mode:
        raise NotExactError("its windows may extend beyond the padding (ceil_mode)")
    if area & (area - 1):
        raise NotExactError(f"it divides by {area}, which is not a power of two")
    if isinstance(rule, ChainedRescale):
        if rule.first.pow2_shift != 0:
            raise NotExactError("it rounds twice")
        rule = rule.second
    total = IntegerSum(area * max_magnitude(types[0]), scales[0] * area)
    return tie_offset_for_sum(total, rule, out, bits)


def _scaled_add_offset(
    kernel: k.AddScaled, scales: Sequence[float], types: Sequence[np.dtype], out: float, bits: int
) -> TieOffset:
    """Return the offset with which QuantizeLinear of a sum rounds as `kernel`, an `AddScaled`.

    `scales` and `types` are those of the operands; `out` and `bits` scale and width of the result.
    The kernel's operands have 2^16 times the output's scale: if none is finer, only the sum is
    rounded. NotExactError if one is finer, or if a ratio of scales is not a power of two.
    """
    finest = max(scales)
    for scale in scales:
        if not 16 + _exact_exponent(out / scale, "the ratio of its scales") >= 0:
            raise NotExactError("it rounds its operands")
    bound = sum(
        int(max_magnitude(dtype) * finest / scale)
        for dtype, scale in zip(types, scales, strict=True)
    )
    rescale = Rescale.from_shift(_exact_exponent(finest / out, "the ratio"), bits)
    return tie_offset_for_sum(IntegerSum(bound, finest), rescale, out, bits)


def compute_operand_offsets(
    kernel: Kernel, scales: Sequence[float], out: float, bits: int
) -> list[TieOffset] | None:
    """Compute the offset of each operand of a kernel that requantizes its operands separately.

    Parameters
    ----------
    kernel
        Kernel of the simulator.
    scales
        Scales of the operands.
    out, bits
        Scale and width of the result.

    Returns
    -------
    list of TieOffset or None
        One per operand; None if the kernel does not requantize its operands.

    Raises
    ------
    NotExactError
        If no offset makes an operand exact.
    """
    shifts: Sequence[int | None]
    if isinstance(kernel, k.AddShift):
        shifts = kernel.shift_x, kernel.shift_y
    elif isinstance(kernel, k.Concat):
        shifts = [rescale.pow2_shift for rescale in kernel.rescales]
    else:
        return None
    offsets = []
    for shift, scale in zip(shifts, scales, strict=True):
        if shift is None:
            raise NotExactError("the ratio of its scales is not a power of two")
        rescale = Rescale.from_shift(shift, bits)
        offsets.append(tie_offset_for_sum(IntegerSum(1 << 15, scale), rescale, out, bits))
    return offsets
