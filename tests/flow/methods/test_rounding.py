"""Error-compensated rounding never does worse than rounding to nearest where it matters: in the
layer's output.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.quantization.methods import rounding
from lingeronnx.quantization.methods.rounding import (
    minimize_by_coordinate_descent,
    output_error_change,
    round_with_compensation,
)
from tests.case_selection import limit_examples


def output_error(difference, moments):
    """Summed mean square of the outputs of each group, one input pair after the other."""
    return np.einsum("goi,gij,goj->g", difference, moments, difference)


def moments_of(rng, size, samples=400):
    """Second moments [1, size, size] of inputs that share a common part, as neighbouring pixels
    do.
    """
    x = rng.standard_normal((samples, size)) + 2 * rng.standard_normal((samples, 1))
    return (x.T @ x / samples)[None]


def one_by_one(weight, moments, samples, low, high):
    """The same as it was published: each error goes to the columns left, by the Cholesky factor of
    the inverse.
    """
    diagonal = np.diag(moments)
    shrink = len(moments) / (len(moments) + samples)
    h = moments * (1 - shrink) + np.diag(diagonal * shrink + 0.01 * diagonal.mean())
    order = np.argsort(-np.diag(h), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    left, found = weight[:, order].copy(), np.empty(weight.shape)
    for j, column in enumerate(order):
        found[:, column] = np.clip(np.floor(left[:, j] + 0.5), low, high)
        left[:, j:] -= np.outer((left[:, j] - found[:, column]) / upper[j, j], upper[j, j:])
    return found


@pytest.mark.parametrize(("groups", "rows", "size"), [(1, 5, 150), (7, 1, 9), (3, 4, 64)])
def test_as_published(groups, rows, size):
    """In blocks of columns, for all groups at once and without an inverse: the same integers."""
    rng = np.random.default_rng(size)
    weight = rng.uniform(-140, 140, (groups, rows, size))
    moments = np.concatenate([moments_of(rng, size) for _ in range(groups)])
    moments[groups // 2] *= groups == 1  # else a dead group
    want = [
        one_by_one(w, m, 400, -128, 127) for w, m in zip(weight, moments, strict=True) if m.any()
    ]
    found = round_with_compensation(weight, moments, 400, -128, 127)
    assert np.array_equal([r for r, m in zip(found, moments, strict=True) if m.any()], want)
    assert (
        np.array_equal(found[groups // 2], np.clip(np.floor(weight[groups // 2] + 0.5), -128, 127))
        or groups == 1
    )


def test_change_of_the_output_error():
    """The change is the difference of both errors, and exactly 0 for equal integers."""
    rng = np.random.default_rng(4)
    weight = rng.uniform(-20, 20, (3, 5, 9))
    moments = np.concatenate([moments_of(rng, 9) for _ in range(3)])
    old, new = np.floor(weight), np.round(weight)
    new[1] = old[1]
    want = output_error(new - weight, moments) - output_error(old - weight, moments)
    change = output_error_change(old, new, weight, moments)
    assert change == pytest.approx(want, rel=1e-9)
    assert change[1] == 0


@given(st.integers(0, 2**32 - 1), st.integers(2, 24), st.integers(1, 6))
@limit_examples(40, derandomize=True)
def test_results_are_integers_in_range_and_near(seed, size, rows):
    """Every result is an integer of the range; where the range does not bind, it moves by few steps
    only.
    """
    rng = np.random.default_rng(seed)
    weight = rng.uniform(-140, 140, (1, rows, size))
    result = round_with_compensation(weight, moments_of(rng, size), 400, -128, 127)
    assert np.array_equal(result, np.round(result))
    assert result.min() >= -128
    assert result.max() <= 127


def test_correlated_inputs_gain():
    """On strongly correlated inputs the output error drops well below that of rounding to
    nearest.
    """
    rng = np.random.default_rng(3)
    moments = moments_of(rng, 32)
    weight = rng.uniform(-20, 20, (1, 16, 32))
    nearest = np.floor(weight + 0.5)
    better = round_with_compensation(weight, moments, 4000, -128, 127)
    assert output_error(better - weight, moments) < 0.5 * output_error(nearest - weight, moments)


def test_uncorrelated_inputs_round_to_nearest():
    """With nothing to compensate with, it is rounding half up."""
    weight = np.array([[[0.5, -0.5, 1.4, 2.6, -3.5]]])
    result = round_with_compensation(weight, np.eye(5)[None], 10**9, -128, 127)
    assert result.tolist() == [[[1.0, 0.0, 1.0, 3.0, -3.0]]]


def test_close_to_the_best_of_all_roundings():
    """On a case small enough to try all combinations it is within a factor two of the best of
    them.
    """
    rng = np.random.default_rng(5)
    moments = moments_of(rng, 8)
    weight = rng.uniform(-9, 9, (1, 1, 8))
    result = round_with_compensation(weight, moments, 10**6, -128, 127)
    corners = (np.floor(weight[0, 0]) + np.array(up) for up in itertools.product((0, 1), repeat=8))
    best = min(output_error(corner[None, None] - weight, moments) for corner in corners)
    assert output_error(result - weight, moments) <= 2 * best


@pytest.mark.parametrize("moments", [np.zeros((1, 4, 4)), np.ones((1, 4, 4))])
def test_degenerate_moments(moments):
    """Dead or identical inputs give integers, no exception."""
    result = round_with_compensation(np.array([[[0.4, 0.4, 0.4, 0.4]]]), moments, 100, -128, 127)
    assert np.isfinite(result).all()
    assert np.array_equal(result, np.round(result))


def damped(moments, samples):
    """Oracle: what the rounding takes for the moments of few samples."""
    size = len(moments)
    level = sum(moments[k][k] for k in range(size)) / size
    share = samples / (samples + size)
    return [
        [moments[i][j] * (share if i != j else 1) + 0.01 * level * (i == j) for j in range(size)]
        for i in range(size)
    ]


def squared(row, target, h):
    """Oracle: the error of one output, element by element."""
    off = [a - b for a, b in zip(row, target, strict=True)]
    return sum(off[i] * off[j] * h[i][j] for i in range(len(off)) for j in range(len(off)))


@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.sampled_from([(-8, 7), (-128, 127)]))
@limit_examples(30, derandomize=True)
def test_no_single_integer_could_move(seed, size, bounds):
    """Behind coordinate descent no integer can move by one with gain, and the error is not above
    that of its start.
    """
    rng = np.random.default_rng(seed)
    weight, moments = (
        rng.uniform(1.1 * bounds[0], 1.1 * bounds[1], (1, 2, size)),
        moments_of(rng, size),
    )
    start = round_with_compensation(weight, moments, 400, *bounds)
    found = minimize_by_coordinate_descent(start, weight, moments, 400, *bounds)
    assert np.array_equal(found, np.clip(np.rint(found), *bounds))
    h = damped(moments[0].tolist(), 400)
    for before, row, target in zip(start[0], found[0], weight[0], strict=True):
        least = squared(row, target, h)
        assert least <= squared(before, target, h) * (1 + 1e-9)
        for k, step in itertools.product(range(size), (-1, 1)):
            other = [value + step * (i == k) for i, value in enumerate(row)]
            assert not bounds[0] <= other[k] <= bounds[1] or squared(other, target, h) >= least * (
                1 - 1e-9
            )


def test_descent_in_blocks_is_descent_by_elements():
    """Over several blocks and with a dead group: the integers that a plain loop finds."""
    rng = np.random.default_rng(7)
    size = 150
    moments = np.concatenate([moments_of(rng, size), np.zeros((1, size, size))])
    weight = rng.uniform(-8, 7, (2, 2, size))
    start = np.clip(np.floor(weight + 0.5), -8, 7)
    found = minimize_by_coordinate_descent(start, weight, moments, 10**9, -8, 7)
    h = moments[0] + 0.01 * np.trace(moments[0]) / size * np.eye(size)
    for row, target, have in zip(start[0].copy(), weight[0], found[0], strict=True):
        moved = True
        while moved:
            before = row.copy()
            for k in range(size):
                row[k] = np.clip(np.rint(row[k] - h[k] @ (row - target) / h[k, k]), -8, 7)
            moved = not np.array_equal(row, before)
        assert np.array_equal(row, have)
    assert np.array_equal(found[1], start[1])


def test_with_room_for_all_nothing_is_better():
    """Oracle: of all choices of the two integers around what each column is rounded from, tried one
    after another.
    """
    rng = np.random.default_rng(11)
    for _ in range(8):
        weight, moments = (
            rng.uniform(-8, 7, (2, 3, 6)),
            np.concatenate([moments_of(rng, 6) for _ in range(2)]),
        )
        h = np.array([damped(m, 4000) for m in moments])
        found = round_with_compensation(weight, moments, 4000, -8, 7, beam_width=1 << 6)
        for g, o in itertools.product(range(2), range(3)):
            off = found[g, o] - weight[g, o]
            assert off @ h[g] @ off <= least_of_all(weight[g, o], h[g]) * (1 + 1e-9)


def least_of_all(weight, h):
    """Return the least error of all the roundings of a row that go on with either integer, column
    by column.
    """
    order = np.argsort(-np.diag(h), kind="stable")
    inverse = np.linalg.inv(
        h[np.ix_(order, order)]
    )  # which tells what the columns left are best moved by
    upper = np.linalg.cholesky(inverse).T
    best = np.inf
    for sides in itertools.product((0, 1), repeat=len(weight)):
        left, found = weight[order].copy(), np.empty(len(weight))
        for j, side in enumerate(sides):
            low = np.floor(left[j])
            found[j] = np.clip(low + side, -8, 7)
            left[j:] -= (left[j] - found[j]) / upper[j, j] * upper[j, j:]
        off = np.empty(len(weight))
        off[order] = found - weight[order]
        best = min(best, off @ h @ off)
    return best


@pytest.mark.parametrize(("groups", "rows", "size"), [(1, 6, 150), (5, 1, 9), (2, 4, 70)])
@pytest.mark.parametrize("stepped", [False, True])
def test_several_roundings_are_nearer_than_one(groups, rows, size, stepped):
    """Integers times steps, in range; less error in sum than by going on with one; a dead group is
    rounded.
    """
    rng = np.random.default_rng(size)
    weight = rng.uniform(-9, 8, (groups, rows, size))
    moments = np.concatenate([moments_of(rng, size) for _ in range(groups)])
    step = rng.choice([1.0, 2.0], weight.shape) if stepped else None
    one, several = (
        round_with_compensation(weight, moments, 4000, -8, 7, step, beam_width=ways)
        for ways in (1, 8)
    )
    count = several if step is None else several / step
    assert np.array_equal(count, np.rint(count))
    assert np.abs(count + 0.5).max() <= 7.5
    h = np.array([damped(m, 4000) for m in moments])
    assert output_error(several - weight, h).sum() < 0.97 * output_error(one - weight, h).sum()
    moments[0] = 0
    dead = round_with_compensation(weight, moments, 4000, -8, 7, step, beam_width=8)
    assert np.array_equal(dead[0], rounding.round_to_nearest(weight, -8, 7, step)[0])


def test_where_there_is_no_room_one_is_kept(monkeypatch):
    monkeypatch.setattr(rounding, "_MAX_BEAM_ELEMENTS", 99)
    rng = np.random.default_rng(1)
    weight, moments = rng.uniform(-9, 8, (1, 5, 10)), moments_of(rng, 10)
    one, several = (
        round_with_compensation(weight, moments, 400, -8, 7, beam_width=ways) for ways in (1, 8)
    )
    assert np.array_equal(one, several)
