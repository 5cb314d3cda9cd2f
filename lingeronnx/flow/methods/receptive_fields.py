"""What a layer's outputs are made of.

Its receptive fields, and the second moments of the integers in them.
Where a layer has many positions, a fixed sample of them is taken, and they are read some at a time,
so that the memory stays bounded. Pure numpy, but for the kernel and the node that say how a layer
reads its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["MAX_FAN_IN", "MAX_SAMPLED_ROWS", "ReceptiveFields", "compute_covariances"]

MAX_SAMPLED_ROWS = (
    16384  # receptive fields that the second moments of a layer's inputs are taken over
)
MAX_FAN_IN = 4096  # inputs per output beyond which the moments' matrix would be too large
_CHUNK = 2048  # rows of these at a time, of wider integers and of large layers
_MIN_PRODUCT_COLUMNS = 36  # fields of one product, where a group has fewer


def compute_covariances(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the covariances, float64 [group, fields, fields], of integers [rows, group, fields], in one part or more.

    The mean is the bias's business. The sums are exact: a product of bytes has 14 bits and a sign,
    so that 1024 of them add up within the 24 bits of a float32. Groups of few fields share a
    product, whose diagonal blocks are theirs.
    """
    count, sums, products = 0, np.zeros(()), np.zeros(())
    for rows in parts:
        group, fields = rows.shape[1:]
        if not count:
            sums, products = np.zeros(group * fields), np.zeros((group, fields, fields))
        count += len(rows)
        _accumulate_products(rows, sums, products)
    mean = (sums / count).reshape(products.shape[:2])
    products /= count
    products -= mean[:, :, None] * mean[:, None]
    return products


def _accumulate_products(rows: np.ndarray, sums: np.ndarray, products: np.ndarray) -> None:
    """Add `rows` [rows, group, fields] to `sums` [group * fields], and to `products` what they are with each other."""
    group, fields = rows.shape[1:]
    kind, most = (np.float32, 1024) if rows.dtype == np.int8 else (np.float64, _CHUNK)
    most = max(1, min(most, _CHUNK * MAX_FAN_IN // (group * fields)))
    together = max(1, _MIN_PRODUCT_COLUMNS // fields)
    for start in range(0, len(rows), most):
        part = rows[start : start + most].reshape(-1, group * fields).astype(kind)
        sums += part.sum(axis=0)
        for first in range(0, group, together):
            some: np.ndarray = part[:, first * fields : (first + together) * fields]
            product = (some.T @ some).reshape(-1, fields, some.shape[1] // fields, fields)
            products[first : first + together] += np.moveaxis(
                np.diagonal(product, axis1=0, axis2=2), -1, 0
            )


@dataclass(frozen=True)
class ReceptiveFields:
    """What the outputs of a layer read of the integers `source`, [samples, channels, positions...] or [rows, inputs].

    kernel : that computes them. An output's place is its number among the positions of all samples,
    or the row's.
    """

    kernel: Any
    source: np.ndarray

    @classmethod
    def for_layer(cls, kernel: Any, source: np.ndarray, node: ir.Node) -> ReceptiveFields:  # noqa: ANN401 - as `kernel`
        """Return what the layer `node` reads."""
        return cls(
            kernel, source.reshape(-1, source.shape[-1]) if node.op_type == "Linear" else source
        )

    def sample_positions(self) -> np.ndarray:
        """Return a fixed sample of all places, rising."""
        return np.sort(
            np.random.default_rng(0).permutation(len(self.source) * self._positions_per_sample)[
                :MAX_SAMPLED_ROWS
            ]
        )

    def at(self, places: np.ndarray) -> Iterator[np.ndarray]:
        """Yield integers [rows, group, fields], some rows at a time.

        What the outputs at `places`, which rise, read.
        """
        for start in range(0, len(places), _CHUNK):
            some = places[start : start + _CHUNK]
            first = int(some[0]) // self._positions_per_sample
            windows = self._windows(
                self.source[first : int(some[-1]) // self._positions_per_sample + 1]
            )
            index = np.unravel_index(
                some - first * self._positions_per_sample, windows.shape[: self._leading_axes]
            )
            yield windows[index].reshape(len(some), int(getattr(self.kernel, "group", 1)), -1)

    @property
    def _leading_axes(self) -> int:
        """The axes of samples and positions."""
        return self.source.ndim - 1

    @cached_property
    def _positions_per_sample(self) -> int:
        """The positions of one sample."""
        return math.prod(self._windows(self.source[:1]).shape[1 : self._leading_axes])

    def _windows(self, source: np.ndarray) -> np.ndarray:
        """Return a view of some samples, [samples, positions..., channels, kernel...]."""
        kernel, rank = self.kernel, source.ndim - 2
        if not rank:
            return source
        pads = list(kernel.pads)
        sides = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        size = [
            d * (k - 1) + 1 for k, d in zip(kernel.weight.shape[2:], kernel.dilations, strict=True)
        ]
        windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(
            np.pad(source, sides, constant_values=kernel.zero), size, axis=tuple(range(2, 2 + rank))
        )  # [samples, channels, positions..., kernel...]
        steps = (1, 1, *kernel.strides, *kernel.dilations)
        return np.moveaxis(windows[tuple(slice(None, None, step) for step in steps)], 1, 1 + rank)
