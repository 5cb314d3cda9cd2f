"""The range of a tensor over several calls, and how far a float is from the one it should be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lingeronnx.deployment.dumps import absolute_difference, max_magnitude

CALLS = st.lists(
    arrays.arrays(np.float32, st.integers(0, 5), elements=st.floats(width=32)), max_size=4
)


@given(CALLS)
def test_a_range_is_the_largest_finite_magnitude_of_all_calls(calls):
    numbers = [abs(float(value)) for call in calls for value in call if np.isfinite(value)]
    assert max_magnitude(calls) == max(numbers, default=0.0)


def test_a_gap_counts_numbers_only():
    """Infinities and no-numbers are equal to themselves and infinitely far from anything else."""
    want = np.float32([1.0, 2.0, np.nan, np.inf, np.inf, np.nan, 5.0])
    have = np.float32([1.5, 2.0, np.nan, np.inf, -np.inf, 7.0, np.nan])
    assert absolute_difference(have, want).tolist() == [0.5, 0.0, 0.0, 0.0, np.inf, np.inf, np.inf]
