"""Error-compensated rounding: round a weight matrix column by column, letting later columns make up for each error.

For outputs ``y = W x`` with second moments ``H = E[x x^T]`` of the inputs, the rounding of column j leaves an error e_j
per row. Moving the columns not yet rounded by ``-e_j * U[j, j+1:] / U[j, j]``, with ``U`` the upper Cholesky factor of
``H^-1``, is the update that keeps ``E |(W - Q) x|^2`` least (Hassibi & Stork 1993; Frantar et al. 2022). Columns go
from the most to the least active, so that there is something left to compensate with. Pure numpy; knows no graph.
"""

from __future__ import annotations

import numpy as np

__all__ = ["compensated_round", "output_error"]

_DAMPING = 0.01  # of the mean diagonal, at least


def compensated_round(weight: np.ndarray, moments: np.ndarray, samples: int, low: int, high: int) -> np.ndarray:
    """Return integers [O, K] (float64) in low..high close to `weight` [O, K], in counts, as seen through the inputs.

    moments : [K, K], positive semi-definite. samples : how many inputs it is the mean of; with few, it is drawn
    towards its diagonal so that chance correlations are not exploited.
    """
    size = weight.shape[1]
    diagonal = np.diag(moments).copy()
    level = diagonal.mean()
    if size < 2 or not level > 0:
        return np.clip(np.floor(weight + 0.5), low, high)
    shrink = size / (size + samples)
    h = moments * (1 - shrink) + np.diag(diagonal * shrink + _DAMPING * level)
    order = np.argsort(-np.diag(h), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T  # H^-1 = U^T U
    left = weight[:, order].astype(np.float64)
    rounded = np.empty_like(left)
    for j in range(size):
        rounded[:, j] = np.clip(np.floor(left[:, j] + 0.5), low, high)
        error = (left[:, j] - rounded[:, j]) / upper[j, j]
        left[:, j + 1 :] -= np.outer(error, upper[j, j + 1 :])
    result = np.empty_like(rounded)
    result[:, order] = rounded
    return result


def output_error(difference: np.ndarray, moments: np.ndarray) -> float:
    """Return the summed mean square of ``difference @ x`` for inputs with second moments `moments`."""
    return float(np.einsum("ok,kl,ol->", difference, moments, difference, optimize=True))
