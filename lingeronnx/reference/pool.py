"""Pooling of [N, C, ...]: the largest, or the sum over the whole window's size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..targets.arithmetic import Arithmetic, AverageDivisor, AveragePoolArithmetic
from ._arithmetic import (
    INT32,
    cast_to_width,
    divide,
    exact_log2,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from ._base import Attributes, Integer, Outputs, StandardOpRun, expect_arithmetic

__all__ = ["FAMILY", "AvgPool", "MaxPool"]


def _pool_windows(
    x: np.ndarray, a: Attributes, fill: int, reduce: Callable[..., np.ndarray]
) -> np.ndarray:
    """Return `reduce` of every window; what lies outside the input is `fill`."""
    kernel = list(a["kernel_shape"])
    rank = len(kernel)
    strides, pads = list(a.get("strides") or [1] * rank), list(a.get("pads") or [0] * 2 * rank)
    dilations = list(a.get("dilations") or [1] * rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    space = []
    for i in range(rank):
        size = x.shape[2 + i] + pads[i] + pads[rank + i] - reach[i]
        count = (-(-size // strides[i]) if a.get("ceil_mode") else size // strides[i]) + 1
        if a.get("ceil_mode") and (count - 1) * strides[i] >= x.shape[2 + i] + pads[i]:
            count -= 1  # a window must begin inside the input or the padding before it
        space.append(count)
    ends = [
        max(0, (n - 1) * s + r - x.shape[2 + i] - pads[i])
        for i, (n, s, r) in enumerate(zip(space, strides, reach, strict=True))
    ]
    wide = np.pad(
        x.astype(np.int64),
        [(0, 0), (0, 0), *zip(pads[:rank], ends, strict=True)],
        constant_values=fill,
    )
    out = np.zeros((*x.shape[:2], *space), np.int64)
    for place in np.ndindex(*space):
        window = [
            slice(p * s, p * s + r, d)
            for p, s, r, d in zip(place, strides, reach, dilations, strict=True)
        ]
        out[(slice(None), slice(None), *place)] = reduce(wide[(slice(None), slice(None), *window)])
    return out


class MaxPool(StandardOpRun):
    """The largest integer; padding is the most negative one of the type."""

    names: tuple[str, ...] = ("MaxPool",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the largest integer of every window."""
        (x,) = inputs
        axes = tuple(range(2, x.ndim))
        return _pool_windows(x, a, int(np.iinfo(x.dtype).min), lambda w: w.max(axes)).astype(
            x.dtype
        )


class AvgPool(Integer):
    """The mean over the whole window, padding included."""

    names: tuple[str, ...] = ("AvgPool2dInt", "QAvgPool2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Sum, then divide as the platform does."""
        (x,) = inputs
        axes = tuple(range(2, x.ndim))
        total, area = (
            _pool_windows(a.subtract_zero_point(x, "x"), a, 0, lambda w: w.sum(axes)),
            math.prod(a["kernel_shape"]),
        )
        x_scale = a.scale("scale_x")
        o_scale = float(a.get("scale_o") or x_scale)
        divisor = expect_arithmetic(arithmetic, AveragePoolArithmetic).divisor
        if divisor is AverageDivisor.ONE_ROUNDING:
            return requantize(
                total,
                o_scale / (x_scale * area),
                a.o_bits,
                arithmetic.requantize,
                a.zero_point("o"),
            )
        byte = divisor is AverageDivisor.INT8_AREA
        return self.average_on_chip(total, area, exact_log2(o_scale) - exact_log2(x_scale), byte)

    @staticmethod
    def average_on_chip(
        total: np.ndarray, area: int, left_shift: int, area_in_byte: bool
    ) -> np.ndarray:
        """Return the int8 mean of `area` numbers, moved up by `left_shift` = q_o - q_x, as a chip computes it.

        area_in_byte : as venus, which looks at no scales where it can shift, and holds the area in
        a signed byte where not.
        """
        if math.log2(area).is_integer():
            if not area_in_byte:
                total = (
                    saturate(round_shift_half_up(to_python_ints(total), -left_shift), 32)
                    if left_shift <= 0
                    else total * 0
                )
            return cast_to_width(
                saturate(round_shift_half_up(to_python_ints(total), int(math.log2(area))), 8), 8
            )
        if left_shift < 0:
            return cast_to_width(np.full(total.shape, 0 if area_in_byte else -128), 8)
        divisor = int(np.array(area).astype(np.int8)) if area_in_byte else area
        quotients = [divide(int(n), divisor, left_shift) for n in total.reshape(-1)]
        held = np.clip(np.array(quotients, np.int64), *INT32).reshape(total.shape)
        return cast_to_width(saturate(held, 8), 8)


FAMILY: tuple[type[Integer], ...] = (AvgPool, MaxPool)
