"""Rows of an integer weight that hold what belongs into each other.

Told by the weights alone, whatever the data show.
Scales, factors of equalization and folded normalisations multiply the weights of an output channel
by a number, of either sign, and leave their direction. So the rows of the float weight W and of the
integer one V are compared by

    c(i, j) = |V_i . W_j| / (|V_i| |W_j|)        0 to 1; of V, what equalization gave to input
    channels is taken out

Rows i and j are swapped where V_i is W_j's and not W_i's, and V_j is W_i's, or too small to say
whose it is. A row of one weight has no direction. Knows nodes, runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...formats import find_integer_op
from ...graph import ir

__all__ = ["find_swapped_channels"]

_SAME, _OTHER = 0.95, 0.7  # c of rows that are one, at least, and of rows that are not, at most
_MIN_MAX_ABS = 4  # that a row must reach: what is below may be rounding's direction


def find_swapped_channels(
    ours: ir.Node, theirs: ir.Node, factor: Sequence[float] = (1.0,)
) -> list[tuple[int, int]]:
    """Return which output channels of the integer layer `ours` hold each other's weights of the float layer `theirs`.

    factor : what input channels are multiplied by where integers hold them: one for all, or [I].
    Nothing where the two weights are not of one form.
    """
    form = find_integer_op(ours)
    made, meant = (_weight_array(node) for node in (ours, theirs))
    if form is None or form.channel_axis != 0 or made is None or meant is None:
        return []
    telling = _max_abs_per_row(np.abs(made)) >= _MIN_MAX_ABS
    factors = np.array(factor, np.float64)
    if factors.size == made.shape[1]:
        made = made * factors.reshape(1, -1, *[1] * (made.ndim - 2))
    ways = [meant, meant.T] if meant.ndim == 2 else [meant]  # a matrix may lie either way
    near = [
        _row_similarity(made, way) for way in ways if way.shape == made.shape and made[0].size > 1
    ]
    return _find_swapped_pairs(max(near, key=np.trace), telling) if near else []


def _weight_array(node: ir.Node) -> np.ndarray | None:
    array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None or array.ndim < 2 else array.astype(np.float64)


def _max_abs_per_row(sizes: np.ndarray) -> np.ndarray:
    return sizes.reshape(len(sizes), -1).max(axis=1)


def _row_similarity(made: np.ndarray, meant: np.ndarray) -> np.ndarray:
    """Return c [O, O]."""
    rows = [array.reshape(len(array), -1) for array in (made, meant)]
    one, other = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in rows)
    return np.asarray(np.abs(one @ other.T))


def _find_swapped_pairs(near: np.ndarray, telling: np.ndarray) -> list[tuple[int, int]]:
    strange = near.diagonal() < _OTHER
    pairs = set()
    for i in np.flatnonzero(strange & telling):
        j = int(near[i].argmax())
        if near[i, j] > _SAME and strange[j] and (near[j, i] > _SAME or not telling[j]):
            pairs.add((min(int(i), j), max(int(i), j)))
    return sorted(pairs)
