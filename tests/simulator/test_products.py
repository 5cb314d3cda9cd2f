"""Sums of products of rows: against plain Python, beyond a block of columns and with extremes."""

import numpy as np
import pytest

from simulator.products import accumulate_row_products


@pytest.mark.parametrize("shape", ((1, 1, 1), (3, 4, 7), (2, 3, 2049), (2, 5, 0)))
def test_sums_and_products_are_added(shape):
    rng = np.random.default_rng(0)
    matrices = rng.integers(-128, 128, shape).astype(np.int8)
    sums, products = np.ones(shape[:2]), np.full((*shape[:2], shape[1]), 2.0)
    accumulate_row_products(matrices, sums, products)
    for m, rows in enumerate(matrices.tolist()):
        assert sums[m].tolist() == [1 + sum(row) for row in rows]
        want = [[2 + sum(map(int.__mul__, row, other)) for other in rows] for row in rows]
        assert products[m].tolist() == want


def test_the_largest_products_are_exact():
    matrices = np.full((1, 2, 70_000), -128, np.int8)
    sums, products = np.zeros((1, 2)), np.zeros((1, 2, 2))
    accumulate_row_products(matrices, sums, products)
    assert (sums == -128 * 70_000).all()
    assert (products == 128 * 128 * 70_000).all()


def test_slices_of_a_larger_array():
    matrices = np.random.default_rng(1).integers(-128, 128, (2, 3, 50)).astype(np.int8)
    part = matrices[:, :, 10:30]
    sums, products = np.zeros((2, 3)), np.zeros((2, 3, 3))
    accumulate_row_products(part, sums, products)
    wide = part.astype(np.int64)
    assert np.array_equal(sums, wide.sum(axis=2))
    assert np.array_equal(products, wide @ wide.transpose(0, 2, 1))
