"""Loops of the rounding of weights with compensation: permuted matrices, and rounded columns.

Must not know: layers, or where the matrices come from.
"""

from __future__ import annotations

import numpy as np

from simulator._jit import jit
from simulator.native import NativeLoop

__all__ = ["permute_symmetric", "round_columns"]


@jit
def _permute_symmetric(matrices: np.ndarray, order: np.ndarray, permuted: np.ndarray) -> None:
    """Set `permuted` to `matrices` [G, K, K] with rows and columns in the `order` [G, K]."""
    for g in range(len(matrices)):
        indices = order[g]
        for i in range(len(indices)):
            source, target = matrices[g, indices[i]], permuted[g, i]
            for j in range(len(indices)):
                target[j] = source[indices[j]]


def permute_symmetric(matrices: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return matrices with their rows and columns in another order, in one pass and one copy.

    Parameters
    ----------
    matrices
        float64 [G, K, K], contiguous.
    order
        Integers [G, K], a permutation of 0..K-1 for each matrix.
    """
    permuted = np.empty_like(matrices)
    indices = np.ascontiguousarray(order, np.int64)
    NativeLoop(_permute_symmetric, (matrices, indices, permuted))((), ())
    return permuted


@jit
def _round_columns(
    targets: np.ndarray,
    ratio: np.ndarray,
    first: int,
    columns: np.ndarray,
    steps: np.ndarray | None,
    low: float,
    high: float,
    errors: np.ndarray,
    rounded: np.ndarray,
    correction: np.ndarray,
) -> None:
    """Round columns `first`, `first` + 1, ... of each group; see `round_columns`.

    `correction` [O] is scratch memory.
    """
    for g in range(len(targets)):
        for j in range(targets.shape[1]):
            target, k = targets[g, j], first + j
            correction[:] = 0  # summed before it is added: small terms count
            for i in range(j):
                factor, earlier = ratio[g, j, i], errors[g, first + i]
                for row in range(len(target)):
                    correction[row] += factor * earlier[row]
            for row in range(len(target)):
                value = target[row] + correction[row]
                if steps is None:
                    value = min(max(np.floor(value + 0.5), low), high)
                else:
                    step = steps[g, k, row]
                    value = min(max(np.floor(value / step + 0.5), low), high) * step
                rounded[g, k, row] = value
                errors[g, k, row] = columns[g, k, row] - value


def round_columns(
    targets: np.ndarray,
    ratio: np.ndarray,
    first: int,
    columns: np.ndarray,
    steps: np.ndarray | None,
    low: int,
    high: int,
    errors: np.ndarray,
    rounded: np.ndarray,
) -> None:
    """Round consecutive columns of weight matrices; each compensates the errors of those before it.

    Column j of the block is rounded, half up, from ``targets[:, j] + sum_i<j ratio[:, j, i] * e_i``
    with the errors e_i of the block's columns before it. All arrays are float64 and contiguous; a
    column of a matrix is a row here.

    Parameters
    ----------
    targets
        [G, B, O]: the columns, with the compensation of errors before the block.
    ratio
        [G, B, B].
    first
        Index of the block's first column among all columns.
    columns
        Exact weights [G, K, O], in counts.
    steps
        Counts per integer [G, K, O], or None for 1.
    low, high
        Range of the integers.
    errors, rounded
        [G, K, O], set for the block: exact weights minus rounded ones, and integers times steps.
    """
    bounds, correction = (float(low), float(high)), np.empty(targets.shape[2])
    arguments = (targets, ratio, first, columns, steps, *bounds, errors, rounded, correction)
    NativeLoop(_round_columns, arguments)((), ())
