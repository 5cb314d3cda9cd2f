"""Round weight matrices so that later columns compensate the errors of earlier ones.

For outputs ``y = W x`` with second moments ``H = E[x x^T]`` of the inputs, rounding W to Q leaves
``D = W - Q``. With ``H = R R^T``, R upper triangular, ``E |D x|^2 = |D R|^2``. Column k of D R is
``sum_i<=k D_i R[i, k]``: given the columns before it, it is smallest if column k is rounded from
``W_k + sum_i<k D_i R[i, k] / R[k, k]``. That is the update of Hassibi & Stork (1993) and Frantar et
al. (2022), without an inverse. Columns go from the most to the least active, so that something is
left to compensate with. If weights are quantized in groups, an integer stands for `step` counts,
which may differ between weights. Independent of graphs.

The best rounding of a column is not always the best for those after it. So several roundings of a
row may be tracked: each continues with the two integers around the value that column k is rounded
from, and those with the least error so far are kept (the M-algorithm, Anderson and Mohan 1984, as
used by decoders for the closest point of a lattice).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = [
    "BEAM_WIDTH",
    "minimize_by_coordinate_descent",
    "output_error_change",
    "regularize_moments",
    "round_half_to_even",
    "round_to_nearest",
    "round_with_compensation",
    "sweep_columns",
]

Move = Callable[[int, np.ndarray, np.ndarray, float], np.ndarray]
Spread = Callable[[np.ndarray], np.ndarray]

_DAMPING = 0.01  # times the mean diagonal, added to the diagonal
_SWEEPS = 8
_BLOCK = 64  # columns per block; errors of earlier blocks are applied by one matrix product
BEAM_WIDTH = 8  #: tracked roundings of a row of low-bit weights
_MAX_BEAM_ELEMENTS = 1 << 21  # maximum number of weights of all tracked roundings


def round_to_nearest(
    values: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Round `values` to the nearest allowed integer in range, half up.

    Parameters
    ----------
    values
        Values in counts.
    low, high
        Range of the integers.
    step
        Counts per integer, of the shape of `values`, or None for 1.

    Returns
    -------
    numpy.ndarray
        The integers times `step`.
    """
    counts = values + 0.5 if step is None else values / step + 0.5
    np.floor(counts, out=counts)
    np.minimum(counts, high, out=counts)  # np.clip takes longer for short columns
    np.maximum(counts, low, out=counts)
    return counts if step is None else counts * step


def round_with_compensation(
    weight: np.ndarray,
    moments: np.ndarray,
    samples: int,
    low: int,
    high: int,
    step: np.ndarray | None = None,
    beam_width: int = 1,
) -> np.ndarray:
    """Round weights so that the outputs change least for the given input moments.

    Columns are rounded one after the other, the most active inputs first; later ones compensate the
    errors of earlier ones.

    Parameters
    ----------
    weight
        Weights [G, O, K] in counts, in G groups.
    moments
        Second moments of the inputs of each group, [G, K, K], positive semidefinite.
    samples
        Number of inputs that the moments are the mean of. With few, the moments are shrunk towards
        their diagonal so that chance correlations are not exploited.
    low, high
        Range of the integers, inclusive.
    step
        Counts per integer, [G, O, K], or None for 1.
    beam_width
        Maximum number of roundings tracked for each row, of which the best is returned.

    Returns
    -------
    numpy.ndarray
        Integers times `step`, float64 [G, O, K]. Groups without any input are rounded to nearest.
    """
    from simulator.weight_rounding import permute_symmetric

    size = weight.shape[2]
    result = round_to_nearest(weight, low, high, step)
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    (active_groups,) = np.nonzero(diagonal.mean(axis=1) > 0)
    if size < 2 or not len(active_groups):
        return result
    if len(active_groups) < len(moments):
        moments, diagonal = moments[active_groups], diagonal[active_groups]
    order = np.argsort(-diagonal, axis=1, kind="stable")
    h = permute_symmetric(np.ascontiguousarray(moments, np.float64), order[:, ::-1])
    _regularize(h, samples)
    upper = np.linalg.cholesky(h)[:, ::-1, ::-1]  # H = R R^T
    del h  # every copy counts for large layers
    steps = None
    if step is not None:
        steps = _reorder(step[active_groups], order)
    permuted = _reorder(weight[active_groups], order)
    beam_width = min(_MAX_BEAM_ELEMENTS // permuted.size, beam_width)
    if beam_width > 1:
        rounded = _beam_round(permuted, upper, low, high, steps, beam_width=beam_width)
    else:
        rounded = _round_columns(permuted, upper, low, high, steps)
    result[active_groups] = _reorder(rounded, np.argsort(order, axis=1))
    return result


def _reorder(arrays: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return a copy of `arrays` [G, R, K] with columns in the `order` [G, n] of each group."""
    if len(arrays) == 1:  # `take` is faster than indices for every element
        return np.asarray(arrays[0].take(order[0], axis=1)[None])
    return np.take_along_axis(arrays, order[:, None], axis=2)


def regularize_moments(moments: np.ndarray, samples: int) -> np.ndarray:
    """Return second moments shrunk towards their diagonal, so that they are positive definite.

    `moments` [G, K, K] are not changed. The weight of the diagonal is K / (K + samples); 0.01 times
    its mean is added to it.
    """
    h = np.array(moments, np.float64)
    _regularize(h, samples)
    return h


def _regularize(moments: np.ndarray, samples: int) -> None:
    """Shrink `moments` towards their diagonal as `regularize_moments` does, in place."""
    size = moments.shape[1]
    diagonal = np.diagonal(moments, axis1=1, axis2=2).copy()
    shrink = size / (size + samples)
    moments *= 1 - shrink
    indices = np.arange(size)
    moments[:, indices, indices] += diagonal * shrink + _DAMPING * diagonal.mean(axis=1)[:, None]


def minimize_by_coordinate_descent(
    rounded: np.ndarray,
    weight: np.ndarray,
    moments: np.ndarray,
    samples: int,
    low: int,
    high: int,
    step: np.ndarray | None = None,
) -> np.ndarray:
    """Improve rounded weights by coordinate descent on the error of the outputs.

    The error is trace(D H D^T), with D the difference to the exact weights and H the moments of the
    inputs. Integer k of a row moves by the integer nearest to ``-(D H)_k / H_kk``, which never
    increases the error, in at most 8 sweeps over all.

    Parameters
    ----------
    rounded
        Integers times `step` [G, O, K] to start from; not changed.
    weight
        Exact weights [G, O, K] in counts.
    moments
        Second moments of the inputs of each group, [G, K, K].
    samples
        Number of inputs that the moments are the mean of; with few, they are shrunk towards their
        diagonal.
    low, high
        Range of the integers, inclusive.
    step
        Counts per integer, [G, O, K], or None for 1.

    Returns
    -------
    numpy.ndarray
        Integers times `step`, float64 [G, O, K].
    """
    result = rounded.copy()
    for g, group_moments in enumerate(moments):
        if np.trace(group_moments) > 0:
            h = regularize_moments(group_moments[None], samples)[0]
            _descend(result[g], weight[g], h, low, high, None if step is None else step[g])
    return result


def sweep_columns(
    integers: np.ndarray, slope: np.ndarray, h: np.ndarray, move: Move, spread: Spread
) -> None:
    """Move the integers of one group column by column until none changes, in at most 8 sweeps.

    Parameters
    ----------
    integers
        Integers [O, K]; modified.
    slope
        Half the gradient of the error at `integers`, [O, K]; overwritten.
    h
        Second moments of the inputs, [K, K].
    move
        Function (index k of a column, its integers [O], their slopes [O], ``h[k, k]``) that moves
        the integers in place and returns their changes [O].
    spread
        Function that maps changes [O, ...] to the resulting changes of the slopes of all rows.
    """
    size = integers.shape[1]
    for _ in range(_SWEEPS):
        changed = False
        for start in range(0, size, _BLOCK):
            stop = min(start + _BLOCK, size)
            before = integers[:, start:stop].copy()
            inner = slope[:, start:stop]
            for k in range(start, stop):
                step = move(k, integers[:, k], inner[:, k - start], h[k, k])
                if step.any():
                    inner += spread(step)[:, None] * h[k, start:stop]
            steps = integers[:, start:stop] - before
            if steps.any():
                changed = True
                spread_steps = spread(steps)
                slope[:, :start] += spread_steps @ h[start:stop, :start]
                slope[:, stop:] += spread_steps @ h[start:stop, stop:]
        if not changed:
            return


def _descend(
    integers: np.ndarray,
    weight: np.ndarray,
    h: np.ndarray,
    low: int,
    high: int,
    steps: np.ndarray | None,
) -> None:
    """Minimize the output error of the `integers` [O, K] of one group, column by column in place.

    All rows of a column move at once. `weight` are the exact weights, `h` [K, K] the moments of the
    inputs, `steps` [O, K] the distance of the allowed integers (None for 1).
    """

    def move(k: int, column: np.ndarray, slope: np.ndarray, curvature: float) -> np.ndarray:
        """Set `column` to the rounded minimum of the error along it, in place; return the changes.

        The integers stay in the range from `low` to `high`, on the steps of column `k` if there are
        any.
        """
        column_steps = None if steps is None else steps[:, k]
        new = round_half_to_even(column - slope / curvature, low, high, column_steps)
        change = new - column
        column[:] = new
        return np.asarray(change)

    sweep_columns(integers, (integers - weight) @ h, h, move, lambda change: change)


def round_half_to_even(
    values: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Round `values` to the nearest integer times `step`, halves to the even integer.

    Integers are clipped to low..high; `step` is an array of counts per integer, or None for 1.
    Unlike rounding half up, it never makes a value oscillate.
    """
    if step is None:
        return np.asarray(np.clip(np.rint(values), low, high))
    return np.asarray(np.clip(np.rint(values / step), low, high) * step)


def _round_columns(
    weight: np.ndarray, upper: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Round the columns of `weight` [G, O, K] one after the other, compensating earlier errors.

    Returns integers times `step`, float64 [G, O, K].

    Parameters
    ----------
    upper
        R [G, K, K], upper triangular, with R R^T the second moments of the inputs; overwritten.
    step
        Counts per integer, [G, O, K], or None for 1.
    """
    from simulator.weight_rounding import round_columns

    size = weight.shape[2]
    ratio = np.divide(upper, np.diagonal(upper, axis1=1, axis2=2)[:, None].copy(), out=upper)
    # Columns become rows, which are contiguous: [G, K, O].
    ratio, columns = ratio.transpose(0, 2, 1), weight.transpose(0, 2, 1).copy()
    steps = None if step is None else step.transpose(0, 2, 1).copy()
    errors, rounded = np.zeros_like(columns), np.empty_like(columns)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        block = ratio[:, start:stop, :stop].copy()
        targets = columns[:, start:stop] + block[:, :, :start] @ errors[:, :start]
        ratios = np.ascontiguousarray(block[:, :, start:])
        round_columns(
            targets,
            ratios,
            start,
            columns=columns,
            steps=steps,
            low=low,
            high=high,
            errors=errors,
            rounded=rounded,
        )
    return rounded.transpose(0, 2, 1)


def _beam_round(
    weight: np.ndarray,
    upper: np.ndarray,
    low: int,
    high: int,
    step: np.ndarray | None,
    beam_width: int,
) -> np.ndarray:
    """Round the columns of `weight` [G, O, K], tracking up to `beam_width` roundings per row.

    Each column compensates the errors of earlier ones, and continues every rounding with its
    nearest integer and the next one in the direction of the error; kept are those with the least
    squared error so far. `step` [G, O, K] is None for integers. Returns the best integers times
    `step`, [G, O, K]. `upper` [G, K, K], the triangular root of the inputs' second moments, is
    overwritten.
    """
    diagonal = np.diagonal(upper, axis1=1, axis2=2).copy()
    level, ratio = np.square(diagonal), np.divide(upper, diagonal[:, None], out=upper)
    groups, outputs, size = weight.shape
    cost, rounded = np.zeros((groups, outputs, 1)), np.zeros((groups, outputs, 1, size))
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        errors = weight[:, :, None, :start] - rounded[..., :start]
        targets = weight[:, :, None, start:stop] + errors @ ratio[:, None, :start, start:stop]
        # Of each column: the integers, and the indices of the roundings that they continue.
        history = []
        for j in range(start, stop):
            column_step = None if step is None else step[:, :, None, j]
            values, targets = targets[..., 0], targets[..., 1:]
            first = round_to_nearest(values, low, high, column_step)
            direction = np.where(values > first, 1, -1) * (
                1 if column_step is None else column_step
            )
            second = round_to_nearest(first + direction, low, high, column_step)
            costs = [
                cost + np.square(values - new) * level[:, j, None, None] for new in (first, second)
            ]
            costs[1][second == first] = np.inf  # only one integer at an end of the range
            all_costs = np.concatenate(costs, axis=2)
            count = min(beam_width, all_costs.shape[2])
            selected = np.argpartition(all_costs, count - 1, axis=2)[:, :, :count]
            cost = np.take_along_axis(all_costs, selected, axis=2)
            new = np.take_along_axis(np.concatenate([first, second], axis=2), selected, axis=2)
            parents = selected % values.shape[2]
            history.append((new, parents))
            targets = np.take_along_axis(targets, parents[..., None], axis=2)
            error = (weight[:, :, None, j] - new)[..., None]
            targets += error * ratio[:, None, None, j, j + 1 : stop]
        block = np.empty((*cost.shape, stop - start))
        path = np.broadcast_to(np.arange(cost.shape[2]), cost.shape)
        for j, (new, parents) in reversed(list(enumerate(history))):
            block[..., j] = np.take_along_axis(new, path, axis=2)
            path = np.take_along_axis(parents, path, axis=2)
        rounded = np.take_along_axis(rounded, path[..., None], axis=2)
        rounded[..., start:stop] = block
    best = cost.argmin(axis=2)[:, :, None, None]
    return np.asarray(np.take_along_axis(rounded, best, axis=2)[:, :, 0])


def output_error_change(
    old: np.ndarray, new: np.ndarray, weight: np.ndarray, moments: np.ndarray
) -> np.ndarray:
    """Return the change of the outputs' summed mean square error for each group, [G].

    ``trace(B H B^T) - trace(A H A^T) = trace((B - A) H (B + A)^T)`` takes one product instead of
    two, with A and B the differences of `old` and `new` to the exact weights.

    Parameters
    ----------
    old, new
        Integers times steps, [G, O, K].
    weight
        Exact weights [G, O, K] in counts.
    moments
        Second moments H of the inputs, [G, K, K].
    """
    product = (new - old) @ moments
    product *= new + old - 2 * weight
    return np.asarray(product.sum(axis=(1, 2)))
