"""Pooling over windows of channel-last images.

    MaxPool   the largest integer of the window; padding counts as the most negative integer
    AvgPool   rule(sum of the window); padding counts as zeros and belongs to the area

Both are separable: the rows of a window are reduced for a full output row at once, then the
columns.

Owns: the loops, and `luna_average`, which selects the NPU's division rule. Must not know: how a
rule rounds (`fixed_point`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import (
    INT32_MIN,
    ChainedRescale,
    LunaDivide,
    Rescale,
    RescaleForm,
    apply_rescale,
)
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import (
    ClampableKernel,
    SlidingWindow,
    channel_last_shape,
    make_window,
    max_magnitude,
    require_signed_integer,
)
from simulator.kernels.loops._copy import fill_flat
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["AvgPool", "MaxPool", "luna_average"]


@jit(allocates=True)
def _max_pool(x: Array, geometry: tuple[int, ...], lowest: int, out: Array) -> None:
    """Fill out [N, Ho, Wo, C] with the maxima of the windows of x [N, H, W, C].

    geometry : (kh, kw, stride_y, stride_x, top, left, dilation_y, dilation_x), with the pads top
    and left. lowest : the most negative integer of x's type, which padding has. out has the type of
    x.
    """
    kh, kw, stride_y, stride_x, top, left, dilation_y, dilation_x = geometry
    _, rows, columns, channels = x.shape
    samples, out_rows, out_columns, _ = out.shape
    line = np.empty(columns * channels, x.dtype)  # maxima over the window's rows, per column
    for n in range(samples):
        for oy in range(out_rows):
            fill_flat(line, lowest)
            for r in range(kh):
                y = oy * stride_y - top + r * dilation_y
                if 0 <= y < rows:
                    source = view_as(x[n, y], (line.size,))
                    for i in range(line.size):
                        line[i] = max(line[i], source[i])
            for ox in range(out_columns):
                target = out[n, oy, ox]
                fill_flat(target, lowest)
                for c in range(kw):
                    z = ox * stride_x - left + c * dilation_x
                    if 0 <= z < columns:
                        source = line[z * channels : (z + 1) * channels]
                        for i in range(channels):
                            target[i] = max(target[i], source[i])


@jit(allocates=True)
def _sum_pool(  # noqa: C901 - one loop nest
    x: Array, geometry: tuple[int, ...], zero: Array, rescale: RescaleForm, out: Array
) -> None:
    """Fill out [N, Ho, Wo, C] with the rescaled sums of the windows of x [N, H, W, C].

    Padding counts as 0. `geometry` is (kh, kw, stride_y, stride_x, top, left, dilation_y,
    dilation_x). `zero` is any array of the accumulator's type, int32 or int64; its values are not
    used. `rescale` is the form of the sum -> out.
    """
    kh, kw, stride_y, stride_x, top, left, dilation_y, dilation_x = geometry
    _, rows, columns, channels = x.shape
    samples, out_rows, out_columns, _ = out.shape
    line = np.empty(columns * channels, zero.dtype)  # sums over the window's rows, per column
    acc = np.empty(channels, zero.dtype)
    for n in range(samples):
        for oy in range(out_rows):
            fill_flat(line, 0)
            for r in range(kh):
                y = oy * stride_y - top + r * dilation_y
                if 0 <= y < rows:
                    source = view_as(x[n, y], (line.size,))
                    for i in range(line.size):
                        line[i] += source[i]
            for ox in range(out_columns):
                fill_flat(acc, 0)
                for c in range(kw):
                    z = ox * stride_x - left + c * dilation_x
                    if 0 <= z < columns:
                        source = line[z * channels : (z + 1) * channels]
                        for i in range(channels):
                            acc[i] += source[i]
                target = out[n, oy, ox]
                for i in range(channels):
                    target[i] = apply_rescale(rescale, acc[i])


def _window_geometry(window: SlidingWindow) -> tuple[int, ...]:
    """Return kernel, strides, pads (top, left) and dilations of `window` as 8 numbers."""
    return (*window.kernel, *window.strides, *window.pads[:2], *window.dilations)


def _check_image(x: TensorSpec, operator: str) -> None:
    """Raise `SimulatorError`, naming `operator`, unless x has integers and 3 or 4 axes."""
    require_signed_integer(x, operator)
    require(len(x.shape) in (3, 4), f"{operator} requires [N, C, W] or [N, C, H, W], not {x}")


@dataclass(frozen=True, eq=False)
class MaxPool(Kernel):
    """Largest integer of each window of x [N, C, H, W] or [N, C, W], in the dtype of x.

    Parameters
    ----------
    kernel, strides, pads, dilations
        One value per spatial axis; pads, all begins and then all ends. None is 1, and 0 for pads.
    ceil_mode
        Whether a last window may extend beyond the padded image.
    """

    kernel: Sequence[int]
    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    ceil_mode: bool = False
    dilations: Sequence[int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the maxima y [N, C, *space], of the type of x, with one element per window.

        Raises SimulatorError if x is no integer image or the window does not fit.
        """
        (x,) = specs
        _check_image(x, "MaxPool")
        space = self._window().output_size(x.shape[2:], self.ceil_mode)
        return (TensorSpec((*x.shape[:2], *space), x.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the max pooling loop for the size of x; padding has the lowest value of its type.

        Input and output are channel-last, whatever `channel_last` says.
        """
        geometry = _window_geometry(self._window())
        lowest = int(np.iinfo(specs[0].dtype).min)
        (y,) = self.infer(*specs)
        return NativeLoop(
            _max_pool,
            (
                InputRef(0, channel_last_shape(specs[0])),
                geometry,
                lowest,
                OutputRef(0, channel_last_shape(y)),
            ),
        )

    def _window(self) -> SlidingWindow:
        """Return the sliding window of the pool, with dilations."""
        return make_window(self.kernel, self.strides, self.pads, self.dilations)


@dataclass(frozen=True, eq=False)
class AvgPool(ClampableKernel):
    """Sum of each window of x [N, C, H, W] or [N, C, W], divided by `rule`.

    Parameters
    ----------
    kernel, strides, pads
        One value per spatial axis; pads, all begins and then all ends. None is 1, and 0 for pads.
    ceil_mode
        Whether a last window may extend beyond the padded image.
    rule
        Conversion of the sum to the output: a `Rescale` by scale_out / (scale_x * area), or a rule
        of `luna_average`.
    clip_bounds
        Bounds of a fused Relu or Clip.
    """

    kernel: Sequence[int]
    strides: Sequence[int] | None
    pads: Sequence[int] | None
    rule: Rescale | LunaDivide | ChainedRescale
    ceil_mode: bool = False
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the averages y [N, C, *space], of the type of `rule`, with one element per window.

        Raises SimulatorError if x is no integer image or the window does not fit.
        """
        (x,) = specs
        _check_image(x, "AvgPool")
        space = self._window().output_size(x.shape[2:], self.ceil_mode)
        return (TensorSpec((*x.shape[:2], *space), self.rule.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the average pooling loop for the size of x.

        The window area bounds the accumulator. Raises SimulatorError if sums do not fit 62 bits.
        """
        window = self._window()
        bound = window.kernel[0] * window.kernel[1] * max_magnitude(specs[0].dtype)
        require(
            bound < 1 << 62,
            f"the sum of {list(window.kernel)} values of {specs[0]} does not fit 62 bits",
        )
        form = self.rule.compile_for_bound(bound, self.clip_bounds)
        geometry = _window_geometry(window)
        zero = np.zeros(1, np.int32 if bound < 1 << 31 else np.int64)  # gives the accumulator type
        (y,) = self.infer(*specs)
        return NativeLoop(
            _sum_pool,
            (
                InputRef(0, channel_last_shape(specs[0])),
                geometry,
                zero,
                form,
                OutputRef(0, channel_last_shape(y)),
            ),
        )

    def _window(self) -> SlidingWindow:
        """Return the sliding window of the pool, without dilations."""
        return make_window(self.kernel, self.strides, self.pads, None)


def luna_average(
    kind: Literal["venus", "arcs", "scaled"], area: int, q_x: int, q_o: int, bits: int = 8
) -> Rescale | LunaDivide | ChainedRescale:
    """Return the NPU's rule for averaging `area` values at scale 2^q_x into scale 2^q_o.

    A power-of-two area is a right shift: "venus" ignores q_o, "arcs" first shifts the sum by q_x -
    q_o into 32 bits (all zeros for q_x < q_o), "scaled" shifts once by both; at equal scales all
    are the same. Any other area is a
    division, with q_o - q_x as the left shift of the sum; "venus" reads the area as a signed byte.
    A negative left shift gives 0 on "venus", otherwise the most negative integer.
    """
    is_venus = kind == "venus"
    if area & (area - 1) == 0:
        shift_by_area = Rescale.from_shift(area.bit_length() - 1, bits)
        if is_venus or q_x == q_o:
            return shift_by_area
        if kind == "scaled":
            return Rescale.from_shift(area.bit_length() - 1 + q_x - q_o, bits)
        if q_x < q_o:
            return LunaDivide(area, -1, bits, underflow=0)
        return ChainedRescale(Rescale.from_shift(q_x - q_o, 32), shift_by_area)
    if is_venus:
        return LunaDivide((area + 128) % 256 - 128, q_o - q_x, bits, underflow=0)
    return LunaDivide(area, q_o - q_x, bits, underflow=INT32_MIN)
