"""Error-compensated rounding.

Round a weight matrix column by column, letting later columns make up for each error.
For outputs ``y = W x`` with second moments ``H = E[x x^T]`` of the inputs, rounding W to Q leaves
``D = W - Q``. With ``H = R R^T``, R upper triangular, ``E |D x|^2 = |D R|^2``. Column k of D R is
``sum_i<=k D_i R[i, k]``: given the columns before it, it is least where column k is rounded from
``W_k + sum_i<k D_i R[i, k] / R[k, k]``. That is the update of Hassibi & Stork (1993) and Frantar et
al. (2022), without an inverse. Columns go from the most to the least active, so that there is
something left to compensate with. Where weights are held in groups, an integer stands for `step`
counts, which may differ from one weight to the next. Pure numpy; knows no graph.

What is best for a column is not always best for those behind it. So a row may keep several
roundings: each goes on with the two integers around what column k is rounded from, and those with
the least error so far stay (the M-algorithm, Anderson and Mohan 1984, as decoders use it for the
closest point of a lattice).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = [
    "BEAM_WIDTH",
    "minimize_by_coordinate_descent",
    "output_error",
    "regularize_moments",
    "round_half_to_even",
    "round_to_nearest",
    "round_with_compensation",
    "sweep_columns",
]

Move = Callable[[int, np.ndarray, np.ndarray, float], np.ndarray]
Spread = Callable[[np.ndarray], np.ndarray]

_DAMPING = 0.01  # of the mean diagonal, at least
_SWEEPS = 8
_BLOCK = 64  # columns, of which those before are taken into account by one product
BEAM_WIDTH = 8  #: roundings of a row with few bits
_MAX_BEAM_ELEMENTS = 1 << 21  # weights of all roundings that are kept


def round_to_nearest(
    values: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Return `values`, in counts, as the nearest integers low..high times `step` [the same shape], 1 where None."""
    if step is None:
        return np.asarray(np.clip(np.floor(values + 0.5), low, high))
    return np.asarray(np.clip(np.floor(values / step + 0.5), low, high) * step)


def round_with_compensation(
    weight: np.ndarray,
    moments: np.ndarray,
    samples: int,
    low: int,
    high: int,
    step: np.ndarray | None = None,
    beam_width: int = 1,
) -> np.ndarray:
    """Return integers [G, O, K] (float64) in low..high close to `weight` [G, O, K], in counts, as seen by the inputs.

    step : counts that an integer stands for, [G, O, K], or None for 1; what is returned is integers
    times it. ways : roundings that each row keeps till its end at most, of which the best is
    returned.

    moments : [G, K, K], positive semi-definite, of the inputs of each of the G groups. samples :
    how many inputs they are the mean of; with few, they are drawn towards their diagonal so that
    chance correlations are not exploited.
    """
    size = weight.shape[2]
    result = round_to_nearest(weight, low, high, step)
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    level = diagonal.mean(axis=1)
    (live,) = np.nonzero(level > 0)
    if size < 2 or not len(live):
        return result
    h = regularize_moments(moments if len(live) == len(moments) else moments[live], samples)
    every = np.arange(size)
    order = np.argsort(-h[:, every, every], axis=1, kind="stable")
    for moment, last in zip(h, order[:, ::-1], strict=True):
        moment[:] = moment[np.ix_(last, last)]  # the last column first
    upper = np.linalg.cholesky(h)[:, ::-1, ::-1]  # H = R R^T
    del h  # of large layers every copy counts
    steps = None if step is None else np.take_along_axis(step[live], order[:, None], axis=2)
    turned = np.take_along_axis(weight[live], order[:, None], axis=2)
    most = min(_MAX_BEAM_ELEMENTS // turned.size, beam_width)
    if most > 1:
        rounded = _beam_round(turned, upper, low, high, steps, beam_width=most)
    else:
        rounded = _round_columns(turned, upper, low, high, steps)
    integers = np.empty_like(rounded)
    np.put_along_axis(integers, np.broadcast_to(order[:, None], integers.shape), rounded, axis=2)
    result[live] = integers
    return result


def regularize_moments(moments: np.ndarray, samples: int) -> np.ndarray:
    """Shrink second moments towards their diagonal, so that they are positive definite.

    See `round_with_compensation`. Returns a copy.
    """
    size = moments.shape[1]
    diagonal = np.diagonal(moments, axis1=1, axis2=2)
    shrink = size / (size + samples)
    h = moments * (1 - shrink)
    every = np.arange(size)
    h[:, every, every] += diagonal * shrink + _DAMPING * diagonal.mean(axis=1)[:, None]
    return h


def minimize_by_coordinate_descent(
    rounded: np.ndarray,
    weight: np.ndarray,
    moments: np.ndarray,
    samples: int,
    low: int,
    high: int,
    step: np.ndarray | None = None,
) -> np.ndarray:
    """Return integers [G, O, K] (float64) from which no single one can move with gain.

    The start is `rounded`.
    Arguments as for `round_with_compensation`. Coordinate descent on ``trace(D H D^T)``: integer k
    of a row moves by the whole number nearest to ``-(D H)_k / H_kk``, which never adds to the
    error; at most `_SWEEPS` times over all.
    """
    result = rounded.copy()
    for place, moment in enumerate(moments):
        if np.trace(moment) > 0:
            own = None if step is None else step[place]
            _descend(
                result[place],
                weight[place],
                regularize_moments(moment[None], samples)[0],
                low,
                high,
                own,
            )
    return result


def sweep_columns(
    integers: np.ndarray, slope: np.ndarray, h: np.ndarray, move: Move, spread: Spread
) -> None:
    """Move the `integers` [O, K] of one group in place, column by column, until none moves.

    At most `_SWEEPS` times.
    slope : the error's slope [O, K] at the start, used up. h : [K, K]. move : moves column k, [O]
    integers, in place, given k, the column, its slope and its own h, and returns the steps. spread
    : what steps [O, ...] do to the slopes of the rows.
    """
    size = integers.shape[1]
    for _ in range(_SWEEPS):
        moved = False
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
                moved = True
                reach = spread(steps)
                slope[:, :start] += reach @ h[start:stop, :start]
                slope[:, stop:] += reach @ h[start:stop, stop:]
        if not moved:
            return


def _descend(
    integers: np.ndarray,
    weight: np.ndarray,
    h: np.ndarray,
    low: int,
    high: int,
    steps: np.ndarray | None,
) -> None:
    """Move the `integers` [O, K] of one group in place."""

    def move(k: int, column: np.ndarray, slope: np.ndarray, own: float) -> np.ndarray:
        new = round_half_to_even(
            column - slope / own, low, high, None if steps is None else steps[:, k]
        )
        step = new - column
        column[:] = new
        return np.asarray(step)

    sweep_columns(integers, (integers - weight) @ h, h, move, lambda steps: steps)


def round_half_to_even(
    values: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Return where `values` move to.

    As `round_to_nearest`, but half-way values to the even integer, so that none swings.
    """
    if step is None:
        return np.asarray(np.clip(np.rint(values), low, high))
    return np.asarray(np.clip(np.rint(values / step), low, high) * step)


def _round_columns(
    weight: np.ndarray, upper: np.ndarray, low: int, high: int, step: np.ndarray | None
) -> np.ndarray:
    """Round the columns of `weight` [G, O, K] one by one.

    Upper : R of the module's docstring, [G, K, K], used up.
    """
    size = weight.shape[2]
    share = np.divide(upper, np.diagonal(upper, axis1=1, axis2=2)[:, None].copy(), out=upper)
    errors, rounded = np.zeros_like(weight), np.empty_like(weight)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        wanted = weight[:, :, start:stop] + errors[:, :, :start] @ share[:, :start, start:stop]
        for j in range(start, stop):
            inner = (errors[:, :, start:j] * share[:, None, start:j, j]).sum(axis=2)
            own = None if step is None else step[:, :, j]
            rounded[:, :, j] = round_to_nearest(wanted[:, :, j - start] + inner, low, high, own)
            errors[:, :, j] = weight[:, :, j] - rounded[:, :, j]
    return rounded


def _beam_round(
    weight: np.ndarray,
    upper: np.ndarray,
    low: int,
    high: int,
    step: np.ndarray | None,
    beam_width: int,
) -> np.ndarray:
    """Round as `_round_columns` does, by beam search.

    Up to `beam_width` roundings of each row [G, O].
    """
    diagonal = np.diagonal(upper, axis1=1, axis2=2).copy()
    level, share = np.square(diagonal), np.divide(upper, diagonal[:, None], out=upper)
    groups, outputs, size = weight.shape
    cost, rounded = np.zeros((groups, outputs, 1)), np.zeros((groups, outputs, 1, size))
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        errors = weight[:, :, None, :start] - rounded[..., :start]
        wanted = weight[:, :, None, start:stop] + errors @ share[:, None, :start, start:stop]
        # of each column: its integers, and which rounding of the columns before each goes on from
        taken = []
        for j in range(start, stop):
            own = None if step is None else step[:, :, None, j]
            values, wanted = wanted[..., 0], wanted[..., 1:]
            first = round_to_nearest(values, low, high, own)
            second = round_to_nearest(
                first + np.where(values > first, 1, -1) * (1 if own is None else own),
                low,
                high,
                own,
            )
            costs = [
                cost + np.square(values - new) * level[:, j, None, None] for new in (first, second)
            ]
            costs[1][second == first] = np.inf  # at an end of the range there is one only
            every = np.concatenate(costs, axis=2)
            count = min(beam_width, every.shape[2])
            chosen = np.argpartition(every, count - 1, axis=2)[:, :, :count]
            cost = np.take_along_axis(every, chosen, axis=2)
            new = np.take_along_axis(np.concatenate([first, second], axis=2), chosen, axis=2)
            before = chosen % values.shape[2]
            taken.append((new, before))
            wanted = np.take_along_axis(wanted, before[..., None], axis=2)
            wanted += (weight[:, :, None, j] - new)[..., None] * share[
                :, None, None, j, j + 1 : stop
            ]
        block = np.empty((*cost.shape, stop - start))
        trail = np.broadcast_to(np.arange(cost.shape[2]), cost.shape)
        for j, (new, before) in reversed(list(enumerate(taken))):
            block[..., j] = np.take_along_axis(new, trail, axis=2)
            trail = np.take_along_axis(before, trail, axis=2)
        rounded = np.take_along_axis(rounded, trail[..., None], axis=2)
        rounded[..., start:stop] = block
    best = cost.argmin(axis=2)[:, :, None, None]
    return np.asarray(np.take_along_axis(rounded, best, axis=2)[:, :, 0])


def output_error(difference: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return the summed mean square of ``difference @ x`` for inputs with second moments `moments`, per group [G]."""
    return np.asarray(((difference @ moments) * difference).sum(axis=(1, 2)))
