"""Which power of two stands for a scale."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.ir.plan.power_of_two import floor_exponent, floor_power_of_two, nearest_power_of_two
from tests.case_selection import limit_examples

POSITIVE = st.floats(min_value=2.0**-60, max_value=2.0**60)


@limit_examples(40)
@given(POSITIVE)
def test_it_is_the_largest_that_is_not_above(most):
    assert floor_power_of_two(most) <= most < 2 * floor_power_of_two(most)
    assert floor_power_of_two(most) == 2.0 ** floor_exponent(most)


@limit_examples(40)
@given(POSITIVE)
def test_the_nearest_is_at_most_half_an_octave_away(scale):
    assert abs(math.log2(nearest_power_of_two(scale) / scale)) <= 0.5 + 1e-12


@pytest.mark.parametrize("exponent", (-12, -3, 0, 7, 16))
def test_a_power_is_itself_also_where_a_file_has_it_in_few_digits(exponent):
    exact = 2.0**exponent
    assert floor_power_of_two(exact) == nearest_power_of_two(exact) == exact
    short = float(f"{exact:.7g}") * (1 - 1e-7)
    assert floor_power_of_two(short, imported=True) == exact
    assert floor_power_of_two(short) == exact / 2


@pytest.mark.parametrize("exponent", (20, 49, 53, 60))
def test_just_below_a_power_is_below_it(exponent):
    """A logarithm would be rounded up to the whole number."""
    assert floor_exponent(math.nextafter(2.0**exponent, 0)) == exponent - 1
    assert floor_exponent(2.0**exponent) == exponent
