"""Aim a layer's weights at the float model's outputs, from the integers that really reach it.

Rounding weights in front of exact inputs keeps a layer's own error small; but its inputs carry the
errors of the layers before it. With inputs x (integers, centred) and the float outputs y (centred),
the weights that come nearest are those of ridge regression around the weights W that the model has:

    W + D,   D = R X (X^T X / n + a I)^-1 / n,   R = y - W x

A Relu behind the layer makes errors of negative values void: there R is 0. How far to go, ``a``, is
chosen on samples that the regression did not see (the other half); where no ``a`` clearly lessens
the error there, nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["fit_weights_to_outputs"]

_MIN_IMPROVEMENT = 0.98  # of the error: what is above may be chance
_RIDGES = (10.0, 1.0, 0.1, 0.01)  # of the mean diagonal


def fit_weights_to_outputs(
    weight: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    floor: np.ndarray | float,
    first: np.ndarray,
) -> np.ndarray:
    """Return weights [O, K], float64, that come nearer to `values` than `weight` does, or `weight`.

    rows : [n, K], the layer's inputs in the unit that makes ``rows @ weight.T`` real. values : [n,
    O], the float model's outputs. floor : the value at which a Relu cuts off, for all or [n, O];
    -inf without one. first : whether a row is of the first half of the samples, [n].
    """
    if min(first.sum(), len(first) - first.sum()) < 2 * weight.shape[1] or not rows.any():
        return weight
    x, y = rows - rows.mean(axis=0), values - values.mean(axis=0)
    residual = y - x @ weight.T.astype(x.dtype)
    residual[(values < floor) & (values - residual < floor)] = 0.0
    halves = [_RegressionSums.from_rows(x[part], residual[part]) for part in (first, ~first)]
    best, least = (
        0.0,
        _MIN_IMPROVEMENT * sum(half.squared_error_after(np.zeros_like(weight)) for half in halves),
    )
    for ridge in _RIDGES:
        error = sum(
            half.squared_error_after(other.step(ridge))
            for half, other in zip(halves, reversed(halves), strict=True)
        )
        if error < least:
            best, least = ridge, error
    return weight + (halves[0] + halves[1]).step(best) if best else weight


@dataclass(frozen=True)
class _RegressionSums:
    """Sums over some rows: of squared residuals, of residuals times inputs [O, K], of inputs times inputs [K, K]."""

    squares: float
    cross: np.ndarray
    moments: np.ndarray

    @classmethod
    def from_rows(cls, x: np.ndarray, residual: np.ndarray) -> _RegressionSums:
        """Return the sums over inputs [n, K] and residuals [n, O]."""
        squares = float(np.einsum("no,no->", residual, residual, dtype=np.float64))
        return cls(squares, (residual.T @ x).astype(np.float64), (x.T @ x).astype(np.float64))

    def __add__(self, other: _RegressionSums) -> _RegressionSums:
        return _RegressionSums(
            self.squares + other.squares, self.cross + other.cross, self.moments + other.moments
        )

    def squared_error_after(self, step: np.ndarray) -> float:
        """Return what is left of the squared residuals behind a `step` of the weights [O, K]."""
        return (
            self.squares
            - 2 * float((self.cross * step).sum())
            + float(((step @ self.moments) * step).sum())
        )

    def step(self, ridge: float) -> np.ndarray:
        """Return D of the module's docstring at `ridge` times the mean diagonal."""
        level = np.trace(self.moments) / len(self.moments)
        if not level:  # inputs that never change
            return np.zeros_like(self.cross)
        return np.asarray(
            np.linalg.solve(
                self.moments + ridge * level * np.eye(len(self.moments)), self.cross.T
            ).T
        )
