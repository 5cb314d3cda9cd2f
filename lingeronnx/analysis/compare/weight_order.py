"""Detect swapped channels and axes of an integer weight, from the weights alone.

Scales, factors of equalization and folded normalization multiply the weights of an output channel
by a number of either sign and keep their direction. So the rows of the float weight W and of the
integer weight V are compared by

    c(i, j) = |V_i . W_j| / (|V_i| |W_j|)        0 to 1; factors of input channels are removed
                                                 from V

Rows i and j are swapped if V_i matches W_j and not W_i, and V_j matches W_i or is too small to
have a reliable direction. A row of a single weight has no direction. Axes are transposed if most
rows match those of the transposed W and not those of W. This module knows nodes, but runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import ir
from ...operators.integer_ops import find_integer_op

__all__ = ["find_swapped_channels", "find_transposed_axes"]

_MIN_MATCH, _MAX_MISMATCH = 0.95, 0.7  # least c of equal rows, largest c of different rows
_MIN_MAX_ABS = 4  # largest weight of a row below which its direction may be due to rounding


def find_swapped_channels(
    integer_node: ir.Node, float_node: ir.Node, factor: Sequence[float] = (1.0,)
) -> list[tuple[int, int]]:
    """Return the pairs of output channels of an integer layer that have each other's weights.

    Parameters
    ----------
    integer_node, float_node
        The layer in the integer graph and in the float model.
    factor
        Factor of the stored input channels: one value, or [I].

    Returns
    -------
    list of (int, int)
        Pairs (lower, higher) of channels, sorted; empty if the weights do not have the same shape
        (matrices may be transposed), are missing, have one element per channel, or if the integer
        weight's channels are not on axis 0.
    """
    weights = _read_weights(integer_node, float_node, factor)
    if weights is None:
        return []
    integer_weight, float_weight, is_reliable = weights
    layouts = [float_weight]
    if float_weight.ndim == 2:  # a matrix may be transposed
        layouts.append(float_weight.T)
    similarities = [
        _row_similarity(integer_weight, layout)
        for layout in layouts
        if layout.shape == integer_weight.shape
    ]
    if not similarities:
        return []
    return _find_swapped_pairs(max(similarities, key=np.trace), is_reliable)


def find_transposed_axes(
    integer_node: ir.Node, float_node: ir.Node, factor: Sequence[float] = (1.0,)
) -> str:
    """Describe the transposed or flipped axes of the kernels [O, I, ...] of an integer layer.

    Empty if they are not, and for matrices, which may be transposed. Parameters as for
    `find_swapped_channels`.
    """
    weights = _read_weights(integer_node, float_node, factor)
    if weights is None or weights[0].ndim < 3 or weights[0].shape != weights[1].shape:
        return ""
    integer_weight, float_weight, is_reliable = weights
    if _match_of_rows(integer_weight, float_weight, is_reliable) >= _MAX_MISMATCH:
        return ""
    spatial = tuple(range(2, float_weight.ndim))
    layouts = {
        "height and width swapped": float_weight.swapaxes(-1, -2),
        "their spatial axes reversed": np.flip(float_weight, spatial),
        "input and output channels swapped": float_weight.swapaxes(0, 1),
    }
    for description, layout in layouts.items():
        if layout.shape != integer_weight.shape or np.array_equal(layout, float_weight):
            continue
        if _match_of_rows(integer_weight, layout, is_reliable) > _MIN_MATCH:
            return description
    return ""


def _match_of_rows(
    integer_weight: np.ndarray, float_weight: np.ndarray, is_reliable: np.ndarray
) -> float:
    """Return the median |cosine| of equal rows, of those that are reliable; 1 without any."""
    if not is_reliable.any():
        return 1.0
    similarity = _row_similarity(integer_weight, float_weight).diagonal()
    return float(np.median(similarity[is_reliable]))


def _read_weights(
    integer_node: ir.Node, float_node: ir.Node, factor: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return both weights, and which rows of the integer weight have a reliable direction, [O].

    Factors of input channels are removed from the integer weight. None if a weight is missing or
    has one element per channel, or if the integer weight's channels are not on axis 0.
    """
    form = find_integer_op(integer_node)
    integer_weight, float_weight = _weight_array(integer_node), _weight_array(float_node)
    if form is None or form.channel_axis != 0 or integer_weight is None or float_weight is None:
        return None
    is_reliable = _max_abs_per_row(np.abs(integer_weight)) >= _MIN_MAX_ABS
    factors = np.array(factor, np.float64)
    if factors.size == integer_weight.shape[1]:
        broadcast_shape = (1, -1, *[1] * (integer_weight.ndim - 2))
        integer_weight = integer_weight * factors.reshape(broadcast_shape)
    if integer_weight[0].size <= 1:
        return None
    return integer_weight, float_weight, is_reliable


def _weight_array(node: ir.Node) -> np.ndarray | None:
    """Return the weight of a layer, its constant input 1, as float64.

    None if there is no such constant or it has fewer than two axes.
    """
    array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None or array.ndim < 2 else array.astype(np.float64)


def _max_abs_per_row(magnitudes: np.ndarray) -> np.ndarray:
    """Return the largest of the magnitudes [O, ...] of each row, [O]."""
    largest: np.ndarray = magnitudes.reshape(len(magnitudes), -1).max(axis=1)
    return largest


def _row_similarity(integer_weight: np.ndarray, float_weight: np.ndarray) -> np.ndarray:
    """Return |cosine| of all pairs of weight rows (output channels), [integer row, float row]."""
    directions = []
    for weight in (integer_weight, float_weight):
        rows = weight.reshape(len(weight), -1)
        directions.append(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30))
    return np.asarray(np.abs(directions[0] @ directions[1].T))


def _find_swapped_pairs(similarity: np.ndarray, is_reliable: np.ndarray) -> list[tuple[int, int]]:
    """Return pairs (lower, higher) of swapped rows, sorted, from their similarity [integer, float].

    Both rows must have a similarity below _MAX_MISMATCH with themselves and above _MIN_MATCH with
    each other. `is_reliable` [O] tells which integer rows are large enough to have a direction; an
    unreliable one need not match back.
    """
    is_mismatched = similarity.diagonal() < _MAX_MISMATCH
    pairs = set()
    for i in np.flatnonzero(is_mismatched & is_reliable):
        j = int(similarity[i].argmax())
        matches_back = similarity[j, i] > _MIN_MATCH or not is_reliable[j]
        if similarity[i, j] > _MIN_MATCH and is_mismatched[j] and matches_back:
            pairs.add((min(int(i), j), max(int(i), j)))
    return sorted(pairs)
