"""Kernels of the training side's arithmetic against their oracles."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale, RoundedShift, RoundingMode, divide_rounded, integer_dtype
from simulator.kernels import (
    AddScaled,
    Conv,
    ConvTranspose,
    DivSingle,
    Glu,
    Linear,
    Mean,
    Mul,
    Quant,
    Softmax,
    make_input_table,
)
from simulator.piecewise import load_piecewise
from simulator.program import SimulatorError
from tests.case_selection import choose_fast_subset
from tests.oracles import conv as naive_conv
from tests.oracles import curves, training
from tests.oracles.elementwise import each
from tests.oracles.fixed import rescale, rounded, rsh, sat
from tests.simulator.helpers import SEEDS, few, integers, more, rescales, run, same, simd, triple

OTHER = st.sampled_from(
    [rounding for rounding in RoundingMode if rounding is not RoundingMode.HALF_UP]
)
ANY = st.sampled_from(RoundingMode)
#: One rounding of each compiled form; half away from 0 has a form of its own.
FORMS = st.sampled_from(
    choose_fast_subset(
        3, (RoundingMode.HALF_EVEN, RoundingMode.DOWN, RoundingMode.UP, RoundingMode.HALF_AWAY)
    )
)


# ---- rounding --------------------------------------------------------------------------------------------------------


@more
@given(st.integers(-(2**60), 2**60), st.integers(1, 2**40), ANY)
def test_divided(n, d, rounding):
    from fractions import Fraction

    assert divide_rounded(n, d, int(rounding)) == training.rounded(Fraction(n, d), rounding)


@more
@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=8),
    st.integers(-4, 40),
    st.sampled_from((8, 16)),
    OTHER,
    st.booleans(),
)
def test_rounded(values, shift, bits, rounding, near):
    """All results, those at ties and beside them above all, whatever the bound the form is chosen
    by.
    """
    from simulator.fixed_point import apply_rescale

    if near and shift > 0:
        values = [(v % 2**8 << shift) + (1 << (shift - 1)) + d for v in values for d in (-1, 0, 1)]
    form = RoundedShift(shift, bits, rounding).compile_for_bound(max(abs(v) for v in values))
    assert [int(apply_rescale(form, v)) for v in values] == [
        training.shifted(v, shift, bits, rounding) for v in values
    ]


def test_rounded_says_what_it_is_not():
    with pytest.raises(ValueError, match="invalid requantization"):
        RoundedShift(3, 8, RoundingMode.HALF_UP)
    with pytest.raises(ValueError, match="invalid requantization"):
        RoundedShift(63, 8, RoundingMode.DOWN)


@few
@given(SEEDS, st.integers(4, 12), FORMS, st.booleans())
def test_layers_round_as_told(seed, shift, rounding, vectors):
    """Law: a rounding is one wherever the form is applied: convolution with and without vectors,
    matrix, product.
    """
    rng = np.random.default_rng(seed)
    x, weight = integers(rng, (2, 16, 5, 4)), integers(rng, (8, 16, 3, 2))
    how = RoundedShift(shift, 8, rounding)
    wide = Rescale.from_shift(0, 32)
    with simd(vectors):
        exact, got = (run(Conv(weight, None, r), x) for r in (wide, how))
    same(got, each(lambda v: training.shifted(v, shift, 8, rounding), exact), np.int8)
    flat = weight.reshape(8, -1)
    rows = integers(rng, (3, flat.shape[1]))
    exact, got = (run(Linear(flat, None, r), rows) for r in (wide, how))
    same(got, each(lambda v: training.shifted(v, shift, 8, rounding), exact), np.int8)
    y = integers(rng, x.shape)
    same(
        run(Mul(how), x, y),
        each(lambda a, b: training.shifted(a * b, shift, 8, rounding), x, y),
        np.int8,
    )


@few
@given(SEEDS, st.integers(-3, 6), st.integers(-3, 6), ANY)
def test_add(seed, shift_x, shift_y, rounding):
    """The operands are rounded but not saturated: 127 * 8 - 1000 is not 127 - 128."""
    rng = np.random.default_rng(seed)
    x, y = (integers(rng, (3, 40), extremes=e) for e in (False, True))

    def form(shift):
        return (
            Rescale.from_shift(shift, 60)
            if rounding is RoundingMode.HALF_UP
            else RoundedShift(shift, 60, rounding)
        )

    got = run(AddScaled(form(shift_x), form(shift_y), Rescale.from_shift(0, 8)), x, y)
    same(got, each(lambda a, b: training.add(a, b, shift_x, shift_y, 8, rounding), x, y), np.int8)


@few
@given(SEEDS, st.integers(0, 23), st.sampled_from((4, 8, 16, 32)), ANY)
def test_quant(seed, q, bits, rounding):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=60) * 2.0 ** rng.integers(-4, bits, 60) / 2.0**q).astype(np.float32)
    ties = ((rng.integers(-100, 100, 40) + 0.5) / 2.0**q).astype(np.float32)
    odd = np.float32([0.5 - 2**-25, np.nan, np.inf, -np.inf, 3e38, -3e38, 0, -0.0, 1e-45])
    x = np.concatenate(
        [x, ties, np.nextafter(ties, np.float32(9e9)), np.nextafter(ties, np.float32(-9e9)), odd]
    )
    got = run(Quant(2.0**q, bits, "single", rounding), x)
    want = np.array([training.quant(v, 2.0**q, bits, rounding) for v in x], object)
    same(got, want, integer_dtype(bits))


def test_quant_is_single_throughout():
    """0.5 - 2^-25 plus a half is 1 in float32, and in the training library."""
    x = np.float32([0.5 - 2**-25])
    assert run(Quant(1.0, 8, "single"), x) == 1
    assert run(Quant(1.0, 8, "generic"), x) == 0
    with pytest.raises(SimulatorError, match="half up"):
        run(Quant(1.0, 8, "luna", RoundingMode.DOWN), x)


# ---- pooling ---------------------------------------------------------------------------------------------------------


@more
@given(SEEDS, st.data())
def test_mean(seed, data):
    rng = np.random.default_rng(seed)
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(2))
    strides = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    pads = tuple(data.draw(st.integers(0, k // 2)) for k in kernel * 2)
    shift, bits, rounding = (
        data.draw(st.integers(-3, 3)),
        data.draw(st.sampled_from(choose_fast_subset(1, (8, 16)))),
        data.draw(ANY),
    )
    ceil_mode, padded, divisor = (
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.sampled_from((0, 3))),
    )
    x = integers(rng, (2, 3, 6, 7), extremes=data.draw(st.booleans()))
    made = Mean(kernel, strides, pads, shift, bits, rounding, ceil_mode, padded, divisor)
    want = training.mean(
        x, kernel, strides, pads, shift, bits, rounding, ceil_mode, padded, divisor
    )
    same(run(made, x), want, integer_dtype(bits))


def test_mean_of_the_whole_and_of_lines():
    rng = np.random.default_rng(1)
    x = integers(rng, (2, 3, 5, 7))
    want = training.mean(x, (5, 7), (1, 1), (0, 0, 0, 0), 1, 8, "floor_add", False, True, 0)
    same(run(Mean(None, None, None, 1), x), want, np.int8)
    line = x[:, :, 0]
    want = training.mean(
        line[:, :, None], (1, 3), (1, 2), (0, 1, 0, 1), 0, 8, "floor_add", False, False, 0
    )[:, :, 0]
    same(run(Mean((3,), (2,), (1, 1), 0, count_include_pad=False), line), want, np.int8)
    same(
        run(Mean(None, None, None, 0), line),
        each(lambda a: a, run(Mean((7,), None, None, 0), line)),
        np.int8,
    )


def test_mean_has_one_rounding():
    """9 / 4 at twice the scale is 4.5, not 2 * 2."""
    assert run(Mean((2, 2), None, None, 1), np.int8([[[[9, 0], [0, 0]]]])).item() == 5


# ---- division --------------------------------------------------------------------------------------------------------


@few
@given(SEEDS, st.sampled_from((8, 16)))
def test_quotient(seed, bits):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, 80), integers(rng, 80, extremes=True)
    got = run(DivSingle(16.0, 8.0, 32.0, bits), x, y)
    want = np.array(
        [
            training.quotient(int(a), int(b), 16.0, 8.0, 32.0, bits)
            for a, b in zip(x, y, strict=True)
        ],
        object,
    )
    same(got, want, integer_dtype(bits))


@few
@given(SEEDS, ANY)
def test_quotients_round_in_any_way(seed, rounding):
    """Of quotients that float32 holds: divisors are powers of two, so that many lie half way."""
    rng = np.random.default_rng(seed)
    x, y = integers(rng, 80), rng.choice(np.int8([-8, -4, -2, -1, 1, 2, 4, 8]), 80)
    want = [
        sat(int(rounded(Fraction(int(a), int(b)), rounding.name)), 8)
        for a, b in zip(x, y, strict=True)
    ]
    same(run(DivSingle(1.0, 1.0, 1.0, 8, rounding), x, y), np.array(want, object), np.int8)


# ---- curves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_nothing_beyond_the_table(function):
    """Where the library leaves the saturation out, its table gives 0."""
    x = np.array([-(2**31) + 1, -70000, -32769, -32768, -5, 32767, 32768, 32769, 2**31 - 1])
    got = load_piecewise(function, "venus").evaluate_unsaturated(x)
    want = [curves.piece(function, "venus", int(v)) if abs(v) <= 2**15 else 0 for v in x]
    assert got.tolist() == want
    assert got[5] == 32767


@few
@given(
    SEEDS,
    st.integers(-2, 12),
    st.sampled_from(("venus", "arcs", "venusA")),
    st.integers(0, 2),
    rescales((10, 18)),
)
def test_glu_on_any_axis(seed, q, chip, axis, requant):
    x = integers(np.random.default_rng(seed), (2, 4, 6))
    gate = Glu.gates(q, chip)
    for b in range(-128, 128):
        if chip == "venus":
            inner = rsh(b, q - 11)
            assert gate[b + 128] == (
                curves.piece("sigmoid", chip, inner) if abs(inner) <= 2**15 else 0
            )
        else:
            fraction = curves.TABLES[chip]["sigmoid"]["fraction"]
            raw = curves.piece("sigmoid", chip, sat(rsh(b, q - 27), 32))
            assert gate[b + 128] == rsh(sat(rsh(raw, fraction - 31), 32), 16)
    a, b = np.split(x.astype(int), 2, axis)
    want = each(lambda v, w: rescale(v * int(gate[w + 128]), triple(requant)), a, b)
    same(run(Glu(gate, requant, axis), x), want, np.int8)


@few
@given(SEEDS, st.integers(0, 2), st.sampled_from(("divide", "fused", "newton")), st.integers(0, 8))
def test_softmax_along_one_axis(seed, axis, way, q):
    x = integers(np.random.default_rng(seed), (2, 3, 5))
    requant = Rescale.from_shift(15 - 7, 8)
    made = Softmax(
        make_input_table(2.0 ** (25 - q), 8),
        requant,
        axis=axis,
        division_mode=way,
        single_axis=True,
    )
    want = np.zeros(x.shape, object)
    for place in np.ndindex(*(n for a, n in enumerate(x.shape) if a != axis)):
        row = (*place[:axis], slice(None), *place[axis:])
        want[row] = curves.softmax([int(v) for v in x[row]], 2.0 ** (25 - q), way, triple(requant))
    same(run(made, x), want, np.int8)


# ---- transposed convolution of lines ---------------------------------------------------------------------------------


@few
@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 1),
    st.sampled_from((1, 2)),
    rescales(),
)
def test_transposed_lines(seed, kernel, stride, pad, group, requant):
    rng = np.random.default_rng(seed)
    x, weight, bias = (
        integers(rng, (2, 4, 6)),
        integers(rng, (4, 3, kernel)),
        rng.integers(-999, 999, 3 * group),
    )
    pad = min(pad, (kernel - 1) // 2)
    made = ConvTranspose(weight, bias, requant, (stride,), (pad, pad), (1,), (stride - 1,), group)
    want = naive_conv.conv_transpose(
        x[:, :, None],
        weight[:, :, None],
        bias,
        triple(requant),
        (1, stride),
        (0, pad, 0, pad),
        (1, 1),
        (0, stride - 1),
        group,
    )
    same(run(made, x), want[:, :, 0], np.int8)
    assert math.prod(want.shape) > 0
