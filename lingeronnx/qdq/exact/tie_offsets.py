"""What is added to a real sum so that QuantizeLinear rounds ties up, and the proof that nothing else changes.

A layer's sum is A / u, with A an integer (the accumulator) and u = scale_x * scale_w a power of
two. The chip computes floor(A / 2^s + 1/2), with 2^s = u / scale_o; QuantizeLinear rounds A / 2^s
to the nearest integer, ties to even. With half a step of the sum added it rounds (A + 1/2) / 2^s:

    s >= 1       A = m * 2^s + r: (r + 1/2) / 2^s lies below 1/2 for r < 2^(s-1), else above: never
    a tie, and the
                 nearest integer is the chip's.
    s <= 0       A / 2^s is an integer: nothing is rounded, nothing added.

In float32 this holds where

    sum |w| * max|x| + |b| < 2^24     all sums on the way are integers over u of at most 24 bits, so
    exact in any order; s <= 24 - b                       A + 1/2 has at most 24 bits where |A| <
    2^23. Beyond that |A| / 2^s is 2^(b-1) at
                                      least, and results of b bits saturate either way.

Otherwise the result has no exact form of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale
from simulator.kernel import Kernel

from ...formats.layers import FloatLinear
from .layers import max_magnitude
from .nodes import NotExactError

__all__ = [
    "FLOAT32_EXACT_LIMIT",
    "TieOffset",
    "compute_tie_offset",
    "compute_operand_offsets",
    "check_float32_sum",
]

#: Float32 holds all integers up to here.
FLOAT32_EXACT_LIMIT = 1 << 24
_MANTISSA_BITS = 24

_Layer: TypeAlias = k.Conv | k.ConvTranspose | k.Linear | k.ChannelAffine | FloatLinear


@dataclass(frozen=True)
class IntegerSum:
    """A real sum: integers of at most `bound`, `unit` of which make one real unit."""

    bound: int
    unit: float


@dataclass(frozen=True)
class TieOffset:
    """What is added before a QuantizeLinear, in real units; 0: nothing is rounded.

    Bound : of the sum's integers.
    """

    value: float
    bound: int


def _exact_exponent(ratio: float, what: str) -> int:
    mantissa, exponent = math.frexp(ratio)
    if mantissa != 0.5:
        raise NotExactError(f"{what} is {ratio:g}, no power of two")
    return exponent - 1


def tie_offset_for_sum(total: IntegerSum, rescale: object, scale: float, bits: int) -> TieOffset:
    """Return the amount for a sum that `rescale` brings to `scale`.

    Raises NotExactError where there is none.
    """
    right = rescale.pow2_shift if isinstance(rescale, Rescale) else None
    if right is None:
        raise NotExactError("its scales make a ratio that is no power of two")
    if right != _exact_exponent(total.unit / scale, "the ratio of its scales"):
        raise NotExactError(f"its shift of {right} is not that of its scales")
    if total.bound >= FLOAT32_EXACT_LIMIT:
        raise NotExactError(
            f"its sums reach {total.bound}, float32 counts to {FLOAT32_EXACT_LIMIT}"
        )
    if right <= 0:
        return TieOffset(0.0, total.bound)
    if right > _MANTISSA_BITS - bits:
        raise NotExactError(
            f"its shift is {right}; up to {_MANTISSA_BITS - bits} float32 has room for half a step"
        )
    half = 0.5 / total.unit
    if float(np.float32(half)) != half:
        raise NotExactError(f"half a step of its sum is {half:g}, beyond float32")
    return TieOffset(half, total.bound)


def _layer_sum(
    kernel: _Layer, scales: Sequence[float], types: Sequence[np.dtype], outer: float | None
) -> IntegerSum:
    """`outer` : the scale of the weight."""
    if outer is None:
        raise NotExactError("its weight has a scale for each channel")
    if kernel.zero:
        raise NotExactError("its input has a zero point")
    weight = np.abs(kernel.weight.astype(np.int64))
    if isinstance(kernel, k.ConvTranspose):
        # every output reads at most all taps of its channel: the bound over all inputs and taps of
        # an output
        per = (
            weight.reshape(kernel.group, -1, *weight.shape[1:])
            .sum(axis=1)
            .reshape(-1, *weight.shape[2:])
        )
        sums = per.reshape(len(per), -1).sum(axis=1)
    else:
        sums = weight.reshape(len(weight), -1).sum(axis=1)
    bias = (
        np.zeros(1, np.int64)
        if kernel.bias is None
        else np.abs(np.asarray(kernel.bias).astype(np.int64))
    )
    return IntegerSum(
        int((sums * max_magnitude(types[0]) + bias).max(initial=0)), scales[0] * outer
    )


def check_float32_sum(kernel: FloatLinear, scales: Sequence[float], weight: float | None) -> None:
    """Raise NotExactError unless the real results of `kernel` are sums that float32 holds."""
    total = _layer_sum(kernel, scales, [np.dtype(np.int8)], weight)
    _exact_exponent(total.unit, "the product of its scales")
    if total.bound >= FLOAT32_EXACT_LIMIT:
        raise NotExactError(
            f"its sums reach {total.bound}, float32 counts to {FLOAT32_EXACT_LIMIT}"
        )


def _product_sum(scales: Sequence[float], types: Sequence[np.dtype], inner: int) -> IntegerSum:
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
    """Return what is added to the real result of `kernel`.

    Raises NotExactError where no amount makes it exact.
    scales, shapes, types : of the integer inputs. weight : the scale of its constant factor. out,
    bits : of the result.
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
        reach, right = max_magnitude(types[0]), kernel.rescale.pow2_shift
        if (
            not kernel.saturate
            and right is not None
            and right < 0
            and reach << -right > 1 << (bits - 1)
        ):
            raise NotExactError("what does not fit the wider type loses its top bits")
        return tie_offset_for_sum(IntegerSum(reach, scales[0]), kernel.rescale, out, bits)
    if isinstance(kernel, k.AvgPool):
        return _average_pool_offset(kernel, scales, types, out, bits)
    if isinstance(kernel, k.AddScaled):
        return _scaled_add_offset(kernel, scales, types, out, bits)
    raise NotExactError("it computes in integers what real numbers only approximate")


def _average_pool_offset(
    kernel: k.AvgPool, scales: Sequence[float], types: Sequence[np.dtype], out: float, bits: int
) -> TieOffset:
    area, rule = math.prod(kernel.kernel), kernel.rule
    if kernel.ceil_mode:
        raise NotExactError("its windows may reach beyond the padding (ceil_mode)")
    if area & (area - 1):
        raise NotExactError(f"it divides by {area}, no power of two")
    if isinstance(rule, ChainedRescale):
        if rule.first.pow2_shift != 0:
            raise NotExactError("it rounds twice")
        rule = rule.second
    return tie_offset_for_sum(
        IntegerSum(area * max_magnitude(types[0]), scales[0] * area), rule, out, bits
    )


def _scaled_add_offset(
    kernel: k.AddScaled, scales: Sequence[float], types: Sequence[np.dtype], out: float, bits: int
) -> TieOffset:
    """Operands at 2^16 times the output's scale: where none is finer, only the sum is rounded."""
    finest = max(scales)
    for scale in scales:
        if not 16 + _exact_exponent(out / scale, "the ratio of its scales") >= 0:
            raise NotExactError("it rounds its operands")
    bound = sum(
        int(max_magnitude(dtype) * finest / scale)
        for dtype, scale in zip(types, scales, strict=True)
    )
    return tie_offset_for_sum(
        IntegerSum(bound, finest),
        Rescale.from_shift(_exact_exponent(finest / out, "the ratio"), bits),
        out,
        bits,
    )


def compute_operand_offsets(
    kernel: Kernel, scales: Sequence[float], out: float, bits: int
) -> list[TieOffset] | None:
    """Return what is added to each operand, which is requantized alone.

    None where the kernel has one rounding.
    """
    shifts: Sequence[int | None]
    if isinstance(kernel, k.AddShift):
        shifts = kernel.shift_x, kernel.shift_y
    elif isinstance(kernel, k.Concat):
        shifts = [rescale.pow2_shift for rescale in kernel.rescales]
    else:
        return None
    each = []
    for shift, scale in zip(shifts, scales, strict=True):
        if shift is None:
            raise NotExactError("its scales make a ratio that is no power of two")
        each.append(
            tie_offset_for_sum(
                IntegerSum(1 << 15, scale), Rescale.from_shift(shift, bits), out, bits
            )
        )
    return each
