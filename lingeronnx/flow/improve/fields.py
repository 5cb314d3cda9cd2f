"""What a layer's outputs are made of: its receptive fields, and the second moments of the integers in them.

Where a layer has many positions, a fixed sample of them is taken, so that the memory stays bounded. Pure numpy, but for
the kernel and the node that say how a layer reads its input.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["LARGEST", "ROWS", "moments", "receptive_fields"]

ROWS = 16384  # receptive fields that the second moments of a layer's inputs are taken over
LARGEST = 4096  # inputs per output beyond which the moments' matrix would be too large
_CHUNK = 2048  # rows of these at a time, of wider integers and of large layers
_TOGETHER = 36  # fields of one product, where a group has fewer


def moments(rows: np.ndarray) -> np.ndarray:
    """Return the covariances, float64 [group, fields, fields], of integers [rows, group, fields].

    The mean is the bias's business. The sums are exact: a product of bytes has 14 bits and a sign, so that 1024 of them
    add up within the 24 bits of a float32. Groups of few fields share a product, whose diagonal blocks are theirs.
    """
    count, group, fields = rows.shape
    kind, most = (np.float32, 1024) if rows.dtype == np.int8 else (np.float64, _CHUNK)
    most = max(1, min(most, _CHUNK * LARGEST // (group * fields)))
    together = max(1, _TOGETHER // fields)
    sums, products = np.zeros(group * fields), np.zeros((group, fields, fields))
    for start in range(0, count, most):
        part = rows[start : start + most].reshape(-1, group * fields).astype(kind)
        sums += part.sum(axis=0)
        for first in range(0, group, together):
            some: np.ndarray = part[:, first * fields : (first + together) * fields]
            product = (some.T @ some).reshape(-1, fields, some.shape[1] // fields, fields)
            products[first : first + together] += np.moveaxis(np.diagonal(product, axis1=0, axis2=2), -1, 0)
    mean = (sums / count).reshape(group, fields)
    products /= count
    products -= mean[:, :, None] * mean[:, None]
    return products


def receptive_fields(kernel: Any, source: np.ndarray, node: ir.Node, places: np.ndarray | None = None) -> np.ndarray:
    """Return integers [rows, group, fields]: what the outputs at `places` read; None: a fixed sample of all places."""
    rng = np.random.default_rng(0)
    if node.op_type == "Linear":
        flat = source.reshape(-1, 1, source.shape[-1])
        return flat[rng.permutation(len(flat))[:ROWS] if places is None else places]
    rank, group = source.ndim - 2, int(kernel.group)
    pads = list(kernel.pads)
    x = np.pad(source, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=kernel.zero)
    size = [d * (k - 1) + 1 for k, d in zip(kernel.weight.shape[2:], kernel.dilations, strict=True)]
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(x, size, axis=tuple(range(2, 2 + rank)))
    steps = (1, 1, *kernel.strides, *kernel.dilations)
    windows = windows[tuple(slice(None, None, step) for step in steps)]  # [N, C, positions..., kernel...]
    where = windows.shape[0], *windows.shape[2 : 2 + rank]
    if places is None:
        places = np.sort(rng.permutation(int(np.prod(where)))[:ROWS])
    last = np.moveaxis(windows, 1, 1 + rank)
    picked = np.empty((len(places), group, math.prod(windows.shape[1:2] + windows.shape[2 + rank :]) // group), x.dtype)
    for start in range(0, len(places), _CHUNK):  # not all at once, which would take them twice
        some = last[np.unravel_index(places[start : start + _CHUNK], where)]  # [rows, C, kernel...]
        picked[start : start + _CHUNK] = some.reshape(len(some), group, -1)
    return picked
