"""Pooling against its oracles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import AvgPool, MaxPool, luna_average
from simulator.program import SimulatorError
from tests.case_selection import choose_fast_subset
from tests.oracles import pool as naive
from tests.simulator.helpers import SEEDS, integers, more, rescales, run, same, triple


@st.composite
def windows(draw):
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = draw(st.tuples(*[st.integers(0, kernel[axis % 2] - 1) for axis in range(4)]))
    return kernel, strides, pads, draw(st.booleans())


@more
@given(
    SEEDS,
    windows(),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from([np.int8, np.int16]),
    st.booleans(),
)
def test_max_pool(seed, window, dilations, dtype, extremes):
    kernel, strides, pads, ceil_mode = window
    x = integers(np.random.default_rng(seed), (2, 3, 7, 8), dtype, extremes)
    same(
        run(MaxPool(kernel, strides, pads, ceil_mode, dilations), x),
        naive.max_pool(x, kernel, strides, pads, ceil_mode, dilations),
        dtype,
    )


@more
@given(
    SEEDS,
    windows(),
    rescales(shifts=(-2, 6), bits=choose_fast_subset(1, (8, 16))),
    st.sampled_from(choose_fast_subset(2, [np.int8, np.int16, np.int32])),
)
def test_average(seed, window, rescale, dtype):
    kernel, strides, pads, ceil_mode = window
    x = integers(np.random.default_rng(seed), (2, 3, 6, 5), dtype)
    got = run(AvgPool(kernel, strides, pads, rescale, ceil_mode), x)
    same(got, naive.average(x, triple(rescale), kernel, strides, pads, ceil_mode), rescale.dtype)


@pytest.mark.parametrize("kind", ["venus", "arcs"])
@pytest.mark.parametrize(
    "kernel", [(1, 1), (2, 2), (4, 4), (8, 16), (3, 3), (2, 3), (5, 2), (7, 7), (10, 16), (12, 12)]
)
@pytest.mark.parametrize("q_o", [3, 4, 6])
def test_average_of_the_npu(kind, kernel, q_o):
    area = kernel[0] * kernel[1]
    x = integers(np.random.default_rng(area), (1, 2, 16, 17))
    rule = luna_average(kind, area, 4, q_o)
    got = run(AvgPool(kernel, (2, 3), (0, 0, 0, 0), rule), x)
    same(got, naive.luna_average(x, kind, 4, q_o, kernel, (2, 3), (0, 0, 0, 0)), np.int8)


def test_one_dimensional_pools():
    x = integers(np.random.default_rng(0), (2, 3, 9))
    wide = x[:, :, None]
    same(
        run(MaxPool((3,), (2,), (1, 0)), x),
        naive.max_pool(wide, (1, 3), (1, 2), (0, 1, 0, 0))[:, :, 0],
        np.int8,
    )
    rescale = Rescale.from_shift(1, 8)
    want = naive.average(wide, triple(rescale), (1, 3), (1, 2), (0, 1, 0, 0))[:, :, 0]
    same(run(AvgPool((3,), (2,), (1, 0), rescale), x), want, np.int8)


def test_padding_of_max_pool_is_the_most_negative_integer():
    x = np.full((1, 1, 2, 2), -128, np.int8)
    assert run(MaxPool((2, 2), (2, 2), (1, 1, 1, 1)), x).tolist() == [
        [[[-128, -128], [-128, -128]]]
    ]


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 4, 5, 6), (1, 3, 1, 1)])
def test_what_does_not_fit_is_named(shape):
    with pytest.raises(SimulatorError, match="Pool"):
        run(MaxPool((2, 2), (1, 1), (0, 0, 0, 0)), np.zeros(shape, np.int8))
