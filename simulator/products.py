"""Sums of products of all pairs of rows of integer matrices, for matrices with few rows.

Must not know: layers.
"""

from __future__ import annotations

import numpy as np

from simulator._jit import jit
from simulator.native import NativeLoop

__all__ = ["accumulate_row_products"]

_BLOCK_COLUMNS = 2048  # columns at once: products of bytes add up within 32 bits


@jit
def _accumulate_row_products(
    matrices: np.ndarray, sums: np.ndarray, products: np.ndarray, block: np.ndarray
) -> None:
    """Add row sums and products of row pairs to `sums` [M, R] and `products` [M, R, R].

    `matrices` are int8 [M, R, N]; `block` is int16 scratch memory [R, _BLOCK_COLUMNS].
    """
    for m in range(matrices.shape[0]):
        for start in range(0, matrices.shape[2], _BLOCK_COLUMNS):
            stop = min(start + _BLOCK_COLUMNS, matrices.shape[2])
            for i in range(matrices.shape[1]):
                source, row, total = matrices[m, i, start:stop], block[i], np.int32(0)
                for k in range(len(source)):
                    row[k] = source[k]
                    total = np.int32(total + np.int32(source[k]))
                sums[m, i] += total
            for i in range(matrices.shape[1]):
                row = block[i, : stop - start]
                for j in range(i + 1):
                    other, total = block[j, : stop - start], np.int32(0)
                    for k in range(len(row)):  # int32, so that it becomes vector instructions
                        total = np.int32(total + np.int32(row[k]) * np.int32(other[k]))
                    products[m, i, j] += total
        for i in range(matrices.shape[1]):
            for j in range(i):
                products[m, j, i] = products[m, i, j]


def accumulate_row_products(matrices: np.ndarray, sums: np.ndarray, products: np.ndarray) -> None:
    """Add the sums of rows, and of products of all pairs of rows, of each matrix, in place.

    Parameters
    ----------
    matrices
        int8 [M, R, N].
    sums
        float64 [M, R], integers.
    products
        float64 [M, R, R], integers, symmetric.
    """
    block = np.empty((sums.shape[1], _BLOCK_COLUMNS), np.int16)
    arguments = (np.ascontiguousarray(matrices), sums, products, block)
    NativeLoop(_accumulate_row_products, arguments)((), ())
