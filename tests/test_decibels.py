"""Decibels against the formula, element by element, and at the floors."""

import math

import numpy as np
import pytest

from lingeronnx.common.arithmetic import compute_sqnr_db, convert_to_db, ratio_db


@pytest.mark.parametrize("floor", [1e-300, 1e-30, 1e-10])
def test_arrays_against_a_loop(floor):
    rng = np.random.default_rng(1)
    signal, noise = rng.exponential(size=(2, 50))
    noise[:5] = 0
    signal[3:8] = 0
    expected = [
        10 * math.log10(max(s, floor) / max(n, floor)) for s, n in zip(signal, noise, strict=True)
    ]
    np.testing.assert_allclose(compute_sqnr_db(signal, noise, floor), expected, rtol=1e-13)
    expected = [10 * math.log10(max(s, floor)) for s in signal]
    np.testing.assert_allclose(convert_to_db(signal, floor), expected, rtol=1e-13)


def test_floor_by_row():
    floors = np.array([[1.0], [0.1]])
    np.testing.assert_allclose(convert_to_db(np.zeros((2, 3)), floors), [[0.0] * 3, [-10.0] * 3])


def test_scalar_of_numpy_values_is_a_float():
    assert type(ratio_db(np.float64(4.0), np.float64(2.0))) is float
