"""Convolution, fully connected layer and matrix product against their oracles, on both paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import Conv, Linear, MatMul
from simulator.kernels.loops import _conv_simd
from simulator.program import SimulatorError
from tests.case_selection import choose_fast_subset
from tests.oracles import conv as naive
from tests.simulator.helpers import SEEDS, few, integers, more, rescales, run, same, simd, triple

PATHS = pytest.mark.parametrize("fast", [False, True], ids=["loops", "simd"])


@st.composite
def convolutions(draw):
    rng = np.random.default_rng(draw(SEEDS))
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    own, outputs = (
        draw(st.sampled_from([1, 2, 3, 4, 5, 8])),
        draw(st.sampled_from([1, 2, 7, 16, 17, 33])),
    )
    if group > 1 and draw(st.booleans()):
        own, outputs = 1, 1  # depthwise, or nearly so
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = [
        max(draw(st.integers(1, 6)), d * (k - 1) + 1)
        for k, d in zip(kernel, dilations, strict=True)
    ]
    dtypes = draw(
        st.sampled_from(
            choose_fast_subset(
                4,
                [(np.int8, np.int8)] * 4
                + [(np.int16, np.int8), (np.int8, np.int16), (np.int16, np.int16)],
            )
        )
    )
    extremes = draw(st.booleans())
    x = integers(rng, (draw(st.integers(1, 2)), own * group, *size), dtypes[0], extremes)
    weight = integers(rng, (outputs * group, own, *kernel), dtypes[1], extremes)
    bias = (
        None
        if draw(st.booleans())
        else integers(rng, (outputs * group,), np.int32) >> draw(st.sampled_from([0, 12, 20]))
    )
    rescale = draw(rescales(shifts=(-2, 24), bits=(4, 8, 8, 16, 32)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return x, weight, bias, rescale, strides, pads, dilations, group


@PATHS
def test_conv2d(fast):
    @more
    @given(convolutions())
    def check(case):
        x, weight, bias, rescale, strides, pads, dilations, group = case
        with simd(fast):
            got = run(Conv(weight, bias, rescale, strides, pads, dilations, group), x)
        same(
            got,
            naive.conv(x, weight, bias, triple(rescale), strides, pads, dilations, group),
            rescale.dtype,
        )

    check()


@PATHS
@pytest.mark.parametrize("outputs", [16, 32, 48, 64, 80, 128])
@pytest.mark.parametrize("columns", [1, 7, 9, 17])
def test_conv2d_tiles(fast, outputs, columns):
    rng = np.random.default_rng(outputs * columns)
    x, weight = integers(rng, (1, 4, 2, columns)), integers(rng, (outputs, 4, 2, 1))
    rescale = Rescale.from_shift(9, 8)
    with simd(fast):
        got = run(Conv(weight, None, rescale), x)
    same(
        got, naive.conv(x, weight, None, triple(rescale), (1, 1), (0, 0, 0, 0), (1, 1), 1), np.int8
    )


@PATHS
@pytest.mark.parametrize(("groups", "multiplier"), [(5, 1), (16, 1), (5, 2), (20, 3)])
def test_depthwise_and_its_multiplier(fast, groups, multiplier):
    rng = np.random.default_rng(groups)
    x, weight = integers(rng, (2, groups, 5, 6)), integers(rng, (groups * multiplier, 1, 3, 3))
    bias, rescale = integers(rng, (groups * multiplier,), np.int16), Rescale.from_ratio(0.003, 8)
    with simd(fast):
        got = run(Conv(weight, bias, rescale, (2, 1), (1, 0, 1, 2), (1, 2), groups), x)
    same(
        got,
        naive.conv(x, weight, bias, triple(rescale), (2, 1), (1, 0, 1, 2), (1, 2), groups),
        np.int8,
    )


@PATHS
@pytest.mark.parametrize("is_nonnegative", [False, True])
@pytest.mark.parametrize(
    "kernel", [(3, 3), (3, 1), (2, 2), (1, 3), (3, 5), (5, 5), (2, 7)], ids=str
)
@pytest.mark.parametrize(("width", "stride"), [(1, 1), (2, 1), (3, 1), (8, 1), (13, 1), (9, 2)])
def test_pixels_of_a_depthwise_convolution_share_inputs(
    fast, is_nonnegative, kernel, width, stride
):
    """Pairs of columns, the last one odd or alone; channels beside a vector, of several blocks."""
    rng, channels = np.random.default_rng(width), 41
    x = integers(rng, (2, channels, 6, width), extremes=True)
    x = np.maximum(x, 0) if is_nonnegative else x
    weight, bias = integers(rng, (channels, 1, *kernel)), integers(rng, (channels,), np.int16)
    geometry = (stride, stride), (kernel[0] - 1, kernel[1] // 2, 1, kernel[1] - 1), (1, 1), channels
    rescale = Rescale.from_ratio(0.004, 8)
    conv = Conv(weight, bias, rescale, *geometry, is_input_nonnegative=is_nonnegative)
    with simd(fast):
        got = run(conv, x)
    same(got, naive.conv(x, weight, bias, triple(rescale), *geometry), np.int8)


@PATHS
def test_conv1d(fast):
    @few
    @given(
        SEEDS,
        rescales(),
        st.integers(1, 3),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.integers(1, 2),
    )
    def check(seed, rescale, stride, pads, dilation):
        rng = np.random.default_rng(seed)
        x, weight, bias = (
            integers(rng, (2, 6, 11)),
            integers(rng, (4, 3, 3)),
            integers(rng, (4,), np.int16),
        )
        with simd(fast):
            got = run(Conv(weight, bias, rescale, (stride,), pads, (dilation,), 2), x)
        same(
            got, naive.conv1d(x, weight, bias, triple(rescale), stride, pads, dilation, 2), np.int8
        )

    check()


@pytest.mark.slow
@PATHS
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "bias", [2**31 - 1, 2**31 - 9 * 127 * 128 - 1, 2**31 - 9 * 127 * 128, -(2**31), 2**40]
)
def test_accumulators_never_wrap(fast, bias, group):
    x = np.full((1, 2, 4, 4), 127, np.int8)
    weight = np.full((2, 2 // group, 3, 3), 127 if bias > 0 else -128, np.int8)
    for shift, bits in ((0, 32), (4, 16), (30, 8), (34, 8)):
        rescale, biases = (Rescale.from_shift(min(shift, 34), bits), np.array([bias, 0]))
        with simd(fast):
            got = run(Conv(weight, biases, rescale, (1, 1), (1, 1, 1, 1), None, group), x)
        same(
            got,
            naive.conv(x, weight, biases, triple(rescale), (1, 1), (1,) * 4, (1, 1), group),
            rescale.dtype,
        )


def test_the_vector_path_is_taken_only_where_32_bits_suffice():
    weight = np.full((1, 66000, 1, 1), -128, np.int8)
    assert _conv_simd.fits_int32(weight[:, :40000], np.zeros(1, np.int64))
    assert not _conv_simd.fits_int32(weight, np.zeros(1, np.int64))
    assert not _conv_simd.fits_int32(weight[:, :9], np.array([2**31 - 2000]))


def test_environment_forbids_the_vector_path():
    with simd(False):
        assert not _conv_simd.active_instruction_set()


@PATHS
def test_linear(fast):
    @few
    @given(
        SEEDS,
        rescales(bits=choose_fast_subset(1, (8, 16, 32))),
        st.sampled_from([(40,), (3, 40), (2, 5, 40)]),
        st.sampled_from([1, 10, 33]),
    )
    def check(seed, rescale, shape, outputs):
        rng = np.random.default_rng(seed)
        x, weight, bias = (
            integers(rng, shape),
            integers(rng, (outputs, 40)),
            integers(rng, (outputs,), np.int32),
        )
        with simd(fast):
            got = run(Linear(weight, bias, rescale), x)
        same(got, naive.linear(x, weight, bias, triple(rescale)), rescale.dtype)

    check()


@PATHS
def test_linear_with_more_rows_than_fit_at_once(fast):
    rng = np.random.default_rng(1)
    x, weight, rescale = integers(rng, (3, 201, 5)), integers(rng, (4, 5)), Rescale.from_shift(6, 8)
    with simd(fast):
        got = run(Linear(weight, None, rescale), x)
    same(got, naive.linear(x, weight, None, triple(rescale)), np.int8)


@few
@given(
    SEEDS,
    rescales(bits=(8, 32)),
    st.sampled_from(
        [
            ((3, 4), (4, 5)),
            ((2, 3, 4), (2, 4, 1)),
            ((1, 2, 3, 4), (1, 2, 4, 5)),
            ((2, 3, 4), (4, 5)),
        ]
    ),
    st.sampled_from(
        choose_fast_subset(2, [(np.int8, np.int8), (np.int16, np.int16), (np.int16, np.int8)])
    ),
)
def test_matmul(seed, rescale, shapes, dtypes):
    rng = np.random.default_rng(seed)
    x, y = (integers(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    same(run(MatMul(rescale), x, y), naive.matmul(x, y, triple(rescale)), rescale.dtype)


SHIFT = Rescale.from_shift(4, 8)


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "says"),
    [
        (Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT), (1, 4, 8, 8), np.int8, "do not match"),
        (Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT), (1, 3, 8), np.int8, "do not match"),
        (Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT), (1, 3, 8, 2), np.int8, "does not fit"),
        (
            Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT),
            (1, 3, 8, 8),
            np.int32,
            "int8 or int16",
        ),
        (
            Conv(np.zeros((4, 3, 3, 3), np.float32), None, SHIFT),
            (1, 3, 8, 8),
            np.int8,
            "weights must be",
        ),
        (
            Conv(np.zeros((4, 3, 3, 3), np.int8), np.zeros(3, int), SHIFT),
            (1, 3, 8, 8),
            np.int8,
            "a bias of",
        ),
        (
            Conv(np.zeros((4, 3, 3, 3), np.int8), np.zeros(4), SHIFT),
            (1, 3, 8, 8),
            np.int8,
            "must be integer",
        ),
        (
            Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT, pads=(1, 1)),
            (1, 3, 8, 8),
            np.int8,
            "invalid window",
        ),
        (
            Conv(np.zeros((4, 3, 3, 3), np.int8), None, SHIFT, pads=(-1, 0, 0, 0)),
            (1, 3, 8, 8),
            np.int8,
            "invalid window",
        ),
        (
            Conv(np.zeros((4, 3), np.int8), None, SHIFT),
            (1, 3),
            np.int8,
            "must have 3 or 4 axes",
        ),
        (
            Conv(np.zeros((5, 3, 1, 1), np.int8), None, SHIFT, group=2),
            (1, 6, 8, 8),
            np.int8,
            "in 2 groups",
        ),
        (Linear(np.zeros((4, 3), np.int8), None, SHIFT), (1, 4), np.int8, "do not match"),
        (Linear(np.zeros((4, 3), np.int8), None, SHIFT), (1, 3), np.float32, "int8 or int16"),
    ],
)
def test_what_does_not_fit_is_named(kernel, shape, dtype, says):
    with pytest.raises(SimulatorError, match=f"-> y: .*{says}"):
        run(kernel, np.zeros(shape, dtype))


def test_matrices_that_do_not_fit():
    with pytest.raises(SimulatorError, match="cannot be multiplied"):
        run(MatMul(SHIFT), np.zeros((2, 3), np.int8), np.zeros((2, 3), np.int8))
