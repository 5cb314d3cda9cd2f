"""Average pooling as ONNX defines it: each window by its number of elements, rounded once.

    y = sat(round(sum * numerator / (count * denominator)))
    numerator / denominator = scale_out / scale_x

`count` is the size of the window clipped to the padded image, or to the image itself if padding
does not count, or a given divisor. Padding is zeros. The NPU computes `pool.AvgPool` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import RoundingMode, divide_rounded, integer_dtype
from simulator.kernel import Array, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import (
    ClampableKernel,
    SlidingWindow,
    channel_last_shape,
    image_size,
    make_window,
    max_magnitude,
    require_signed_integer,
)
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["Mean"]


@jit(allocates=True)
def _average_windows(
    x: Array,
    geometry: tuple[int, ...],
    counts: tuple[bool, int],
    ratio: tuple[int, int],
    rounding: int,
    limits: tuple[int, int],
    out: Array,
) -> None:
    """Fill out with the averages of the windows of x: sum / count * ratio, rounded once.

    Parameters
    ----------
    x
        Integers [N, H, W, C].
    geometry
        Kernel height and width, strides (vertical, horizontal), pads (top, left, bottom, right).
    counts
        Whether padding counts as elements of a window; a divisor for all windows, or 0.
    ratio
        (numerator, denominator) of scale_out / scale_x.
    rounding
        Integer of a `RoundingMode`.
    limits
        Smallest and largest result.
    out
        [N, Ho, Wo, C], filled.
    """
    kh, kw, stride_y, stride_x, top, left, bottom, right = geometry
    padded, fixed_count = counts
    numerator, denominator = ratio
    low, high = limits
    _, rows, columns, channels = x.shape
    samples, out_rows, out_columns, _ = out.shape
    acc = np.empty(channels, np.int64)
    for n in range(samples):
        for oy in range(out_rows):
            first_y = oy * stride_y - top
            last_y = min(first_y + kh, rows + bottom)
            for ox in range(out_columns):
                first_x = ox * stride_x - left
                last_x = min(first_x + kw, columns + right)
                count = (last_y - first_y) * (last_x - first_x)
                begin_y, end_y = max(first_y, 0), min(last_y, rows)
                begin_x, end_x = max(first_x, 0), min(last_x, columns)
                if not padded:
                    count = max((end_y - begin_y) * (end_x - begin_x), 1)
                if fixed_count:
                    count = fixed_count
                acc[:] = 0
                for y in range(begin_y, end_y):
                    for z in range(begin_x, end_x):
                        for c in range(channels):
                            acc[c] += x[n, y, z, c]
                for c in range(channels):
                    value = divide_rounded(acc[c] * numerator, count * denominator, rounding)
                    out[n, oy, ox, c] = min(max(value, low), high)


@dataclass(frozen=True, eq=False)
class Mean(ClampableKernel):
    """Mean of each window of x [N, C, H, W] or [N, C, W].

    Parameters
    ----------
    kernel, strides, pads
        One value per spatial axis; pads, all begins and then all ends. None is the full image for
        the kernel, 1 for strides and 0 for pads.
    ceil_mode
        Whether a last window may extend beyond the padded image.
    shift
        log2(scale_out / scale_x).
    bits
        Width of the result.
    rounding
        Rounding mode.
    count_include_pad
        Whether padding counts as elements of the window.
    divisor
        Divisor of every sum; 0 is the number of elements of the window.
    clip_bounds
        Bounds of a fused Relu or Clip.
    """

    kernel: Sequence[int] | None
    strides: Sequence[int] | None
    pads: Sequence[int] | None
    shift: int
    bits: int = 8
    rounding: RoundingMode = RoundingMode.HALF_UP
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int = 0
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the averages y [N, C, *space], of `bits` bits, from x [N, C, W] or [N, C, H, W].

        Raises SimulatorError for another rank or unsigned x, a negative divisor, or a shift beyond
        29.
        """
        (x,) = specs
        require_signed_integer(x, "Mean")
        require(len(x.shape) in (3, 4), f"Mean requires [N, C, W] or [N, C, H, W], not {x}")
        require(
            self.divisor >= 0 and abs(self.shift) <= 29,
            f"invalid mean: divisor {self.divisor}, shift {self.shift}",
        )
        space = self._window(x).output_size(x.shape[2:], self.ceil_mode)
        return (TensorSpec((*x.shape[:2], *space), integer_dtype(self.bits)),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the averaging loop for the size of x; `shift` multiplies by 2^shift.

        Outputs are limited to `bits` bits and to `clip_bounds`. Raises SimulatorError if sums do
        not fit 61 bits.
        """
        (x,) = specs
        window = self._window(x)
        largest = max(window.kernel[0] * window.kernel[1], self.divisor) << abs(self.shift)
        require(
            largest * max_magnitude(x.dtype) < 1 << 61,
            f"sums over {list(window.kernel)} do not fit 61 bits",
        )
        top = 1 << (self.bits - 1)
        low, high = self.clip_bounds or (-top, top - 1)
        limits = (max(low, -top), min(max(high, -top), top - 1))
        geometry = (*window.kernel, *window.strides, *window.pads)
        ratio = (1 << max(self.shift, 0), 1 << max(-self.shift, 0))
        counts, rounding = (self.count_include_pad, self.divisor), int(self.rounding)
        (y,) = self.infer(*specs)
        target = OutputRef(0, channel_last_shape(y))
        return NativeLoop(
            _average_windows,
            (InputRef(0, channel_last_shape(x)), geometry, counts, ratio, rounding, limits, target),
        )

    def _window(self, x: TensorSpec) -> SlidingWindow:
        """Return the sliding window for x; without a kernel size it is the complete image."""
        kernel = self.kernel or image_size(x.shape[2:])[4 - len(x.shape) :]
        return make_window(kernel, self.strides, self.pads, None)
