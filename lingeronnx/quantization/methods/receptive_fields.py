"""Extract the receptive fields of a layer's outputs, and compute their second moments.

For layers with many positions a fixed sample of them is used, in chunks, so that the memory is
bounded. Pure numpy, except for the kernel and the node that define how a layer reads its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...ir import ir

__all__ = ["MAX_FAN_IN", "MAX_SAMPLED_ROWS", "ReceptiveFields", "compute_covariances"]

MAX_SAMPLED_ROWS = 16384  # receptive fields for the second moments of a layer's inputs
MAX_FAN_IN = 4096  # inputs per output; more would make the matrix of moments too large
_CHUNK_ROWS = 2048  # receptive fields per chunk
_SUM_ROWS = 1024  # rows that are added at once, so that sums of int8 products are exact in float32
_BATCH_ELEMENTS = 1 << 18  # elements of several groups at once: they stay in the cache
_MAX_LOOP_FIELDS = 128  # bytes of more fields are multiplied faster by BLAS, as floats


def compute_covariances(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Return the covariances of integer inputs of a layer, per group, over all rows.

    The mean is subtracted because the bias corrects it. The sums are exact: a product of bytes has
    14 bits and a sign, so that 1024 of them add up within the 24 bits of a float32.

    Parameters
    ----------
    chunks
        Integers [group, fields, rows], at least one row in total.

    Returns
    -------
    numpy.ndarray
        float64 [group, fields, fields].
    """
    count, sums, products = 0, np.zeros(()), np.zeros(())
    for rows in chunks:
        group, fields = rows.shape[:2]
        if not count:
            sums, products = np.zeros((group, fields)), np.zeros((group, fields, fields))
        count += rows.shape[2]
        _accumulate_products(rows, sums, products)
    mean = sums / count
    products /= count
    products -= mean[:, :, None] * mean[:, None]
    return products


def _accumulate_products(rows: np.ndarray, sums: np.ndarray, products: np.ndarray) -> None:
    """Add the sums, and the products of all pairs of fields, of `rows` to two arrays, in place.

    Parameters
    ----------
    rows
        Integers [group, fields, n].
    sums
        [group, fields].
    products
        [group, fields, fields].
    """
    from simulator.products import accumulate_row_products

    group, fields, count = rows.shape
    if rows.dtype == np.int8 and fields <= _MAX_LOOP_FIELDS:
        accumulate_row_products(rows, sums, products)
        return
    dtype = np.float32 if rows.dtype == np.int8 else np.float64
    batch = max(1, min(group, _BATCH_ELEMENTS // (fields * _SUM_ROWS)))
    # The last field is 1, so that its products are the sums.
    buffer = np.ones((batch, fields + 1, min(count, _SUM_ROWS)), dtype)
    for first in range(0, group, batch):
        groups = slice(first, first + batch)
        for start in range(0, count, _SUM_ROWS):
            chunk = rows[groups, :, start : start + _SUM_ROWS]
            extended = buffer[: len(chunk), :, : chunk.shape[2]]
            extended[:, :fields] = chunk
            result = extended @ extended.transpose(0, 2, 1)
            products[groups] += result[:, :fields, :fields]
            sums[groups] += result[:, fields, :fields]


class ReceptiveFields:
    """Access to the inputs that each output of a layer reads, in the layer's integer input.

    An output is identified by its position among the positions of all samples, or by its row.

    Parameters
    ----------
    kernel
        Kernel that computes the layer.
    source
        Integers [samples, channels, positions...], or [..., inputs] of a Linear, whose leading axes
        become rows.
    node
        The layer.
    """

    def __init__(
        self,
        kernel: Any,  # noqa: ANN401 - kernels share no base with a weight
        source: np.ndarray,
        node: ir.Node,
    ) -> None:
        """Compute padding and output size of the windows of `node` in `source`."""
        if node.op_type == "Linear":
            source = source.reshape(-1, source.shape[-1])
        self.kernel, self.source = kernel, source
        rank = source.ndim - 2
        pads = list(kernel.pads) if rank else []
        #: Padding before and after each axis of the source.
        self._padding = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        #: Number of output positions along each spatial axis; () for a Linear.
        self._output_size: tuple[int, ...] = ()
        if rank:
            padded = np.add(source.shape[2:], np.sum(self._padding[2:], axis=1))
            extent = np.multiply(kernel.dilations, np.subtract(kernel.weight.shape[2:], 1)) + 1
            sizes = (padded - extent) // kernel.strides + 1
            self._output_size = tuple(int(size) for size in sizes)
        self._positions_per_sample = math.prod(self._output_size)

    def sample_positions(self, max_rows: int = MAX_SAMPLED_ROWS) -> np.ndarray:
        """Return a fixed random sample of at most `max_rows` output positions, ascending.

        Positions are numbered over all samples.
        """
        count = len(self.source) * self._positions_per_sample
        return np.sort(np.random.default_rng(0).permutation(count)[:max_rows])

    def at(self, positions: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the inputs that outputs at `positions` read, in chunks [group, fields, rows].

        They are integers, and the zero point in the padding. The channels of the input are gathered
        one after the other, which is faster than window after window.

        Parameters
        ----------
        positions
            Ascending positions of the outputs, numbered over all samples.
        """
        group, per_sample = int(getattr(self.kernel, "group", 1)), self._positions_per_sample
        for start in range(0, len(positions), _CHUNK_ROWS):
            chunk = positions[start : start + _CHUNK_ROWS]
            first_sample, last_sample = int(chunk[0]) // per_sample, int(chunk[-1]) // per_sample
            source = self.source[first_sample : last_sample + 1]
            if any(map(any, self._padding)):
                source = np.pad(source, self._padding, constant_values=self.kernel.zero)
            index = self._window_indices(chunk - first_sample * per_sample, source.shape[2:])
            channels = np.moveaxis(source, 1, 0).reshape(source.shape[1], -1)
            windows = np.take(channels, index, axis=1)  # [channels, kernel, rows]
            yield windows.reshape(group, -1, len(chunk))

    def _window_indices(self, positions: np.ndarray, padded_size: Sequence[int]) -> np.ndarray:
        """Return where the windows of outputs at `positions` lie in a channel of padded samples.

        Parameters
        ----------
        positions
            Positions of the outputs, numbered over the samples.
        padded_size
            Size of a padded sample without its channels.

        Returns
        -------
        numpy.ndarray
            int64 [kernel elements, positions], indices into the flattened channel
            [samples, *padded_size].
        """
        sample, outputs = np.divmod(positions, self._positions_per_sample)
        index = sample[None]
        if not padded_size:
            return index
        kernel = self.kernel
        corners = np.unravel_index(outputs, self._output_size)
        elements = np.indices(kernel.weight.shape[2:]).reshape(len(padded_size), -1, 1)
        for axis, size in enumerate(padded_size):
            offset = elements[axis] * kernel.dilations[axis]
            index = index * size + corners[axis] * kernel.strides[axis] + offset
        return index
