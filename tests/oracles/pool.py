"""Pooling."""

import numpy as np

from lingeronnx.operators._reference_arithmetic import divide
from tests.oracles.fixed import rescale, rsh, sat


def windows(x, kernel, strides, pads, ceil_mode, dilations, fill):
    """Yield (place of the output, list of the window's integers); x [N, C, H, W], pads top, left,
    bottom, right.
    """
    samples, channels, rows, columns = x.shape
    counts = []
    for axis, size in enumerate((rows, columns)):
        extent = dilations[axis] * (kernel[axis] - 1) + 1
        count, start = 0, 0
        while True:
            whole = start + extent <= size + pads[axis] + pads[axis + 2]
            hanging = (
                ceil_mode
                and count > 0
                and start < size + pads[axis]
                and start - strides[axis] + extent < (size + pads[axis] + pads[axis + 2])
            )
            if not (whole or hanging):
                break
            count, start = count + 1, start + strides[axis]
        counts.append(count)
    for n, c, i, j in np.ndindex(samples, channels, *counts):
        values = []
        for r in range(kernel[0]):
            for s in range(kernel[1]):
                a = i * strides[0] - pads[0] + r * dilations[0]
                b = j * strides[1] - pads[1] + s * dilations[1]
                values.append(int(x[n, c, a, b]) if 0 <= a < rows and 0 <= b < columns else fill)
        yield (n, c, i, j), values


def pool(x, function, kernel, strides, pads, ceil_mode, dilations, fill):
    """Apply a function of the window's integers."""
    found = list(windows(x, kernel, strides, pads, ceil_mode, dilations, fill))
    out = np.zeros([max(place[axis] for place, _ in found) + 1 for axis in range(4)], object)
    for place, values in found:
        out[place] = function(values)
    return out


def max_pool(x, kernel, strides, pads, ceil_mode=False, dilations=(1, 1)):
    """Largest integer; padding is the most negative one of the dtype."""
    return pool(x, max, kernel, strides, pads, ceil_mode, dilations, int(np.iinfo(x.dtype).min))


def average(x, triple, kernel, strides, pads, ceil_mode=False):
    """Requantized sum; padding counts as zeros."""
    return pool(x, lambda v: rescale(sum(v), triple), kernel, strides, pads, ceil_mode, (1, 1), 0)


def luna_average(x, kind, q_x, q_o, kernel, strides, pads):
    """Average as the NPU divides."""
    area = kernel[0] * kernel[1]

    def average(values):
        total = sum(values)
        if area in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            log2 = area.bit_length() - 1
            if kind == "venus":
                return sat(rsh(total, log2), 8)
            return 0 if q_x < q_o else sat(rsh(sat(rsh(total, q_x - q_o), 32), log2), 8)
        if q_o < q_x:
            return 0 if kind == "venus" else -128
        signed = area & 255
        signed = signed - 256 if signed > 127 else signed
        return sat(divide(total, signed if kind == "venus" else area, q_o - q_x), 8)

    return pool(x, average, kernel, strides, pads, False, (1, 1), 0)
