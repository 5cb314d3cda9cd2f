"""Convolution as scalar loops for any integer type and processor.

The reference for, and the fallback of, `_conv_simd`. Owns: `convolve_dense` (any groups) and
`convolve_depthwise` (groups == inputs == outputs). The compiler vectorizes both over output
channels. Arrays are channel-last. The accumulator has the dtype of the bias, int32 or int64; the
caller proves that it suffices.
"""

from __future__ import annotations

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import RescaleForm, apply_rescale
from simulator.kernel import Array

__all__ = ["convolve_dense", "convolve_depthwise"]


@jit(allocates=True)
def convolve_dense(  # noqa: C901 - one loop nest
    x: Array,
    weight: Array,
    bias: Array,
    geometry: tuple[int, ...],
    rescale: RescaleForm,
    out: Array,
) -> None:
    """Convolve x [N, H, W, C] with weight [g, kh, kw, C/g, O/g] into out [N, Ho, Wo, O].

    x and out are integers; elements of x outside the image count as 0. weight and bias [O] have the
    type of the accumulator, int32 or int64. `geometry` is (stride_y, stride_x, top, left,
    dilation_y, dilation_x), with the pads top and left. `rescale` is the form of accumulator ->
    out.
    """
    stride_y, stride_x, top, left, dilation_y, dilation_x = geometry
    _, rows, columns, _ = x.shape
    groups, kh, kw, channels, group_outputs = weight.shape
    samples, out_rows, out_columns, _ = out.shape
    acc = np.empty_like(bias)
    for n in range(samples):
        for oy in range(out_rows):
            for ox in range(out_columns):
                for o in range(acc.size):  # `acc[:] = bias` compiles much longer
                    acc[o] = bias[o]
                for r in range(kh):
                    y = oy * stride_y - top + r * dilation_y
                    if not 0 <= y < rows:
                        continue
                    for c in range(kw):
                        z = ox * stride_x - left + c * dilation_x
                        if not 0 <= z < columns:
                            continue
                        for g in range(groups):
                            part = acc[g * group_outputs : (g + 1) * group_outputs]
                            for i in range(channels):
                                value = x[n, y, z, g * channels + i]
                                taps = weight[g, r, c, i]
                                for o in range(group_outputs):
                                    part[o] += value * taps[o]
                target = out[n, oy, ox]
                for o in range(acc.size):
                    target[o] = apply_rescale(rescale, acc[o])


@jit(allocates=True)
def convolve_depthwise(  # noqa: C901 - one loop nest
    x: Array,
    weight: Array,
    bias: Array,
    geometry: tuple[int, ...],
    rescale: RescaleForm,
    out: Array,
) -> None:
    """Convolve x [N, H, W, C] per channel with weight [kh, kw, C] into out [N, Ho, Wo, C].

    x and out are integers; elements of x outside the image count as 0. weight and bias [C] have the
    type of the accumulator, int32 or int64. `geometry` is (stride_y, stride_x, top, left,
    dilation_y, dilation_x), with the pads top and left. `rescale` is the form of accumulator ->
    out.
    """
    stride_y, stride_x, top, left, dilation_y, dilation_x = geometry
    _, rows, columns, channels = x.shape
    kh, kw, _ = weight.shape
    samples, out_rows, out_columns, _ = out.shape
    acc = np.empty_like(bias)
    for n in range(samples):
        for oy in range(out_rows):
            for ox in range(out_columns):
                for o in range(acc.size):  # `acc[:] = bias` compiles much longer
                    acc[o] = bias[o]
                for r in range(kh):
                    y = oy * stride_y - top + r * dilation_y
                    if not 0 <= y < rows:
                        continue
                    for c in range(kw):
                        z = ox * stride_x - left + c * dilation_x
                        if not 0 <= z < columns:
                            continue
                        source, taps = x[n, y, z], weight[r, c]
                        for i in range(channels):
                            acc[i] += source[i] * taps[i]
                target = out[n, oy, ox]
                for i in range(channels):
                    target[i] = apply_rescale(rescale, acc[i])
