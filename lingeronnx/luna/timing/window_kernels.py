"""Cycles of the sliding-window kernels: (depthwise, transposed) convolutions and pools.

The array computes two output channels and eight input channels at a time, and four columns of a
row. The cost of the first and last rows and columns depends on the padding. The formulas are the
hardware's; 1350 and 300 are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...common.arithmetic import round_up

__all__ = [
    "Window",
    "estimate_conv2d_cycles",
    "estimate_deconv_cycles",
    "estimate_depthwise_cycles",
    "estimate_pool_cycles",
    "get_start_cycles",
]

_WEIGHT_BUFFER_BYTES = 8192  # the array's memory for weights
_INPUT_BUFFER_BYTES = 16384  # the array's memory for input rows
_CONV_START_CYCLES = 1350
_SLICE_SAVING_CYCLES = 300  # saved by each slice of output channels after the first
_INPUT_BLOCK_CYCLES = 1050  # of each block of input rows, if there are several
_DEPTHWISE_START_CYCLES = 1280  # start of a kernel that computes each channel separately


@dataclass(frozen=True)
class Window:
    """Arguments of a sliding-window kernel.

    Attributes
    ----------
    c_in, h, w
        Channels, height and width of the input.
    c_out
        Channels of the output.
    kernel, stride, dilation
        Height and width.
    pads
        Top, left, bottom, right.
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
        """The input width, rounded up to full steps of the array: 4 outputs, so 4 strides, each."""
        return round_up(self.w, 4 * self.stride[1])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the output, for the input width rounded up to full steps."""
        pad_top, pad_left, pad_bottom, pad_right = self.pads
        kernel_h, kernel_w = (
            d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)
        )
        out_h = (self.h + pad_top + pad_bottom - kernel_h) // self.stride[0] + 1
        return out_h, (self.width + pad_left + pad_right - kernel_w) // self.stride[1] + 1


@dataclass(frozen=True)
class _RowCycles:
    """Cycles of one kernel row over a row of the map: computing, holding data, passing it on."""

    compute: int
    hold: int
    pass_on: int


def _estimate_row_cycles(
    kernel: int,
    lead: int,
    step: int,
    left_steps: int,
    right_columns: int,
    steps: int,
    kernel_steps: int,
) -> _RowCycles:
    """Estimate the cycles of one kernel row over a row of the map.

    Parameters
    ----------
    kernel
        Columns of the kernel, including the `lead` columns in front of it.
    lead
        Columns by which the left padding misses a multiple of the stride.
    step
        Input columns of a step of the array.
    left_steps
        Steps that begin in the left padding.
    right_columns
        Columns of right padding beyond the last step.
    steps
        Steps of a row.
    kernel_steps
        Steps that the kernel covers.
    """
    spare_columns = -kernel % step
    left_held = left_steps * (left_steps + 1) // 2
    left_computed = left_steps * kernel_steps - left_held
    right_steps = -(-right_columns // step) if right_columns > 0 else 0
    right_held = right_steps * (right_steps + 1) // 2
    right_computed = right_steps * kernel_steps - right_held
    middle_steps = steps - (kernel - 1) // step
    compute = kernel * middle_steps + step * (left_computed + right_computed)
    return _RowCycles(
        compute - spare_columns * left_steps,
        (kernel + 2) * (left_steps + right_steps + middle_steps),
        step * (left_held + right_held) - spare_columns * right_steps,
    )


def _get_reached_padding(size: int, pad_begin: int, pad_end: int, kernel: int, stride: int) -> int:
    """Count the elements of the `pad_end` at the end of an axis that the kernel reaches.

    At least 0; `size` is the unpadded size, all in elements. 0 if `pad_end` is 0.
    """
    if not pad_end:
        return 0
    steps = (size + pad_begin + pad_end - (kernel - 1) + stride - 1) // stride
    return max(0, stride * steps - size - pad_begin)


def _estimate_array_cycles(window: Window, out_channels: int, sums_over_inputs: bool) -> int:
    """Estimate the cycles that the array computes `out_channels` channels, without loading.

    `sums_over_inputs` says whether outputs sum over all input channels, as in a convolution; False
    for depthwise ones and pools. Rows and columns in the padding cost less or more.
    """
    (kernel_h, kernel_w), (stride_h, stride_w) = window.kernel, window.stride
    pad_top, pad_left, pad_bottom, pad_right = window.pads
    pad_right = _get_reached_padding(window.w, pad_left, pad_right, kernel_w, stride_w)
    pad_bottom = _get_reached_padding(window.h, pad_top, pad_bottom, kernel_h, stride_h)
    out_h, step = window.size[0], 4 * stride_w

    # Kernel rows in the padding, for each output row whose window starts or ends there.
    rows_in_padding = [*range(pad_top, 0, -stride_h), *range(pad_bottom, 0, -stride_h)]
    inner_rows = out_h - len(rows_in_padding)
    kernel_rows = kernel_h * inner_rows + sum(kernel_h - n for n in rows_in_padding)

    lead = -pad_left % stride_w
    kernel = kernel_w + lead
    left_steps = 0
    if pad_left > 0:
        left_steps = math.ceil(pad_left / step)
        left_steps -= kernel <= step * left_steps
    steps = math.ceil(window.w / step)
    right_columns = pad_right - (-window.w % step) + (-kernel % step)
    kernel_steps = math.ceil(kernel / step)
    row = _estimate_row_cycles(kernel, lead, step, left_steps, right_columns, steps, kernel_steps)

    channel_pairs = math.ceil(out_channels / 2)
    channel_groups = math.ceil(window.c_in / 8) if sums_over_inputs else 1
    cycles = channel_pairs * channel_groups * kernel_rows * row.compute
    cycles += channel_pairs * sum(rows_in_padding) * row.compute
    cycles += out_h * channel_pairs * (row.hold + row.pass_on) + 13 * channel_pairs
    if not sums_over_inputs:
        skipped_rows = out_h - sum(rows_in_padding) + len(rows_in_padding)
        return int(cycles - 16 - lead * steps * channel_pairs * skipped_rows)
    skipped_rows = (out_h - sum(rows_in_padding)) * (channel_groups * kernel_h - 1)
    skipped_rows += sum(channel_groups * (kernel_h - n) + n - 1 for n in rows_in_padding)
    return int(cycles - lead * steps * channel_pairs * skipped_rows)


class _ConvSplit(NamedTuple):
    """Split of a convolution by the array's memory."""

    slice_outputs: int  # most output channels of a slice
    input_blocks: int  # blocks of input rows


def _get_conv_split(window: Window) -> _ConvSplit | None:
    """Return the split of a convolution by the array's memory; None if weights or a row fill it.

    The split says how many (an even number of) output channels a slice of weights has, and in how
    many blocks of rows the input is loaded.
    """
    (kernel_h, kernel_w), stride_h = window.kernel, window.stride[0]
    channels = round_up(window.c_in, 8)
    weight_bytes, row_bytes = channels * kernel_h * kernel_w, channels * window.width
    if 2 * weight_bytes > _WEIGHT_BUFFER_BYTES or row_bytes > _INPUT_BUFFER_BYTES:
        return None
    buffer_rows = _INPUT_BUFFER_BYTES // row_bytes
    if buffer_rows == kernel_h - stride_h:
        return None
    return _ConvSplit(
        2 * (_WEIGHT_BUFFER_BYTES // weight_bytes // 2), math.ceil(window.h / buffer_rows)
    )


def estimate_conv2d_cycles(window: Window) -> float | None:
    """Estimate the cycles of a convolution over all slices of output channels.

    None without a cost model: if weights of two outputs or an input row fill the array's memory.
    """
    split = _get_conv_split(window)
    if split is None:
        return None
    channels = round_up(window.c_in, 8)
    weights = channels * math.prod(window.kernel)
    out_h, out_w = window.size
    cycles, slices = 0.0, 0
    for start in range(0, window.c_out, split.slice_outputs):
        outputs = min(split.slice_outputs, window.c_out - start)
        cycles += (
            _CONV_START_CYCLES
            + channels * window.h * round_up(window.width, 8) / 8
            + round_up(outputs, 2) * weights / 8
        )
        cycles += max(
            outputs * out_h * out_w / 16,
            _estimate_array_cycles(window, outputs, sums_over_inputs=True),
        )
        if split.input_blocks > 1:
            cycles += _INPUT_BLOCK_CYCLES * split.input_blocks + 3 * window.c_in
        slices += 1
    return cycles - _SLICE_SAVING_CYCLES * (slices - 1)


def get_start_cycles(kernel: str, window: Window) -> float:
    """Return the cycles before the first element of a call with a cost model, of all its slices.

    For `conv2d` they depend on the slices of output channels and the blocks of input rows; for
    `deconv` and all other kernels they are constants.
    """
    if kernel != "conv2d":
        return _CONV_START_CYCLES if kernel == "deconv" else _DEPTHWISE_START_CYCLES
    split = _get_conv_split(window)
    assert split is not None
    slices = math.ceil(window.c_out / split.slice_outputs)
    cycles = _CONV_START_CYCLES * slices - _SLICE_SAVING_CYCLES * (slices - 1)
    if split.input_blocks > 1:
        cycles += _INPUT_BLOCK_CYCLES * split.input_blocks * slices
    return cycles


def estimate_depthwise_cycles(window: Window) -> float | None:
    """Estimate the cycles of a depthwise convolution: those of a pool, and loading weights.

    None if the numbers of input and output channels differ.
    """
    if window.c_in != window.c_out:
        return None
    return estimate_pool_cycles(window) + round_up(window.c_in, 2) * math.prod(window.kernel) / 8


def estimate_pool_cycles(window: Window) -> float:
    """Estimate the cycles of max or average pooling.

    They are start, loading the input, and the longer of storing and computing.
    """
    out_h, out_w = window.size
    load = round_up(window.c_in, 2) * window.h * window.width / 8
    store = window.c_in * out_h * out_w / 16
    compute = _estimate_array_cycles(window, window.c_in, sums_over_inputs=False)
    return _DEPTHWISE_START_CYCLES + load + max(store, compute)


def estimate_deconv_cycles(window: Window, pads_are: str = "torch") -> float | None:
    """Estimate the cycles of a transposed convolution.

    Parameters
    ----------
    pads_are
        Meaning of the pads: those of the operator ("torch") or those of the array ("direct").

    Returns
    -------
    float or None
        None if the pads of an axis differ or, for "torch", are too large for kernel and stride.
    """
    (kernel_h, kernel_w), (stride_h, stride_w) = window.kernel, window.stride
    pad_top, pad_left, pad_bottom, pad_right = window.pads
    if pad_top != pad_bottom or pad_left != pad_right:
        return None
    out_w = (window.w - 1) * stride_w + stride_w + pad_left + pad_right - kernel_w
    if pads_are == "torch":
        pad_top = pad_bottom = kernel_h - 1 - pad_top
        pad_left = kernel_w - 1 - pad_left
        pad_right = pad_left - (stride_w - 1)
        out_w = (window.w - 1) * stride_w + 2 + 2 * pad_left - kernel_w
        if min(pad_top, pad_left, pad_right) < 0:
            return None
    out_h = (window.h - 1) * stride_h + 2 + pad_top + pad_bottom - kernel_h
    left_steps = math.ceil(pad_left / 4) - (kernel_w <= 4) if pad_left > 0 else 0
    steps = math.ceil(window.w * stride_w / 4)
    right_columns = pad_right - (-window.w * stride_w % 4) + (-kernel_w % 4)
    kernel_steps = math.ceil(kernel_w / 4)
    row = _estimate_row_cycles(kernel_w, 0, 4, left_steps, right_columns, steps, kernel_steps)

    kernel_rows = _count_deconv_rows(window, pad_top, pad_bottom)
    channel_pairs, channels = math.ceil(window.c_out / 2), round_up(window.c_in, 8)
    cycles = channel_pairs * (channels // 8) * kernel_rows * row.compute
    cycles += channel_pairs * (out_h * kernel_h - kernel_rows) * row.compute
    cycles += out_h * channel_pairs * (row.hold + row.pass_on) + 13 * channel_pairs
    load = channels * window.h * window.width / 8
    load += round_up(window.c_out, 2) * channels * kernel_h * kernel_w / 8
    return _CONV_START_CYCLES + load + max(window.c_out * out_h * out_w / 16, cycles)


def _count_deconv_rows(window: Window, pad_top: int, pad_bottom: int) -> int:
    """Count the kernel rows that meet an input row, over all input rows.

    The input rows lie `stride` apart, with `pad_top` and `pad_bottom` rows around them.
    """
    kernel_h, stride_h = window.kernel[0], window.stride[0]
    stretched_h = (window.h - 1) * stride_h
    kernel_rows = 0
    for row in range(window.h):
        rows_above = pad_top + row * stride_h
        rows_below = pad_bottom + stretched_h - row * stride_h
        reaches_top, reaches_bottom = kernel_h > rows_above, kernel_h > rows_below + 1
        if reaches_top and reaches_bottom:
            kernel_rows += pad_top + pad_bottom + 2 - kernel_h + stretched_h
        elif reaches_top:
            kernel_rows += rows_above + 1
        elif reaches_bottom:
            kernel_rows += rows_below + 1
        else:
            kernel_rows += kernel_h
    return kernel_rows
