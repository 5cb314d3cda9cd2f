"""Which power of two stands for a scale."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.plan.power_of_two import exponent_below, power_below, power_near
from tests.examples import examples

POSITIVE = st.floats(min_value=2.0**-60, max_value=2.0**60)


@examples(40)
@given(POSITIVE)
def test_it_is_the_largest_that_is_not_above(most):
    assert power_below(most) <= most < 2 * power_below(most)
    assert power_below(most) == 2.0 ** exponent_below(most)


@examples(40)
@given(POSITIVE)
def test_the_nearest_is_at_most_half_an_octave_away(scale):
    assert abs(math.log2(power_near(scale) / scale)) <= 0.5 + 1e-12


@pytest.mark.parametrize("exponent", (-12, -3, 0, 7, 16))
def test_a_power_is_itself_also_where_a_file_has_it_in_few_digits(exponent):
    exact = 2.0**exponent
    assert power_below(exact) == power_near(exact) == exact
    short = float(f"{exact:.7g}") * (1 - 1e-7)
    assert power_below(short, imported=True) == exact
    assert power_below(short) == exact / 2


@pytest.mark.parametrize("exponent", (20, 49, 53, 60))
def test_just_below_a_power_is_below_it(exponent):
    """A logarithm would be rounded up to the whole number."""
    assert exponent_below(math.nextafter(2.0**exponent, 0)) == exponent - 1
    assert exponent_below(2.0**exponent) == exponent
