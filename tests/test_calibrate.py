"""Calibrators: the scale that holds a tensor best."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lingeronnx.calibrate import best_scale, full_range_scale
from lingeronnx.observe import TensorStats

few = settings(max_examples=80, deadline=None, derandomize=True)
KINDS = ("max", "mse")


def stats(*values):
    return TensorStats.of(np.array(values, np.float32))


def error(array, scale, bits=8):
    """Return the mean squared error of the raw array."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    held = np.clip(np.floor(array.astype(np.float64) * scale + 0.5), low, high) / scale
    return np.mean((held - array) ** 2)


@pytest.mark.parametrize("calibrator", KINDS)
@pytest.mark.parametrize(
    "values, exponent",
    (
        (np.arange(-128, 128) / 128, 7),
        (np.arange(256), -1),
        (np.arange(128), 0),
        (np.arange(-128, 128), 0),
        (np.arange(0, 128) / 64, 6),
        (-np.arange(129), 0),
    ),
)
def test_full_ranges(values, exponent, calibrator):
    """A range that fits a power of two exactly gets it: [-1, 127/128] 2^7, 0..255 2^-1, 0..127 2^0."""
    seen = TensorStats.of(values.astype(np.float32))
    assert best_scale(seen, 8, power=True, calibrator=calibrator) == 2.0**exponent


@pytest.mark.parametrize("bits", (4, 8, 16))
@pytest.mark.parametrize("calibrator", KINDS)
@pytest.mark.parametrize("power", (True, False))
def test_all_zero(calibrator, power, bits):
    """A tensor of zeros gets 2^(bits-1), whatever is asked."""
    assert best_scale(stats(0, 0, 0), bits, power=power, calibrator=calibrator) == 2.0 ** (bits - 1)


@pytest.mark.parametrize("bits", (4, 8, 16))
def test_max_value_formula(bits):
    """MaxValue: scale = (2^(b-1)-1) / max|x|, from either side of the range."""
    top = 2 ** (bits - 1) - 1
    assert best_scale(stats(-0.3, 1.7), bits, power=False, calibrator="max") == pytest.approx(top / np.float32(1.7))
    assert best_scale(stats(-2.5, 1.7), bits, power=False, calibrator="max") == pytest.approx(top / 2.5)


@pytest.mark.parametrize("power", (True, False))
def test_single_outlier(power):
    """One far value: mse cuts it and has the smaller error, max keeps it."""
    array = np.concatenate([np.random.default_rng(0).uniform(-1, 1, 200_000), [4.0]]).astype(np.float32)
    seen = TensorStats.of(array)
    found = {kind: best_scale(seen, 8, power=power, calibrator=kind) for kind in KINDS}
    assert found["max"] * array.max() <= 128
    assert found["mse"] > found["max"]
    assert error(array, found["mse"]) < 0.7 * error(array, found["max"])


@few
@given(st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_full_range_holds_everything(values):
    """At the full-range scale no value is off by more than half a step; at a larger one some value is."""
    array = np.array(values, np.float32)
    if np.abs(array).max() < 1e-6:
        return
    scale = full_range_scale(TensorStats.of(array), 8)
    reals = array.astype(np.float64) * scale
    assert reals.max() <= 127.5 * (1 + 1e-12)
    assert reals.min() >= -128.5 * (1 + 1e-12)
    assert reals.max() >= 127.5 * (1 - 1e-12) or reals.min() <= -128.5 * (1 - 1e-12)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.4, 1.0, 77.0]), st.sampled_from([4, 8]))
def test_power_of_two_is_the_best(seed, size, bits):
    """Among the powers of two, mse is the brute-force minimum (or within 2 % of it: bins, not values, are counted)."""
    array = (np.random.default_rng(seed).standard_normal(3000) * size).astype(np.float32)
    scale = best_scale(TensorStats.of(array), bits, power=True, calibrator="mse")
    assert np.frexp(scale)[0] == 0.5
    best = min(error(array, 2.0**e, bits) for e in range(-10, 24))
    assert error(array, scale, bits) <= 1.02 * best


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]))
def test_free_scale_is_no_worse(seed, bits):
    """A free scale is at least as good as the best power of two, to a few percent of its grid."""
    array = np.random.default_rng(seed).laplace(size=3000).astype(np.float32)
    free = best_scale(TensorStats.of(array), bits, power=False, calibrator="mse")
    bound = best_scale(TensorStats.of(array), bits, power=True, calibrator="mse")
    assert error(array, free, bits) <= 1.03 * error(array, bound, bits)


@pytest.mark.parametrize("calibrator", KINDS)
def test_scaling_the_tensor_by_a_power_of_two(calibrator):
    """Law: twice the tensor, half the scale."""
    seen = TensorStats.of(np.random.default_rng(3).standard_normal(5000).astype(np.float32))
    scale = best_scale(seen, 8, power=True, calibrator=calibrator)
    assert best_scale(seen.scaled(4.0), 8, power=True, calibrator=calibrator) == scale / 4


def test_max_takes_the_whole_range():
    """Q-value with max: the largest power of two that holds the range, to half a step."""
    for top, exponent in ((127.4, 0), (127.6, -1), (1.0, 6), (0.99, 7), (0.9, 7)):
        assert best_scale(stats(0, top), 8, power=True, calibrator="max") == 2.0**exponent
