"""Loops of the rounding with compensation: against plain Python."""

import math

import numpy as np
import pytest

from simulator.weight_rounding import permute_symmetric, round_columns


@pytest.mark.parametrize("shape", ((1, 1), (1, 7), (3, 5)))
def test_permuted_rows_and_columns(shape):
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((shape[0], shape[1], shape[1]))
    order = np.array([rng.permutation(shape[1]) for _ in range(shape[0])])
    permuted = permute_symmetric(matrices, order[:, ::-1])
    for g, rows in enumerate(order[:, ::-1].tolist()):
        assert permuted[g].tolist() == [[float(matrices[g, i, j]) for j in rows] for i in rows]


@pytest.mark.parametrize("with_steps", (False, True))
@pytest.mark.parametrize("shape", ((1, 1, 1), (2, 5, 3), (3, 4, 1)))
def test_columns_compensate_those_before_them(with_steps, shape):
    """The columns of the block are set, and no others; their integers stay in the range."""
    groups, size, outputs = shape
    rng, first = np.random.default_rng(1), size // 3
    columns = rng.uniform(-9, 9, (groups, size, outputs))
    ratio = rng.uniform(-2, 2, (groups, size - first, size - first))
    targets = columns[:, first:] + rng.uniform(-1, 1, (groups, size - first, outputs))
    steps = rng.integers(1, 4, columns.shape).astype(float) if with_steps else None
    errors, rounded = np.full((2, *columns.shape), 99.0)
    round_columns(targets.copy(), ratio, first, columns, steps, -4, 3, errors, rounded)
    assert (errors[:, :first] == 99).all()
    assert (rounded[:, :first] == 99).all()
    for g in range(groups):
        for row in range(outputs):
            earlier = []
            for j in range(size - first):
                k = first + j
                step = 1.0 if steps is None else float(steps[g, k, row])
                target = float(targets[g, j, row])
                target += math.fsum(float(ratio[g, j, i]) * e for i, e in enumerate(earlier))
                value = min(max(math.floor(target / step + 0.5), -4), 3) * step
                earlier.append(float(columns[g, k, row]) - value)
                assert rounded[g, k, row] == value
                assert errors[g, k, row] == earlier[-1]
