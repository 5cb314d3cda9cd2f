"""Rounding, shifting, saturation, division: the scalar laws and the compiled forms."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.operators._reference_arithmetic import divide, fixed_point_multiplier
from simulator._jit import jit
from simulator.fixed_point import (
    ChainedForm,
    ChainedRescale,
    LunaDivide,
    ReciprocalForm,
    Rescale,
    RoundingMode,
    ScaleForm,
    ShiftForm,
    WideScaleForm,
    apply_rescale,
    integer_dtype,
    luna_divide,
    round_shift_right,
    saturate,
)
from simulator.native import NativeLoop
from tests.oracles import fixed as naive
from tests.simulator.helpers import more, triple

pytestmark = pytest.mark.smoke


@jit
def applied(form, acc, out):
    for i in range(out.size):
        out[i] = apply_rescale(form, acc[i])


@jit
def divided(n, d, shift, out):
    for i in range(out.size):
        out[i] = luna_divide(n[i], d[i], shift)


@more
@given(st.integers(-(2**80), 2**80), st.integers(0, 90))
def test_rsh_is_floor_of_v_plus_half(v, s):
    assert round_shift_right(v, s) == naive.rsh(v, s)


def test_rsh_ties_go_up_and_negative_shifts_multiply():
    assert [round_shift_right(v, 1) for v in (-3, -1, 1, 3)] == [-1, 0, 1, 2]
    assert round_shift_right(-5, -3) == -40
    assert round_shift_right(5, 0) == 5


def test_sat_clamps_at_both_ends():
    assert [saturate(v, 8) for v in (-129, -128, 127, 128)] == [-128, -128, 127, 127]


@pytest.mark.parametrize(
    ("bits", "name"), [(4, "int8"), (8, "int8"), (9, "int16"), (32, "int32"), (62, "int64")]
)
def test_dtype_of(bits, name):
    assert integer_dtype(bits) == np.dtype(name)


def test_dtype_of_too_many_bits():
    with pytest.raises(ValueError, match="65 bits"):
        integer_dtype(65)


@more
@given(st.floats(1e-30, 2.0**29.9))
def test_from_ratio_rounds_to_31_bits(ratio):
    rescale = Rescale.from_ratio(ratio, 8)
    assert (rescale.multiplier, rescale.shift) == fixed_point_multiplier(ratio)


@pytest.mark.parametrize("shift", [-29, -1, 0, 1, 31, 64, 900])
def test_powers_of_two_are_exact_shifts(shift):
    rescale = Rescale.from_ratio(2.0**-shift, 8)
    assert rescale == Rescale.from_shift(shift, 8)
    assert rescale.pow2_shift == shift


def test_multiplier_that_rounds_to_2_31_is_renormalised():
    rescale = Rescale.from_ratio(math.nextafter(1.0, 0.0), 8)
    assert (rescale.multiplier, rescale.shift, rescale.pow2_shift) == (2**30, 30, 0)


@pytest.mark.parametrize(
    "ratio", [0.0, -1.0, math.inf, math.nan, 2.0**30, math.nextafter(2.0**30, 0)]
)
def test_impossible_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match="ratio"):
        Rescale.from_ratio(ratio, 8)


@pytest.mark.parametrize(
    "fields", [(2**30 - 1, 1, 8), (2**31, 1, 8), (2**30, 0, 8), (2**30, 1, 0), (2**30, 1, 63)]
)
def test_impossible_fields_are_refused(fields):
    with pytest.raises(ValueError, match="invalid rescale"):
        Rescale(*fields)


def edge_values(rescale, bound):
    """Accumulators at both bounds, around zero, and on both sides of the steps near zero and of the
    saturation ends.
    """
    top, ratio = 2 ** (rescale.bits - 1), Fraction(rescale.multiplier, 2**rescale.shift)
    steps = [
        Fraction(2 * k + 1, 2) / ratio
        for k in (-top - 1, -top, -2, -1, 0, 1, top - 2, top - 1, top)
    ]
    near = [math.floor(step) + d for step in steps for d in (-1, 0, 1)]
    return sorted(
        {v for v in [-bound, 1 - bound, -1, 0, 1, bound - 1, bound, *near] if abs(v) <= bound}
    )


@st.composite
def cases(draw):
    bits = draw(st.sampled_from([1, 4, 8, 16, 31, 32, 33, 61, 62]))
    rescale = Rescale(
        draw(st.sampled_from([2**30, 2**30 + 1, 2**31 - 1, 1518500250])),
        draw(st.integers(1, 130)),
        bits,
    )
    bound = 2 ** draw(st.integers(0, 62)) - draw(st.sampled_from([0, 1]))
    return rescale, max(bound, 1), draw(st.lists(st.integers(-bound, bound), max_size=8))


@more
@given(cases(), st.sampled_from(RoundingMode), st.integers(-5, 5))
def test_a_multiplier_rounds_any_way(case, rounding, zero):
    """Law: whatever the rounding, one form is exact up to its bound, ties and zero points
    included.
    """
    how, bound, some = case
    rescale = Rescale(how.multiplier, how.shift, how.bits, zero if how.bits > 4 else 0, rounding)
    ties = [k << (how.shift - 31) for k in range(-9, 10, 2) if how.shift > 30]
    acc = [v for v in [*edge_values(how, bound), *some, *ties] if abs(v) <= bound]
    want = [naive.rescale_by(v, triple(rescale), rounding.name) for v in acc]
    assert rescale(np.array(acc, object)).tolist() == want
    got = np.zeros(len(acc), np.int64)
    NativeLoop(applied, (rescale.compile_for_bound(bound), np.array(acc, np.int64), got))((), ())
    assert got.tolist() == want


@more
@given(cases())
def test_every_form_is_exact_up_to_its_bound(case):
    rescale, bound, some = case
    acc = edge_values(rescale, bound) + some
    want = [naive.rescale(v, triple(rescale)) for v in acc]
    assert rescale(np.array(acc, object)).tolist() == want
    got = np.zeros(len(acc), np.int64)
    NativeLoop(applied, (rescale.compile_for_bound(bound), np.array(acc, np.int64), got))((), ())
    assert got.tolist() == want
    form = rescale.compile_for_bound(bound)
    if not isinstance(
        form, ShiftForm
    ):  # Shift counts in int32, which NumPy checks more strictly than the compiled code
        assert [apply_rescale(form, v) for v in acc] == want
    assert all(abs(v) <= rescale.output_bound(bound) for v in want)


@pytest.mark.parametrize(
    ("rescale", "bound", "form"),
    [
        (Rescale.from_shift(0, 8), 128, ShiftForm),
        (Rescale.from_shift(7, 8), 2**31 - 65, ShiftForm),
        (Rescale.from_shift(7, 8), 2**31 - 64, ScaleForm),
        (Rescale.from_shift(-1, 16), 128, ScaleForm),
        (Rescale.from_ratio(0.3, 8), 2**31, ScaleForm),
        (Rescale.from_ratio(0.3, 8), 2**62, ScaleForm),
        (Rescale.from_ratio(0.3e-12, 8), 2**62, WideScaleForm),
        (Rescale.from_shift(200, 8), 2**62, ScaleForm),
    ],
)
def test_the_cheapest_exact_form_is_chosen(rescale, bound, form):
    assert type(rescale.compile_for_bound(bound)) is form


@pytest.mark.parametrize(
    "rescale", [Rescale.from_shift(3, 8), Rescale.from_ratio(0.11, 8), Rescale.from_shift(90, 8)]
)
def test_clip_narrows_the_result(rescale):
    acc = np.arange(-2000, 2000)
    got = np.zeros(len(acc), np.int64)
    NativeLoop(applied, (rescale.compile_for_bound(2000, (3, 100)), acc, got))((), ())
    assert got.tolist() == np.clip(rescale(acc), 3, 100).tolist()


@more
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1).filter(bool),
    st.integers(0, 20),
)
def test_luna_div_is_the_newton_reciprocal(n, d, shift):
    want = divide(n, d, shift)
    assert luna_divide(n, d, shift) == want
    out = np.zeros(1, np.int64)
    NativeLoop(divided, (np.array([n]), np.array([d]), shift, out))((), ())
    assert out[0] == want


@pytest.mark.parametrize(
    ("n", "d", "want"),
    [
        (-5, 2, -2),
        (5, 2, 3),
        (-9, 6, -2),
        (9, 6, 2),
        (15, 10, 1),
        (-15, 10, -1),
        (-25, 10, -2),
        (7, 0, -(2**31)),
    ],
)
def test_luna_div_ties_fall_by_the_error_of_the_reciprocal(n, d, want):
    assert luna_divide(n, d, 0) == want


def test_luna_div_is_the_nearest_integer_away_from_ties():
    n, d = (
        a.reshape(-1) for a in np.meshgrid(np.arange(-(2**15), 2**15, 37), np.arange(1, 601, 7))
    )
    out = np.zeros(n.size, np.int64)
    NativeLoop(divided, (n, d, 0, out))((), ())
    tie = (2 * n) % d == 0
    assert np.array_equal(out[~tie], ((2 * n + d) // (2 * d))[~tie])


def test_division_and_chain_as_rules():
    acc = np.arange(-3000, 3000)
    got = np.zeros(len(acc), np.int64)
    form = LunaDivide(9, 1).compile_for_bound(3000)
    assert type(form) is ReciprocalForm
    NativeLoop(applied, (form, acc, got))((), ())
    assert got.tolist() == [naive.sat(divide(int(v), 9, 1), 8) for v in acc]
    assert LunaDivide(9, -1, underflow=-(2**31)).compile_for_bound(3000)[-2:] == (-128, -128)
    chain = ChainedRescale(Rescale.from_shift(1, 32), Rescale.from_shift(2, 8))
    assert type(chain.compile_for_bound(3000)) is ChainedForm
    NativeLoop(applied, (chain.compile_for_bound(3000), acc, got))((), ())
    assert got.tolist() == [naive.sat(naive.rsh(naive.rsh(int(v), 1), 2), 8) for v in acc]
    assert (chain.dtype, LunaDivide(9, bits=16).dtype) == (np.int8, np.int16)
