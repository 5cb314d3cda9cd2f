"""Extract the receptive fields of a layer's outputs, and compute their second moments.

For layers with many positions a fixed sample of them is used, in chunks, so that the memory is
bounded. Pure numpy, except for the kernel and the node that define how a layer reads its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...ir import ir

__all__ = ["MAX_FAN_IN", "MAX_SAMPLED_ROWS", "ReceptiveFields", "compute_covariances"]

MAX_SAMPLED_ROWS = 16384  # receptive fields for the second moments of a layer's inputs
MAX_FAN_IN = 4096  # inputs per output; more would make the matrix of moments too large
_CHUNK_ROWS = 2048  # receptive fields per chunk
_INT8_CHUNK_ROWS = 1024  # so that sums of int8 products are exact in float32
_MIN_PRODUCT_COLUMNS = 36  # groups with fewer fields share one matrix product


def compute_covariances(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Return the covariances of integer inputs of a layer, per group, over all rows.

    The mean is subtracted because the bias corrects it. The sums are exact: a product of bytes has
    14 bits and a sign, so that 1024 of them add up within the 24 bits of a float32. Groups of few
    fields share a matrix product, of which they use the diagonal blocks.

    Parameters
    ----------
    chunks
        Integers [rows, group, fields], at least one row in total.

    Returns
    -------
    numpy.ndarray
        float64 [group, fields, fields].
    """
    count, sums, products = 0, np.zeros(()), np.zeros(())
    for rows in chunks:
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
    """Add the sums, and the products of all pairs of fields, of `rows` to two arrays, in place.

    Parameters
    ----------
    rows
        Integers [n, group, fields].
    sums
        [group * fields].
    products
        [group, fields, fields].
    """
    group, fields = rows.shape[1:]
    is_int8 = rows.dtype == np.int8
    dtype = np.float32 if is_int8 else np.float64
    chunk_rows = _INT8_CHUNK_ROWS if is_int8 else _CHUNK_ROWS
    chunk_rows = max(1, min(chunk_rows, _CHUNK_ROWS * MAX_FAN_IN // (group * fields)))
    groups_per_product = max(1, _MIN_PRODUCT_COLUMNS // fields)
    for start in range(0, len(rows), chunk_rows):
        chunk = rows[start : start + chunk_rows].reshape(-1, group * fields).astype(dtype)
        ones: np.ndarray = np.ones(len(chunk), dtype)
        sums += ones @ chunk  # faster than chunk.sum(axis=0), and as exact
        for first in range(0, group, groups_per_product):
            end = first + groups_per_product
            columns: np.ndarray = chunk[:, first * fields : end * fields]
            product = columns.T @ columns
            blocks = product.reshape(-1, fields, columns.shape[1] // fields, fields)
            products[first:end] += np.moveaxis(np.diagonal(blocks, axis1=0, axis2=2), -1, 0)


@dataclass(frozen=True)
class ReceptiveFields:
    """Access to the inputs that each output of a layer reads, in the layer's integer input.

    An output is identified by its position among the positions of all samples, or by its row.

    Attributes
    ----------
    kernel
        Kernel that computes the layer.
    source
        Integers [samples, channels, positions...] or [rows, inputs].
    """

    kernel: Any
    source: np.ndarray

    @classmethod
    def for_layer(cls, kernel: Any, source: np.ndarray, node: ir.Node) -> ReceptiveFields:  # noqa: ANN401 - as `kernel`
        """Return access to the inputs that each output of layer `node` reads in `source`.

        `kernel` computes the layer in integers. The input of a Linear, [..., inputs], is reshaped
        to rows.
        """
        if node.op_type == "Linear":
            source = source.reshape(-1, source.shape[-1])
        return cls(kernel, source)

    def sample_positions(self, max_rows: int = MAX_SAMPLED_ROWS) -> np.ndarray:
        """Return a fixed random sample of at most `max_rows` output positions, ascending.

        Positions are numbered over all samples.
        """
        count = len(self.source) * self._positions_per_sample
        return np.sort(np.random.default_rng(0).permutation(count)[:max_rows])

    def at(self, positions: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the inputs that outputs at `positions` read, in chunks [rows, group, fields].

        They are integers, and the zero point in the padding.

        Parameters
        ----------
        positions
            Ascending positions of the outputs, numbered over all samples.
        """
        per_sample = self._positions_per_sample
        for start in range(0, len(positions), _CHUNK_ROWS):
            chunk = positions[start : start + _CHUNK_ROWS]
            first_sample, last_sample = int(chunk[0]) // per_sample, int(chunk[-1]) // per_sample
            windows = self._windows(self.source[first_sample : last_sample + 1])
            index = np.unravel_index(
                chunk - first_sample * per_sample, windows.shape[: self._leading_axes]
            )
            yield windows[index].reshape(len(chunk), int(getattr(self.kernel, "group", 1)), -1)

    @property
    def _leading_axes(self) -> int:
        """Number of axes of samples and output positions."""
        return self.source.ndim - 1

    @cached_property
    def _positions_per_sample(self) -> int:
        """Number of output positions of one sample; 1 for a Linear."""
        return math.prod(self._windows(self.source[:1]).shape[1 : self._leading_axes])

    def _windows(self, source: np.ndarray) -> np.ndarray:
        """Return a view of the windows, [samples, positions..., channels, kernel...].

        `source` is padded with the zero point; without spatial axes it is returned itself.
        """
        kernel, rank = self.kernel, source.ndim - 2
        if not rank:
            return source
        pads = list(kernel.pads)
        padding = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        padded = np.pad(source, padding, constant_values=kernel.zero)
        axes = zip(kernel.weight.shape[2:], kernel.dilations, strict=True)
        extent = [dilation * (size - 1) + 1 for size, dilation in axes]
        windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(
            padded, extent, axis=tuple(range(2, 2 + rank))
        )  # [samples, channels, positions..., kernel...]
        steps = (1, 1, *kernel.strides, *kernel.dilations)
        strided = windows[tuple(slice(None, None, step) for step in steps)]
        return np.moveaxis(strided, 1, 1 + rank)
