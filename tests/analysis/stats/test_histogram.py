"""Histograms: every value is counted once, and nothing is lost when one is written down and
read.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.analysis.stats.histogram import Histogram
from tests.case_selection import limit_examples


@limit_examples(40)
@given(st.integers(1, 20000), st.sampled_from([64, 2048]), st.integers(0, 9))
def test_histograms_hold_every_value_once(count, number, seed):
    """Law: every value is in the bin it belongs to, or where that bin begins or ends in a neighbour
    of it.
    """
    x = np.random.default_rng(seed).gamma(2.0, size=count) - 1
    histogram = Histogram()
    for part in np.array_split(x, 7):
        histogram.add(part)
    low, high = float(x.min()), float(x.max())
    have, want = (
        histogram.bins(low, high, number),
        np.histogram(x, number, (low, high) if high > low else None)[0],
    )
    assert have.sum() == count
    if count <= 4096:
        assert np.array_equal(have, want)
        assert histogram.quantile(0.99) == np.quantile(x, 0.99)
        return
    assert np.abs(np.cumsum(have) - np.cumsum(want)).max() <= want.max()
    share = np.mean(x <= histogram.quantile(0.99))
    assert abs(share - 0.99) < 1e-3


@limit_examples(20)
@given(st.integers(1, 20000), st.integers(0, 9))
def test_values_stand_for_all_that_was_seen(count, seed):
    """Law: as many as were added, each within half a bin, so that their sum is that of the values
    but for that.
    """
    x = np.random.default_rng(seed).gamma(2.0, size=count) - 1
    histogram = Histogram()
    histogram.add(x)
    values, counts = histogram.values()
    assert counts.sum() == count
    if count <= 4096:
        assert np.array_equal(np.sort(values), np.sort(x))
    bin_width = 2.0 ** np.ceil(np.log2(max(np.ptp(x), 1e-9) / 8192) + 1)
    assert abs((values * counts).sum() - x.sum()) <= count * bin_width
