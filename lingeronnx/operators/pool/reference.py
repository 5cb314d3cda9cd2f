"""Pooling of [N, C, ...]: maximum, or mean over the complete window."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...targets.arithmetic import (
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    Requantization,
)
from .._reference_arithmetic import (
    INT32,
    cast_to_width,
    divide,
    exact_log2,
    requantize,
    round_shift_half_up,
    saturate,
    to_python_ints,
)
from .._reference_op import Attributes, Integer, Outputs, StandardOpRun, expect_arithmetic

__all__ = ["FAMILY", "AvgPool", "MaxPool"]


def _pool_windows(
    x: np.ndarray, a: Attributes, fill: int, reduce: Callable[..., np.ndarray]
) -> np.ndarray:
    """Apply `reduce` to every window of x [N, C, ...], padded with `fill`.

    `reduce` maps [N, C, window] to [N, C]. The attributes `a` give kernel_shape, strides, pads,
    dilations and ceil_mode.

    Returns
    -------
    np.ndarray
        int64 [N, C, ...].
    """
    kernel = list(a["kernel_shape"])
    rank = len(kernel)
    strides, pads = list(a.get("strides") or [1] * rank), list(a.get("pads") or [0] * 2 * rank)
    dilations = list(a.get("dilations") or [1] * rank)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    has_ceil_mode = bool(a.get("ceil_mode"))
    output_shape, end_pads = [], []
    for size, span, stride, begin, end in zip(
        x.shape[2:], spans, strides, pads[:rank], pads[rank:], strict=True
    ):
        count = _count_windows(size, span, stride, (begin, end), has_ceil_mode)
        output_shape.append(count)
        end_pads.append(max(0, (count - 1) * stride + span - size - begin))
    padded = np.pad(
        x.astype(np.int64),
        [(0, 0), (0, 0), *zip(pads[:rank], end_pads, strict=True)],
        constant_values=fill,
    )
    out = np.zeros((*x.shape[:2], *output_shape), np.int64)
    for index in np.ndindex(*output_shape):
        window = [
            slice(i * stride, i * stride + span, dilation)
            for i, stride, span, dilation in zip(index, strides, spans, dilations, strict=True)
        ]
        out[:, :, *index] = reduce(padded[:, :, *window])
    return out


def _count_windows(
    size: int, span: int, stride: int, pads: tuple[int, int], has_ceil_mode: bool
) -> int:
    """Return the number of windows along an axis of `size`, by the rules of ONNX.

    `span` is the dilated size of the window, `pads` (begin, end). With ceil mode, an incomplete
    last window counts, unless it would begin in the padding at the end.
    """
    free_size = size + sum(pads) - span
    if not has_ceil_mode:
        return free_size // stride + 1
    count = -(-free_size // stride) + 1
    # A window must begin inside the input or the padding before it.
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return count


class MaxPool(StandardOpRun):
    """Maximum of each window; padding is the minimum of the type."""

    names: tuple[str, ...] = ("MaxPool",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the maximum of each window of x, in the type of x; padding never wins."""
        (x,) = inputs
        axes = tuple(range(2, x.ndim))
        maxima = _pool_windows(x, a, int(np.iinfo(x.dtype).min), lambda w: w.max(axes))
        return maxima.astype(x.dtype)


class AvgPool(Integer):
    """Mean of each window, padding included."""

    names: tuple[str, ...] = ("AvgPool2dInt", "QAvgPool2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the mean of each window of x, padding included, as the target computes it.

        It is the sum, requantized once with scale_o / (scale_x * area), or int8 means by the chip's
        division. Without `scale_o`, the output has the input's scale.
        """
        (x,) = inputs
        axes = tuple(range(2, x.ndim))
        total = _pool_windows(a.subtract_zero_point(x, "x"), a, 0, lambda w: w.sum(axes))
        area = math.prod(a["kernel_shape"])
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
        if divisor is AverageDivisor.SCALED_AREA and math.log2(area).is_integer():
            return requantize(total, o_scale / (x_scale * area), 8, Requantization(shifts=True))
        is_int8_area = divisor is AverageDivisor.INT8_AREA
        left_shift = exact_log2(o_scale) - exact_log2(x_scale)
        return self.average_on_chip(total, area, left_shift, is_int8_area)

    @staticmethod
    def average_on_chip(
        total: np.ndarray, area: int, left_shift: int, is_int8_area: bool
    ) -> np.ndarray:
        """Return the int8 means of windows in the arithmetic of a chip.

        A power-of-two area is a rounded shift; other areas are divided, where a negative
        `left_shift` gives only 0 or -128.

        Parameters
        ----------
        total
            Sum of each window.
        area
            Elements of a window.
        left_shift
            q_o - q_x, log2 of the ratio of the scales.
        is_int8_area
            The rule of venus, which ignores the scales if the area is a power of two, and stores
            the area as int8 otherwise. Without it, a positive `left_shift` gives 0 for such areas.
        """
        if math.log2(area).is_integer():
            if not is_int8_area and left_shift > 0:
                total = total * 0
            elif not is_int8_area:
                total = saturate(round_shift_half_up(to_python_ints(total), -left_shift), 32)
            mean = round_shift_half_up(to_python_ints(total), int(math.log2(area)))
            return cast_to_width(saturate(mean, 8), 8)
        if left_shift < 0:
            return cast_to_width(np.full(total.shape, 0 if is_int8_area else -128), 8)
        divisor = int(np.array(area).astype(np.int8)) if is_int8_area else area
        quotients = [divide(int(n), divisor, left_shift) for n in total.reshape(-1)]
        mean = np.clip(np.array(quotients, np.int64), *INT32).reshape(total.shape)
        return cast_to_width(saturate(mean, 8), 8)


FAMILY: tuple[type[Integer], ...] = (AvgPool, MaxPool)
