"""Cycles of the kernels that slide a window.

Convolutions, depthwise ones, pools, transposed convolutions.
The array computes two output channels and eight input channels at a time, and four columns of a
line; the first and last columns and rows cost what the padding leaves of them. The formulas are the
hardware's, 1350 and 300 are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "Window",
    "estimate_conv2d_cycles",
    "estimate_deconv_cycles",
    "estimate_depthwise_cycles",
    "estimate_pool_cycles",
    "get_start_cycles",
]

_WEIGHT_BUFFER_BYTES = 8192  # bytes of the array's weights
_INPUT_BUFFER_BYTES = 16384  # bytes of the array's input
_CONV_START_CYCLES, _PART, _ROWS = 1350, 300, 1050
_DEPTHWISE_START_CYCLES = 1280  # the start of a kernel that keeps channels apart


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Window:
    """The arguments of a call: channels in and out, height and width, then pairs.

    Pads: top, left, bottom, right.
    """

    c_in: int
    h: int
    w: int
    c_out: int
    kernel: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    pads: Sequence[int]

    @property
    def width(self) -> int:
        """The width in whole steps of the array, four outputs each."""
        return _round_up(self.w, 4 * self.stride[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output; the width as if the input had whole steps."""
        top, left, bottom, right = self.pads
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        high = (self.h + top + bottom - reach[0]) // self.stride[0] + 1
        return high, (self.width + left + right - reach[1]) // self.stride[1] + 1


@dataclass(frozen=True)
class _Columns:
    """What one line of the kernel costs: cycles of computing, of holding, of passing by."""

    computed: int
    held: int
    passed: int


def _columns(
    kernel: int, lead: int, step: int, left: int, edge: int, steps: int, covered: int
) -> _Columns:
    """Return the cycles of a line.

    kernel : columns with the `lead` in front. step : columns of the input in a step. left : steps
    that begin in the left padding. edge : columns of the right padding beyond the last step. steps
    : whole steps of a line. covered : steps that the kernel reaches over.
    """
    spare = -kernel % step
    left_held = left * (left + 1) // 2
    left_whole = left * covered - left_held
    right = -(-edge // step) if edge > 0 else 0
    right_held = right * (right + 1) // 2
    right_whole = right * covered - right_held
    middle = steps - (kernel - 1) // step
    computed = kernel * middle + step * (left_whole + right_whole) - spare * left
    return _Columns(
        computed,
        (kernel + 2) * (left + right + middle),
        step * (left_held + right_held) - spare * right,
    )


def _get_reached_padding(size: int, first: int, last: int, kernel: int, stride: int) -> int:
    """Return the padding behind the last element that the kernel reaches."""
    return (
        max(
            0, stride * ((size + first + last - (kernel - 1) + stride - 1) // stride) - size - first
        )
        if last
        else 0
    )


def _estimate_array_cycles(window: Window, outputs: int, sums_over_inputs: bool) -> int:
    """Return the cycles of the array for `outputs` channels; deep: it sums over input channels."""
    (kh, kw), (sh, sw) = window.kernel, window.stride
    top, left, bottom, right = window.pads
    right = _get_reached_padding(window.w, left, right, kw, sw)
    bottom = _get_reached_padding(window.h, top, bottom, kh, sh)
    high, step = window.size[0], 4 * sw
    above, below = range(top, 0, -sh), range(bottom, 0, -sh)
    outside = [*above, *below]
    rows = kh * (high - len(above) - len(below)) + sum(kh - n for n in outside)
    lead = -left % sw
    kernel = kw + lead
    begun = math.ceil(left / step)
    begun = begun - (kernel <= step * begun) if left > 0 else 0
    steps = math.ceil(window.w / step)
    edge = right - (-window.w % step) + (-kernel % step)
    line = _columns(kernel, lead, step, begun, edge, steps, math.ceil(kernel / step))
    pairs, groups = math.ceil(outputs / 2), math.ceil(window.c_in / 8) if sums_over_inputs else 1
    cycles = pairs * groups * rows * line.computed + pairs * sum(outside) * line.computed
    cycles += high * pairs * (line.held + line.passed) + 13 * pairs
    if not sums_over_inputs:
        return cycles - 16 - lead * steps * pairs * (high - sum(outside) + len(outside))
    skipped = (high - sum(outside)) * (groups * kh - 1) + sum(
        groups * (kh - n) + n - 1 for n in outside
    )
    return cycles - lead * steps * pairs * skipped


def _get_conv_split(window: Window) -> tuple[int, int] | None:
    """Return how many outputs a part of a convolution has at most, and in how many pieces the input comes.

    None where weights or a line fill the array's memory.
    """
    (kh, kw), sh = window.kernel, window.stride[0]
    deep = _round_up(window.c_in, 8)
    weights, line = deep * kh * kw, deep * window.width
    if (
        2 * weights > _WEIGHT_BUFFER_BYTES
        or line > _INPUT_BUFFER_BYTES
        or _INPUT_BUFFER_BYTES // line == kh - sh
    ):
        return None
    return 2 * (_WEIGHT_BUFFER_BYTES // weights // 2), math.ceil(
        window.h / (_INPUT_BUFFER_BYTES // line)
    )


def estimate_conv2d_cycles(window: Window) -> float | None:
    """Return the cycles of a convolution.

    None without a price: where weights or a line fill the array's memory.
    """
    cuts = _get_conv_split(window)
    if cuts is None:
        return None
    most, pieces = cuts
    deep = _round_up(window.c_in, 8)
    weights = deep * math.prod(window.kernel)
    high, wide = window.size
    cycles, parts = 0.0, 0
    for first in range(0, window.c_out, most):
        outputs = min(most, window.c_out - first)
        cycles += (
            _CONV_START_CYCLES
            + deep * window.h * _round_up(window.width, 8) / 8
            + _round_up(outputs, 2) * weights / 8
        )
        cycles += max(
            outputs * high * wide / 16,
            _estimate_array_cycles(window, outputs, sums_over_inputs=True),
        )
        cycles += _ROWS * pieces + 3 * window.c_in if pieces > 1 else 0
        parts += 1
    return cycles - _PART * (parts - 1)


def get_start_cycles(kernel: str, window: Window) -> float:
    """Return what a call takes before its first element, of a window that has a price.

    Of all its parts and pieces.
    """
    if kernel != "conv2d":
        return _CONV_START_CYCLES if kernel == "deconv" else _DEPTHWISE_START_CYCLES
    cuts = _get_conv_split(window)
    assert cuts is not None
    most, pieces = cuts
    parts = math.ceil(window.c_out / most)
    return (
        _CONV_START_CYCLES * parts
        - _PART * (parts - 1)
        + (_ROWS * pieces * parts if pieces > 1 else 0)
    )


def estimate_depthwise_cycles(window: Window) -> float | None:
    """Return the cycles of a convolution of each channel by itself.

    None where channels in and out differ.
    """
    if window.c_in != window.c_out:
        return None
    return estimate_pool_cycles(window) + _round_up(window.c_in, 2) * math.prod(window.kernel) / 8


def estimate_pool_cycles(window: Window) -> float:
    """Return the cycles of a pool, largest or mean."""
    high, wide = window.size
    load = _round_up(window.c_in, 2) * window.h * window.width / 8
    return (
        _DEPTHWISE_START_CYCLES
        + load
        + max(
            window.c_in * high * wide / 16,
            _estimate_array_cycles(window, window.c_in, sums_over_inputs=False),
        )
    )


def estimate_deconv_cycles(window: Window, pads_are: str = "torch") -> float | None:
    """Return the cycles of a transposed convolution.

    None for pads that differ, or are larger than the kernel.
    pads_are : "torch", those of the operator, or "direct", those of the array.
    """
    (kh, kw), (sh, sw) = window.kernel, window.stride
    top, left, bottom, right = window.pads
    if top != bottom or left != right:
        return None
    wide = (window.w - 1) * sw + sw + left + right - kw
    if pads_are == "torch":
        top = bottom = kh - 1 - top
        left = kw - 1 - left
        right = left - (sw - 1)
        wide = (window.w - 1) * sw + 2 + 2 * left - kw
        if min(top, left, right) < 0:
            return None
    high = (window.h - 1) * sh + 2 + top + bottom - kh
    begun = math.ceil(left / 4) - (kw <= 4) if left > 0 else 0
    steps = math.ceil(window.w * sw / 4)
    edge = right - (-window.w * sw % 4) + (-kw % 4)
    line = _columns(kw, 0, 4, begun, edge, steps, math.ceil(kw / 4))
    rows = 0
    for n in range(1, window.h + 1):
        before, after = top + (n - 1) * sh, bottom + (window.h - n) * sh
        if kh > before:
            rows += top + bottom + 2 - kh + (window.h - 1) * sh if kh > after + 1 else before + 1
        else:
            rows += after + 1 if kh > after + 1 else kh
    pairs, deep = math.ceil(window.c_out / 2), _round_up(window.c_in, 8)
    cycles = pairs * (deep // 8) * rows * line.computed + pairs * (high * kh - rows) * line.computed
    cycles += high * pairs * (line.held + line.passed) + 13 * pairs
    load = deep * window.h * window.width / 8 + _round_up(window.c_out, 2) * deep * kh * kw / 8
    return _CONV_START_CYCLES + load + max(window.c_out * high * wide / 16, cycles)
