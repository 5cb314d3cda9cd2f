"""Counting in bins: against plain Python, at the ends of bins and of the range."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.bins import count
from tests.examples import examples


@examples(40)
@given(st.lists(st.floats(-7.96875, 7.96875, width=32), min_size=1, max_size=40), st.integers(-3, 3))
def test_as_in_plain_python(numbers, exponent):
    """Each number is in the bin that begins at or below it."""
    x = np.array(numbers, np.float32)
    bins = np.zeros(256, np.int64)
    squares = count(x, 2.0**exponent, bins)
    want = [0] * 256
    for number in x.tolist():
        want[128 + math.floor(number * 2.0**exponent)] += 1
    assert bins.tolist() == want
    assert squares == pytest.approx(math.fsum(number * number for number in x.tolist()), rel=1e-14)


@pytest.mark.parametrize("kind", (np.float32, np.float64))
def test_many_numbers_and_counts_that_are_there(kind):
    x = np.arange(-4096, 4096).astype(kind)
    bins = np.ones(8192, np.int64)
    assert count(x, 1.0, bins) == math.fsum(i * i for i in range(-4096, 4096))
    assert (bins == 2).all()


def test_the_smallest_numbers():
    """A number far below the width of a bin is in the bin on its own side of zero."""
    bins = np.zeros(4, np.int64)
    count(np.array([-1e-45, 0.0, 1e-45], np.float32), 2.0**-100, bins)
    assert bins.tolist() == [0, 1, 2, 0]
