"""Convolution, fully connected layer, matrix product."""

import numpy as np

from tests.oracles.fixed import rescale


def conv(x, weight, bias, triple, strides, pads, dilations, group):
    """x [N, C, H, W], weight [O, C/g, kh, kw], pads top, left, bottom, right -> nested lists as an
    object array.
    """
    samples, channels, rows, columns = x.shape
    outputs, own, kh, kw = weight.shape
    out_rows = (rows + pads[0] + pads[2] - dilations[0] * (kh - 1) - 1) // strides[0] + 1
    out_columns = (columns + pads[1] + pads[3] - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    xs, ws = x.tolist(), weight.tolist()
    y = np.zeros((samples, outputs, out_rows, out_columns), object)
    for n in range(samples):
        for o in range(outputs):
            first = o // (outputs // group) * own
            for i in range(out_rows):
                for j in range(out_columns):
                    acc = 0 if bias is None else int(bias[o])
                    for r in range(kh):
                        a = i * strides[0] - pads[0] + r * dilations[0]
                        for c in range(kw):
                            b = j * strides[1] - pads[1] + c * dilations[1]
                            if 0 <= a < rows and 0 <= b < columns:
                                for k in range(own):
                                    acc += xs[n][first + k][a][b] * ws[o][k][r][c]
                    y[n, o, i, j] = rescale(acc, triple)
    return y


def conv1d(x, weight, bias, triple, stride, pads, dilation, group):
    """x [N, C, W], weight [O, C/g, k], pads begin, end."""
    wide = conv(
        x[:, :, None],
        weight[:, :, None],
        bias,
        triple,
        (1, stride),
        (0, pads[0], 0, pads[1]),
        (1, dilation),
        group,
    )
    return wide[:, :, 0]


def linear(x, weight, bias, triple):
    """x [..., K], weight [O, K]."""
    rows = x.reshape(-1, x.shape[-1]).tolist()
    out = [
        [
            rescale(
                sum(a * b for a, b in zip(row, taps, strict=True))
                + (0 if bias is None else int(bias[o])),
                triple,
            )
            for o, taps in enumerate(weight.tolist())
        ]
        for row in rows
    ]
    return np.array(out, object).reshape(*x.shape[:-1], len(weight))


def matmul(x, y, triple):
    """x [.., N, M], y [.., M, P], leading axes broadcast."""
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (np.broadcast_to(t, batch + t.shape[-2:]) for t in (x, y))
    out = np.zeros((*batch, x.shape[-2], y.shape[-1]), object)
    for place in np.ndindex(*batch):
        for n in range(x.shape[-2]):
            for p in range(y.shape[-1]):
                acc = sum(int(x[place][n, m]) * int(y[place][m, p]) for m in range(x.shape[-1]))
                out[(*place, n, p)] = rescale(acc, triple)
    return out


def conv_transpose(x, weight, bias, triple, strides, pads, dilations, output_padding, group):
    """x [N, C, H, W], weight [C, O/g, kh, kw]: every input is scattered over the outputs it
    reaches.
    """
    samples, channels, rows, columns = x.shape
    _, own, kh, kw = weight.shape
    out_rows = (
        strides[0] * (rows - 1)
        + dilations[0] * (kh - 1)
        + 1
        - pads[0]
        - pads[2]
        + output_padding[0]
    )
    out_columns = (
        strides[1] * (columns - 1)
        + dilations[1] * (kw - 1)
        + 1
        - pads[1]
        - pads[3]
        + output_padding[1]
    )
    acc = np.zeros((samples, own * group, out_rows, out_columns), object)
    if bias is not None:
        acc += np.array([int(b) for b in bias], object)[:, None, None]
    for n, c, i, j, r, s in np.ndindex(samples, channels, rows, columns, kh, kw):
        a = i * strides[0] + r * dilations[0] - pads[0]
        b = j * strides[1] + s * dilations[1] - pads[1]
        if 0 <= a < out_rows and 0 <= b < out_columns:
            first = c // (channels // group) * own
            for o in range(own):
                acc[n, first + o, a, b] += int(x[n, c, i, j]) * int(weight[c, o, r, s])
    return np.frompyfunc(lambda v: rescale(v, triple), 1, 1)(acc)
