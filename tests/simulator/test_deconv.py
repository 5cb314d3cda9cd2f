"""Transposed convolution, quotient; what they and the gated linear unit refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.operators._reference_arithmetic import divide
from simulator.fixed_point import INT32_MAX, INT32_MIN, Rescale
from simulator.kernels import ConvTranspose, Div, Glu, Relu
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.oracles import conv as naive
from tests.simulator.helpers import SEEDS, few, integers, more, rescales, run, same, simd, triple

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@more
@given(SEEDS, PAIRS, PAIRS, PAIRS, st.sampled_from([1, 2]), rescales(shifts=(4, 12)), st.booleans())
def test_conv_transpose(seed, kernel, strides, dilations, group, requant, fast):
    rng = np.random.default_rng(seed)
    x = integers(rng, (2, 2 * group, *rng.integers(1, 5, 2)))
    weight = integers(rng, (2 * group, 3, *kernel))
    bias = integers(rng, (3 * group,), np.int32) >> 12 if seed % 3 else None
    more = [int(rng.integers(s)) for s in strides]
    full = [
        s * (n - 1) + d * (k - 1) + 1 + m
        for s, n, d, k, m in zip(strides, x.shape[2:], dilations, kernel, more, strict=True)
    ]
    pads = [int(rng.integers(0, min(n, 4))) for n in full]
    pads += [int(rng.integers(0, min(n - p, 4))) for n, p in zip(full, pads, strict=True)]
    with simd(fast):
        got = run(ConvTranspose(weight, bias, requant, strides, pads, dilations, more, group), x)
    want = naive.conv_transpose(
        x, weight, bias, triple(requant), strides, pads, dilations, more, group
    )
    same(got, want, np.int8)


def test_conv_transpose_is_clipped_by_a_relu_behind():
    rng = np.random.default_rng(0)
    x, weight = integers(rng, (3, 2, 4, 4)), integers(rng, (2, 3, 2, 2))
    kernel = ConvTranspose(weight, None, Rescale.from_shift(7, 8), (2, 2))
    steps = [Step(kernel, ("x",), ("a",)), Step(Relu(), ("a",), ("y",))]
    ((_, y),) = compile_program(steps, {"x": TensorSpec((1, 2, 4, 4), np.int8)}, ["y"]).run(
        {"x": x}
    )
    assert np.array_equal(y, np.maximum(run(kernel, x), 0))


@few
@given(SEEDS, st.integers(0, 6), st.booleans())
def test_div(seed, shift, by_sign):
    rng = np.random.default_rng(seed)
    x, y = (
        integers(rng, (2, 30), np.int32) >> rng.integers(8, 28, (2, 30)),
        integers(rng, (2, 30), np.int32),
    )
    y = np.where(y % 7 == 0, 0, y >> rng.integers(8, 31, (2, 30))).astype(np.int32)

    def one(n, d):
        if d:
            return divide(int(n), int(d), shift)
        return INT32_MIN if not by_sign or n > 0 else (INT32_MAX if n < 0 else 0)

    want = np.frompyfunc(one, 2, 1)(x, y)
    same(run(Div(shift, by_sign), x.astype(np.int32), y), want, np.int32)


def test_div_by_a_negative_shift():
    x = np.ones((2, 3), np.int32)
    assert (run(Div(-1), x, x) == INT32_MIN).all()
    with pytest.raises(SimulatorError, match="requires int32"):
        run(Div(), x.astype(np.int8), x)


@pytest.mark.parametrize(
    ("kernel", "arrays", "says"),
    [
        (
            ConvTranspose(np.zeros((3, 2, 2, 2), np.int8), None, Rescale.from_shift(1, 8)),
            [np.zeros((1, 2, 4, 4), np.int8)],
            "do not match",
        ),
        (
            ConvTranspose(
                np.zeros((2, 2, 1, 1), np.int8), None, Rescale.from_shift(1, 8), pads=(2, 2, 2, 2)
            ),
            [np.zeros((1, 2, 4, 4), np.int8)],
            "leave no output",
        ),
        (
            ConvTranspose(np.zeros((2, 2), np.int8), None, Rescale.from_shift(1, 8)),
            [np.zeros((1, 2), np.int8)],
            "one or two kernel axes",
        ),
        (Glu(Glu.gates(4), Rescale.from_shift(15, 8)), [np.zeros((1, 3), np.int8)], "2K"),
    ],
)
def test_what_does_not_fit_is_named(kernel, arrays, says):
    with pytest.raises(SimulatorError, match=says):
        run(kernel, *arrays)
