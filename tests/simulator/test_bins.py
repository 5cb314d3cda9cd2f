"""Counting in bins: against plain Python, at the ends of bins and of the range."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from simulator.histogram import (
    accumulate_histogram,
    channel_statistics,
    compute_quantization_errors,
)
from tests.case_selection import limit_examples


@limit_examples(40)
@given(
    st.lists(st.floats(-7.96875, 7.96875, width=32), min_size=1, max_size=40), st.integers(-3, 3)
)
def test_as_in_plain_python(numbers, exponent):
    """Each number is in the bin that begins at or below it."""
    x = np.array(numbers, np.float32)
    bins = np.zeros(256, np.int64)
    squares = accumulate_histogram(x, 2.0**exponent, bins)
    want = [0] * 256
    for number in x.tolist():
        want[128 + math.floor(number * 2.0**exponent)] += 1
    assert bins.tolist() == want
    assert squares == pytest.approx(math.fsum(number * number for number in x.tolist()), rel=1e-14)


@pytest.mark.parametrize("kind", (np.float32, np.float64))
@pytest.mark.parametrize("shape", ((2, 3), (1, 3, 5), (2, 3, 700)))
def test_times_the_factor_of_the_channel(kind, shape):
    """A number is counted as what it is times its channel's factor, rounded to the array's own
    type.
    """
    rng = np.random.default_rng(0)
    x, factors = rng.uniform(-3, 3, shape).astype(kind), np.array([0.3, 1.0, 1 / 0.7])
    bins = np.zeros(4096, np.int64)
    squares = accumulate_histogram(x, 256.0, bins, factors)
    want, total = [0] * 4096, []
    for n in range(shape[0]):
        for c in range(3):
            for number in x[n, c].reshape(-1).tolist():
                held = kind(number * float(factors[c])).item()
                want[2048 + math.floor(held * 256.0)] += 1
                total.append(held * held)
    assert bins.tolist() == want
    assert squares == pytest.approx(math.fsum(total), rel=1e-13)


@pytest.mark.parametrize("kind", (np.float32, np.float64))
def test_many_numbers_and_counts_that_are_there(kind):
    x = np.arange(-4096, 4096).astype(kind)
    bins = np.ones(8192, np.int64)
    assert accumulate_histogram(x, 1.0, bins) == math.fsum(i * i for i in range(-4096, 4096))
    assert (bins == 2).all()


def test_the_smallest_numbers():
    """A number far below the width of a bin is in the bin on its own side of zero."""
    bins = np.zeros(4, np.int64)
    accumulate_histogram(np.array([-1e-45, 0.0, 1e-45], np.float32), 2.0**-100, bins)
    assert bins.tolist() == [0, 1, 2, 0]


@limit_examples(40)
@given(
    hnp.arrays(
        np.float32, st.tuples(*[st.integers(1, 9)] * 3), elements=st.floats(-1e4, 1e4, width=32)
    )
)
def test_channels_as_in_plain_python(x):
    """The largest magnitude is exact, the sum of squares to the last bits."""
    largest, squares = channel_statistics(x)
    for c in range(x.shape[1]):
        numbers = x[:, c].reshape(-1).tolist()
        assert largest[c] == max(map(abs, numbers))
        assert squares[c] == pytest.approx(
            math.fsum(number * number for number in numbers), rel=1e-12
        )


def test_long_channels_in_any_memory_order():
    """Of more numbers than are summed at a time; an array that lies otherwise in memory is the same
    array.
    """
    x = np.arange(-6000, 6008, dtype=np.float32).reshape(2, 2, 1501, 2)
    for array in (x, np.asfortranarray(x)):
        largest, squares = channel_statistics(array)
        assert largest.tolist() == [6000.0, 6007.0]
        for c in range(2):
            assert squares[c] == math.fsum(v * v for v in x[:, c].reshape(-1).tolist())


def test_a_channel_with_nan_has_nan():
    """The others have not."""
    x = np.ones((2, 3, 2), np.float32)
    x[1, 1, 0] = np.nan
    largest, squares = channel_statistics(x)
    assert np.isnan(largest).tolist() == np.isnan(squares).tolist() == [False, True, False]


@pytest.mark.parametrize("length", (1, 63, 64, 130, 4096, 4161))
def test_rows_of_any_length(length):
    """Short rows, whole vectors, whole blocks, and what is left of each."""
    x = np.random.default_rng(length).integers(-50, 51, (2, 3, length)).astype(np.float32)
    whole = x.astype(np.int64)
    largest, squares = channel_statistics(x)
    assert largest.tolist() == np.abs(whole).max(axis=(0, 2)).tolist()
    assert squares.tolist() == (whole * whole).sum(axis=(0, 2)).tolist()
    bins = np.zeros(128, np.int64)
    assert accumulate_histogram(x, 1.0, bins) == (whole * whole).sum()
    assert bins.tolist() == [np.count_nonzero(whole == k - 64) for k in range(128)]


@limit_examples(40)
@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=130),
    scales=st.lists(st.floats(2.0**-10, 2.0**10), min_size=1, max_size=5),
    bounds=st.tuples(st.integers(-300, 0), st.integers(1, 300)),
)
def test_errors_of_scales_are_those_of_each_value(values, scales, bounds):
    """Law: what Python computes value by value, whatever the number of values."""
    weights = np.arange(len(values)) % 7.0
    low, high = (np.full(len(scales), float(bound)) for bound in bounds)
    errors = compute_quantization_errors(np.array(values), weights, np.array(scales), low, high)
    for scale, error in zip(scales, errors, strict=True):
        counts = [min(max(math.floor(v * scale + 0.5), bounds[0]), bounds[1]) for v in values]
        terms = [w * (c / scale - v) ** 2 for w, c, v in zip(weights, counts, values, strict=True)]
        assert error == pytest.approx(math.fsum(terms), rel=1e-12, abs=1e-300)
