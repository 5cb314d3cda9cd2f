"""Half a step added to a sum: the bound, from both sides, and float32 as it adds and rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.interchange.qdq.exact.tie_offsets import IntegerSum, tie_offset_for_sum
from lingeronnx.operators.exact_nodes import NotExactError
from simulator.fixed_point import Rescale
from tests.case_selection import limit_examples


def to_even(total, shift, half):
    """What QuantizeLinear makes of float32 (total + half) / 2^shift, as float32 adds and rounds;
    int8.
    """
    real = np.float32(np.float32(total) + np.float32(half)) / np.float32(2.0**shift)
    return np.clip(np.rint(real), -128, 127)


def half_up(total, shift):
    return np.clip((total + (1 << shift >> 1)) >> shift, -128, 127)


@limit_examples(30)
@given(st.integers(0, 16), st.integers(-130, 130), st.integers(-3, 3), st.booleans())
def test_half_a_step_makes_ties_go_up(shift, count, near, tie):
    """Law: around every tie, and around every whole number, the amount gives the chip's integer and
    no other.
    """
    total = (count << shift) + (1 << shift >> 1 if tie else 0) + near
    amount = tie_offset_for_sum(
        IntegerSum(1 << 22, 1.0), Rescale.from_shift(shift, 8), 2.0**-shift, 8
    )
    assert amount.value == (0.5 if shift else 0.0)
    assert to_even(total, shift, amount.value) == half_up(total, shift)


def test_the_largest_sums_saturate():
    """Beyond 2^23 half a step has no room any more, and at shifts up to 16 none is needed."""
    totals = np.concatenate(
        [np.arange((1 << 24) - 5000, 1 << 24), np.arange((1 << 23) - 40000, (1 << 23) + 40000)]
    )
    for total in (totals, -totals):
        for shift in (14, 15, 16):
            assert np.array_equal(to_even(total, shift, 0.5), half_up(total, shift))


def test_what_has_no_amount():
    """Both limits, from both sides; at a shift of 17 half a step is lost in a sum that decides."""
    assert (
        tie_offset_for_sum(
            IntegerSum((1 << 24) - 1, 1.0), Rescale.from_shift(16, 8), 2.0**-16, 8
        ).value
        == 0.5
    )
    with pytest.raises(NotExactError, match="float32 is exact up to 16777216"):
        tie_offset_for_sum(IntegerSum(1 << 24, 1.0), Rescale.from_shift(15, 8), 2.0**-15, 8)
    with pytest.raises(NotExactError, match="its shift is 17"):
        tie_offset_for_sum(IntegerSum(1 << 23, 1.0), Rescale.from_shift(17, 8), 2.0**-17, 8)
    assert (to_even(253 << 16, 17, 0.5), half_up(253 << 16, 17)) == (126, 127)
    with pytest.raises(NotExactError, match="not a power of two"):
        tie_offset_for_sum(IntegerSum(100, 3.0), Rescale.from_ratio(1 / 3, 8), 1.0, 8)
    with pytest.raises(NotExactError, match="does not match its scales"):
        tie_offset_for_sum(IntegerSum(100, 8.0), Rescale.from_shift(2, 8), 1.0, 8)
