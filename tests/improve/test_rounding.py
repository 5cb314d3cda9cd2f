"""Error-compensated rounding never does worse than rounding to nearest where it matters: in the layer's output."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingeronnx.flow.improve.rounding import compensated_round, output_error


def moments_of(rng, size, samples=400):
    """Second moments of inputs that share a common part, as neighbouring pixels do."""
    x = rng.standard_normal((samples, size)) + 2 * rng.standard_normal((samples, 1))
    return x.T @ x / samples


@given(st.integers(0, 2**32 - 1), st.integers(2, 24), st.integers(1, 6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_results_are_integers_in_range_and_near(seed, size, rows):
    """Every result is an integer of the range; where the range does not bind, it moves by few steps only."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(-140, 140, (rows, size))
    result = compensated_round(weight, moments_of(rng, size), 400, -128, 127)
    assert np.array_equal(result, np.round(result))
    assert result.min() >= -128
    assert result.max() <= 127


def test_correlated_inputs_gain():
    """On strongly correlated inputs the output error drops well below that of rounding to nearest."""
    rng = np.random.default_rng(3)
    moments = moments_of(rng, 32)
    weight = rng.uniform(-20, 20, (16, 32))
    nearest = np.floor(weight + 0.5)
    better = compensated_round(weight, moments, 4000, -128, 127)
    assert output_error(better - weight, moments) < 0.5 * output_error(nearest - weight, moments)


def test_uncorrelated_inputs_round_to_nearest():
    """With nothing to compensate with, it is rounding half up."""
    weight = np.array([[0.5, -0.5, 1.4, 2.6, -3.5]])
    result = compensated_round(weight, np.eye(5), 10**9, -128, 127)
    assert result.tolist() == [[1.0, 0.0, 1.0, 3.0, -3.0]]


def test_close_to_the_best_of_all_roundings():
    """On a case small enough to try all combinations it is within a factor two of the best of them."""
    rng = np.random.default_rng(5)
    moments = moments_of(rng, 8)
    weight = rng.uniform(-9, 9, (1, 8))
    result = compensated_round(weight, moments, 10**6, -128, 127)
    corners = (np.floor(weight[0]) + np.array(up) for up in itertools.product((0, 1), repeat=8))
    best = min(output_error(corner[None] - weight, moments) for corner in corners)
    assert output_error(result - weight, moments) <= 2 * best


@pytest.mark.parametrize("moments", [np.zeros((4, 4)), np.ones((4, 4))])
def test_degenerate_moments(moments):
    """Dead or identical inputs give integers, no exception."""
    result = compensated_round(np.array([[0.4, 0.4, 0.4, 0.4]]), moments, 100, -128, 127)
    assert np.isfinite(result).all()
    assert np.array_equal(result, np.round(result))
