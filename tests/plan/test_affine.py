"""How a tensor is held: laws against plain Python, one element at a time."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.errors import ConfigError
from lingeronnx.ir.plan import Affine, PerAxis, PerGroup, PerTensor, Plan, Rounding
from tests.case_selection import limit_examples

SHAPE = (4, 6, 3)


@st.composite
def held(draw):
    """Return an Affine for an array of SHAPE, of any granularity."""
    kind = draw(
        st.sampled_from((PerTensor(), PerAxis(0), PerAxis(-1), PerGroup(1, 2), PerGroup(0, 4)))
    )
    shape = {PerTensor: ()}.get(type(kind))
    if isinstance(kind, PerAxis):
        shape = (SHAPE[kind.axis],)
    elif isinstance(kind, PerGroup):
        shape = tuple(n // kind.size if i == kind.axis else n for i, n in enumerate(SHAPE))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    bits, signed = draw(st.sampled_from((4, 8, 16))), draw(st.booleans())
    low = -(1 << (bits - 1)) if signed else 0
    zeros = rng.integers(low, low + (1 << bits), shape)
    return Affine(
        2.0 ** rng.uniform(-2, 6, shape), bits, kind, zeros, signed, draw(st.sampled_from(Rounding))
    )


def at(q, values, index):
    """Return the entry of `values`, an array like the scales, for the element of the tensor at
    `index`.
    """
    if isinstance(q.granularity, PerTensor):
        return values.item()
    axis = q.granularity.axis
    if isinstance(q.granularity, PerAxis):
        return values[index[axis]].item()
    return values[
        tuple(k // q.granularity.size if i == axis else k for i, k in enumerate(index))
    ].item()


def rounded(value, rounding):
    """Round a Fraction."""
    whole = math.floor(value)
    if value - whole == Fraction(1, 2) and rounding is Rounding.HALF_EVEN:
        return whole + whole % 2
    return math.floor(value + Fraction(1, 2))


@limit_examples(60)
@given(q=held(), seed=st.integers(0, 10**6))
def test_integers_and_reals_element_by_element(q, seed):
    """Law: every element follows the formula with the scale and zero point of its place."""
    array = np.random.default_rng(seed).normal(0, 20, SHAPE).astype(np.float32)
    integers = q.integers(array)
    real = q.real(integers)
    assert integers.dtype == q.dtype
    for index in np.ndindex(SHAPE):
        scale, zero = at(q, q.scales, index), at(q, q.zero_points, index)
        want = rounded(Fraction(float(array[index]) * scale), q.rounding) + zero
        want = min(max(want, q.low), q.high)
        assert integers[index] == want
        assert real[index] == (want - zero) / scale


@limit_examples(60)
@given(q=held(), seed=st.integers(0, 10**6))
def test_what_is_held_comes_back(q, seed):
    """Law: reals on the grid become their integers again, also when rounded in float."""
    integers = np.random.default_rng(seed).integers(q.low, q.high + 1, SHAPE).astype(q.dtype)
    real = q.real(integers)
    assert np.array_equal(q.integers(real), integers)
    np.testing.assert_allclose(q.on_grid(real), real, rtol=1e-12)
    low, high = q.ends
    assert low <= real.min()
    assert real.max() <= high


@limit_examples(60)
@given(q=held())
def test_it_is_a_value(q):
    """Law: equal to its copies, to what was pickled and to what the plan's JSON brings back; its
    arrays are fixed.
    """
    for other in (
        copy.copy(q),
        copy.deepcopy(q),
        pickle.loads(pickle.dumps(q)),
        q.changed(q.scales),
    ):
        assert other == q
        assert hash(other) == hash(q)
    assert q != q.mapped(lambda scale: scale * 2)
    assert q != q.changed(bits=q.bits + 1)
    with pytest.raises(ValueError, match="read-only"):
        q.scales[...] = 1.0
    kept = Affine(q.scales, q.bits, q.granularity)
    assert Plan.from_json(Plan("generic", "max-value", tensors={"x": kept}).to_json()).tensors == {
        "x": kept
    }


def test_one_scale_is_a_number_and_several_are_not():
    assert Affine(64.0).scale == 64.0
    assert Affine(64.0).exponent == 6
    assert Affine(64.0, zero_point=3).text == "2^6 from 3"
    several = Affine((2.0, 3.0), 8, PerAxis(1))
    assert not several.power_of_two
    assert several.coarsest == Affine(2.0)
    for what in ("scale", "zero_point"):
        with pytest.raises(ValueError, match="2 PerAxis"):
            getattr(several, what)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (((1.0, 2.0),), "one scale per tensor"),
        ((1.0, 8, PerAxis(0)), "at least two along an axis"),
        (((1.0,), 8, PerAxis(0)), "at least two along an axis"),
        ((1.0, 8, PerTensor(), 128), "zero point 128 is out of range for 8 bits"),
        ((1.0, 8, PerTensor(), -1, False), "zero point -1 is out of range for 8 bits"),
    ),
)
def test_what_is_no_holding(arguments, message):
    with pytest.raises(ValueError, match=message):
        Affine(*arguments)


@pytest.mark.parametrize(
    ("entry", "message"),
    (
        ('{"scale": [1, 2], "bits": 8}', "2 scales along axis None"),
        (
            '{"scale": [[1, 2]], "bits": 4, "axis": 2, "group_size": 32}',
            "groups of 32 along axis 2, and scales of 2 axes",
        ),
        ('{"scale": [[1, 2]], "bits": 4, "axis": 1, "group_size": 0}', "groups of 0 along axis 1"),
        (
            '{"scale": [[1, -2]], "bits": 4, "axis": 1, "group_size": 4}',
            "scales must be positive numbers",
        ),
        (
            '{"scale": [[1, 2], [3]], "bits": 4, "axis": 1, "group_size": 4}',
            "is not a lingeronnx plan",
        ),
    ),
)
def test_plans_that_hold_nothing(entry, message):
    text = (
        '{"lingeronnx_plan": 2, "platform": "generic", "mode": "max-value", "tensors": {"x": '
        + entry
        + "}}"
    )
    with pytest.raises(ConfigError, match=message):
        Plan.from_json(text)
