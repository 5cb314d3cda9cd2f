"""Layers with a requantization for each output channel against their oracles, on both paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.channel_rescale import ChannelRescale
from simulator.fixed_point import Rescale
from simulator.kernels import Conv, ConvTranspose, Linear
from simulator.kernels.loops._common import max_magnitude
from simulator.program import SimulatorError
from tests.case_selection import choose_fast_subset
from tests.oracles import conv as naive
from tests.oracles.fixed import rescale as naive_rescale
from tests.simulator.helpers import SEEDS, few, integers, run, same, simd, triple

PATHS = pytest.mark.parametrize("fast", [False, True], ids=["loops", "simd"])

#: Leaves every accumulator as it is: M / 2^s = 1, and 62 bits hold it.
WHOLE = (1 << 30, 30, 62)


@st.composite
def channels(draw, count, shifts=(-2, 60)):
    """Draw a requantization for each of `count` channels, far apart, powers of two and others, of
    one width.
    """
    bits = draw(st.sampled_from(choose_fast_subset(3, [4, 8, 8, 16, 32])))
    ratios = st.one_of(
        st.integers(*shifts).map(lambda shift: 2.0**-shift),
        st.tuples(st.floats(0.5, 2.0, exclude_max=True), st.integers(*shifts)).map(
            lambda pair: pair[0] * 2.0 ** -pair[1]
        ),
    )
    return ChannelRescale(tuple(Rescale.from_ratio(draw(ratios), bits) for _ in range(count)))


def expected(acc, rescale, axis):
    """Requantize exact accumulators channel by channel, in Python's integers."""
    out = np.empty(acc.shape, object)
    for place in np.ndindex(*acc.shape):
        out[place] = naive_rescale(acc[place], triple(rescale.rescales[place[axis]]))
    return out


KINDS = st.sampled_from(
    choose_fast_subset(
        3, [(np.int8, np.int8), (np.int8, np.int8), (np.int16, np.int8), (np.int16, np.int16)]
    )
)


@pytest.mark.sweep
@PATHS
@pytest.mark.parametrize(("group", "own", "each"), [(1, 5, 18), (3, 2, 3), (20, 1, 1), (4, 1, 2)])
def test_conv(fast, group, own, each):
    @few
    @given(st.data(), SEEDS, KINDS, st.booleans())
    def check(data, seed, kinds, extremes):
        rng = np.random.default_rng(seed)
        x = integers(rng, (2, group * own, 5, 4), kinds[0], extremes)
        weight = integers(rng, (group * each, own, 3, 2), kinds[1], extremes)
        bias = integers(rng, (group * each,), np.int32) >> data.draw(st.sampled_from([0, 12, 20]))
        rescale = data.draw(channels(group * each))
        sizes = (2, 1), (1, 0, 1, 2), (1, 2), group
        with simd(fast):
            got = run(Conv(weight, bias, rescale, *sizes), x)
        same(got, expected(naive.conv(x, weight, bias, WHOLE, *sizes), rescale, 1), rescale.dtype)

    check()


@PATHS
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(fast, group):
    @few
    @given(st.data(), SEEDS, KINDS)
    def check(data, seed, kinds):
        rng = np.random.default_rng(seed)
        x, weight = integers(rng, (1, 4, 3, 4), kinds[0]), integers(rng, (4, 3, 3, 2), kinds[1])
        bias, rescale = integers(rng, (3 * group,), np.int16), data.draw(channels(3 * group))
        sizes = (2, 1), (1, 0, 0, 1), (1, 1), (1, 0), group
        with simd(fast):
            got = run(ConvTranspose(weight, bias, rescale, *sizes), x)
        same(
            got,
            expected(naive.conv_transpose(x, weight, bias, WHOLE, *sizes), rescale, 1),
            rescale.dtype,
        )

    check()


@PATHS
def test_linear(fast):
    @few
    @given(st.data(), SEEDS, KINDS, st.sampled_from([1, 7, 70]))
    def check(data, seed, kinds, rows):
        rng = np.random.default_rng(seed)
        x, weight = integers(rng, (rows, 2, 9), kinds[0]), integers(rng, (6, 9), kinds[1])
        bias, rescale = integers(rng, (6,), np.int32) >> 8, data.draw(channels(6))
        with simd(fast):
            got = run(Linear(weight, bias, rescale), x)
        same(got, expected(naive.linear(x, weight, bias, WHOLE), rescale, -1), rescale.dtype)

    check()


def test_products_of_more_than_64_bits():
    """int16 by int16 with 32-bit results: the product of some channels needs two halves, of others
    it does not.
    """
    rng = np.random.default_rng(3)
    x, weight = (
        integers(rng, (1, 64, 2, 2), np.int16, True),
        integers(rng, (4, 64, 1, 1), np.int16, True),
    )
    rescale = ChannelRescale(
        tuple(Rescale.from_ratio(ratio, 32) for ratio in (0.9, 1e-3, 0.3, 1e-12))
    )
    bound = 64 * max_magnitude(np.dtype(np.int16)) ** 2
    wide = rescale.compile_for_bound(bound).wide
    assert set(wide) == {0, 1}
    sizes = (1, 1), (0, 0, 0, 0), (1, 1), 1
    got = run(Conv(weight, None, rescale, *sizes), x)
    same(got, expected(naive.conv(x, weight, None, WHOLE, *sizes), rescale, 1), np.int32)


def test_a_relu_behind():
    """The bounds of a Relu are taken over."""
    rng = np.random.default_rng(4)
    x, weight = integers(rng, (1, 3, 4, 4)), integers(rng, (5, 3, 1, 1))
    rescale = ChannelRescale(tuple(Rescale.from_ratio(0.01 * (c + 1), 8) for c in range(5)))
    got = run(Conv(weight, None, rescale, clip_bounds=(0, 100)), x)
    want = expected(naive.conv(x, weight, None, WHOLE, (1, 1), (0, 0, 0, 0), (1, 1), 1), rescale, 1)
    same(got, np.clip(want, 0, 100), np.int8)


def test_what_does_not_fit():
    """One ratio for each output, all of one width."""
    eight, four = Rescale.from_shift(3, 8), Rescale.from_shift(3, 4)
    with pytest.raises(ValueError, match="the same width"):
        ChannelRescale((eight, four))
    with pytest.raises(ValueError, match="one or more"):
        ChannelRescale(())
    x = np.zeros((1, 4, 3, 3), np.int8)
    with pytest.raises(SimulatorError, match="2 requantization ratios for 5 outputs"):
        run(Conv(np.zeros((5, 4, 1, 1), np.int8), None, ChannelRescale((eight, eight))), x)
    with pytest.raises(SimulatorError, match="2 requantization ratios for 3 outputs"):
        run(Linear(np.zeros((3, 3), np.int8), None, ChannelRescale((eight, eight))), x)
    with pytest.raises(SimulatorError, match="2 requantization ratios for 6 outputs"):
        run(ConvTranspose(np.zeros((4, 6, 1, 1), np.int8), None, ChannelRescale((eight, eight))), x)
