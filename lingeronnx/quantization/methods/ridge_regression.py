"""Fit a layer's weights to the float model's outputs, from the integers that really reach it.

Rounding weights for exact inputs keeps a layer's own error small, but its inputs contain the errors
of the layers before it. With inputs x (integers, centered) and the float outputs y (centered), the
weights with the least error are those of ridge regression around the model's weights W:

    W + D,   D = R X (X^T X / n + a I)^-1 / n,   R = y - W x

A Relu after the layer makes errors of negative values irrelevant: there R is 0. The ridge ``a`` is
chosen on samples that the regression was not fitted to (the other half); if none clearly reduces
the error there, the weights stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["fit_weights_to_outputs"]

_MIN_IMPROVEMENT = 0.98  # the error must be below this times the previous one
_RIDGES = (10.0, 1.0, 0.1, 0.01)  # values of a, times the mean diagonal of X^T X / n


def fit_weights_to_outputs(
    weight: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    threshold: np.ndarray | float,
    first: np.ndarray,
) -> np.ndarray:
    """Return weights [O, K] fitted to the float outputs of a layer by ridge regression.

    The ridge is chosen on the half of the samples that it was not fitted to.

    Parameters
    ----------
    weight
        The model's weights [O, K].
    rows
        Inputs [n, K] in units that make ``rows @ weight.T`` float outputs.
    values
        Float outputs [n, O].
    threshold
        Threshold of a Relu after the layer, a scalar or [n, O]; -inf without one. Where both the
        float output and the layer's own are below it, there is no error.
    first
        Whether each row belongs to the first half of the samples, [n].

    Returns
    -------
    numpy.ndarray
        Fitted weights [O, K], float64, or `weight` itself if no fit is below 0.98 times the error,
        a half has fewer than 2 K rows, or all inputs are 0.
    """
    first_count = first.sum()
    if min(first_count, len(first) - first_count) < 2 * weight.shape[1] or not rows.any():
        return weight
    x, y = rows - rows.mean(axis=0), values - values.mean(axis=0)
    residual = y - x @ weight.T.astype(x.dtype)
    residual[(values < threshold) & (values - residual < threshold)] = 0.0
    halves = [_RegressionSums.from_rows(x[half], residual[half]) for half in (first, ~first)]
    no_change = np.zeros_like(weight)
    best_ridge = 0.0
    min_error = _MIN_IMPROVEMENT * sum(half.squared_error_after(no_change) for half in halves)
    for ridge in _RIDGES:
        error = sum(
            half.squared_error_after(opposite.step(ridge))
            for half, opposite in zip(halves, reversed(halves), strict=True)
        )
        if error < min_error:
            best_ridge, min_error = ridge, error
    return weight + (halves[0] + halves[1]).step(best_ridge) if best_ridge else weight


@dataclass(frozen=True)
class _RegressionSums:
    """Sums of a regression over some rows.

    Attributes
    ----------
    squares
        Sum of squared residuals.
    cross
        Sum of residuals times inputs, [O, K].
    moments
        Sum of inputs times inputs, [K, K].
    """

    squares: float
    cross: np.ndarray
    moments: np.ndarray

    @classmethod
    def from_rows(cls, x: np.ndarray, residual: np.ndarray) -> _RegressionSums:
        """Return the sums over inputs `x` [n, K] and residuals `residual` [n, O]."""
        squares = float(np.einsum("no,no->", residual, residual, dtype=np.float64))
        return cls(squares, (residual.T @ x).astype(np.float64), (x.T @ x).astype(np.float64))

    def __add__(self, other: _RegressionSums) -> _RegressionSums:
        """Return the sums over the samples of both."""
        return _RegressionSums(
            self.squares + other.squares, self.cross + other.cross, self.moments + other.moments
        )

    def squared_error_after(self, step: np.ndarray) -> float:
        """Return the sum of squared residuals after a change `step` [O, K] of the weights."""
        return (
            self.squares
            - 2 * float((self.cross * step).sum())
            + float(((step @ self.moments) * step).sum())
        )

    def step(self, ridge: float) -> np.ndarray:
        """Return the change of the weights, float64 [O, K], that minimizes residuals plus a ridge.

        The ridge is `ridge` times the mean diagonal of the moments. Zeros if the inputs are
        constant.
        """
        size = len(self.moments)
        mean_diagonal = np.trace(self.moments) / size
        if not mean_diagonal:  # the inputs are constant
            return np.zeros_like(self.cross)
        regularized = self.moments + ridge * mean_diagonal * np.eye(size)
        return np.asarray(np.linalg.solve(regularized, self.cross.T).T)
