"""Aim a layer's weights at the float model's outputs, from the integers that really reach it.

Rounding weights in front of exact inputs keeps a layer's own error small; but its inputs carry the errors of the layers
before it. With inputs x (integers, centred) and the float outputs y (centred), the weights that come nearest are those
of ridge regression around the weights W that the model has:

    W + D,   D = R X (X^T X / n + a I)^-1 / n,   R = y - W x

A Relu behind the layer makes errors of negative values void: there R is 0. How far to go, ``a``, is chosen on samples
that the regression did not see (the other half); where no ``a`` clearly lessens the error there, nothing moves.
"""

from __future__ import annotations

import numpy as np

__all__ = ["aimed"]

_CLEAR = 0.98  # of the error: what is above may be chance
_RIDGES = (10.0, 1.0, 0.1, 0.01)  # of the mean diagonal


def aimed(weight: np.ndarray, rows: np.ndarray, values: np.ndarray, floor: float) -> np.ndarray:
    """Return weights [O, K], float64, that come nearer to `values` than `weight` does, or `weight`.

    rows : [n, K], the layer's inputs in the unit that makes ``rows @ weight.T`` real. values : [n, O], the float
    model's outputs, in random order like `rows`. floor : the value at which a Relu cuts off, -inf without one.
    """
    half = len(rows) // 2
    parts = [slice(0, half), slice(half, len(rows))]
    if half < 2 * weight.shape[1] or not rows.any():
        return weight
    fits = [_Fit(weight, rows[part], values[part], floor) for part in parts]
    best, least = 0.0, _CLEAR * sum(_error(weight, rows[part], values[part], floor) for part in parts)
    for ridge in _RIDGES:
        error = sum(
            _error(fit.weight(ridge), rows[part], values[part], floor)
            for fit, part in zip(fits, reversed(parts), strict=True)
        )
        if error < least:
            best, least = ridge, error
    return _Fit(weight, rows, values, floor).weight(best) if best else weight


def _residual(weight: np.ndarray, rows: np.ndarray, values: np.ndarray, floor: float) -> np.ndarray:
    """Return values minus what `weight` gives, both centred, without what a Relu makes void: [n, O]."""
    x, y = rows - rows.mean(axis=0), values - values.mean(axis=0)
    residual = y - x @ weight.T
    void = (values < floor) & (values - residual < floor)
    return np.asarray(np.where(void, 0.0, residual))


def _error(weight: np.ndarray, rows: np.ndarray, values: np.ndarray, floor: float) -> float:
    return float(np.square(_residual(weight, rows, values, floor)).sum())


class _Fit:
    """The regression on some rows, for any ridge."""

    def __init__(self, weight: np.ndarray, rows: np.ndarray, values: np.ndarray, floor: float) -> None:
        x = rows - rows.mean(axis=0)
        self._weight = weight
        self._moments, vectors = np.linalg.eigh(x.T @ x / len(x))
        self._vectors = vectors
        self._cross = _residual(weight, rows, values, floor).T @ x / len(x) @ vectors
        self._level = float(self._moments.mean())

    def weight(self, ridge: float) -> np.ndarray:
        """Return the weights at `ridge` times the mean diagonal."""
        return np.asarray(self._weight + self._cross / (self._moments + ridge * self._level) @ self._vectors.T)
