"""Kernels on integers in which another one than 0 stands for 0, against oracles that read the
differences.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.channel_rescale import ChannelRescale
from simulator.fixed_point import Rescale, apply_rescale
from simulator.kernels import (
    AddScaled,
    AvgPool,
    ChannelAffine,
    Clip,
    Concat,
    Conv,
    ConvTranspose,
    Dequant,
    Linear,
    MatMul,
    Mul,
    Quant,
    Relu,
    Requant,
    ZeroPointKernel,
    subtract_zero_points,
)
from simulator.kernels.loops._common import max_magnitude
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.oracles import conv as naive_conv
from tests.oracles import elementwise as naive
from tests.oracles import pool as naive_pool
from tests.simulator.helpers import SEEDS, few, integers, more, rescales, run, same, simd, triple

ZEROS = st.sampled_from([0, -128, 127, 1, -37])
PATHS = pytest.mark.parametrize("fast", [False, True], ids=["loops", "simd"])


@st.composite
def moved(draw, shifts=(-2, 14), bits=(8,)):
    """Draw a requantization with a zero point."""
    return replace(draw(rescales(shifts, bits)), zero_point=draw(ZEROS))


def above(x, zero):
    """Return what integers stand for, in counts."""
    return x.astype(np.int64) - zero


# ---- rounding --------------------------------------------------------------------------------------------------------


@more
@given(SEEDS, moved(shifts=(-8, 60), bits=(8, 16)), st.sampled_from([np.int8, np.int16, np.int32]))
def test_every_form_adds_the_zero_point(seed, rescale, dtype):
    """Shifts, products of 64 bits and wider ones: the zero point is added to the rounded result,
    then it saturates.
    """
    x = integers(np.random.default_rng(seed), (3, 40), dtype, extremes=bool(seed % 2))
    want = naive.requant(x, triple(rescale))
    same(run(Requant(rescale), x), want, rescale.dtype)
    same(np.asarray(rescale(x)).astype(rescale.dtype), want, rescale.dtype)


@pytest.mark.parametrize("zero", [-128, -1, 0, 127])
def test_forms_at_their_ends(zero):
    """Accumulators at the bound that a form was made for, where everything saturates or everything
    is 0.
    """
    for shift in (0, 7, 31, 40, 62):
        for multiplier in (1 << 30, (1 << 31) - 1):
            for bound in (1, 255, 2**31 - 1, 2**40):
                rescale = Rescale(multiplier, shift + 30, 8, zero)
                acc = np.array([-bound, -1, 0, 1, bound], np.int64)
                want = np.array([naive_conv.rescale(v, triple(rescale)) for v in acc.tolist()])
                assert [
                    int(apply_rescale(rescale.compile_for_bound(bound), int(v))) for v in acc
                ] == want.tolist()
                assert np.abs(want).max() <= rescale.output_bound(bound)


def test_impossible_zero_points_are_refused():
    for zero, bits in ((128, 8), (-9, 4)):
        with pytest.raises(ValueError, match=f"zero point {zero} does not fit {bits} bits"):
            Rescale(1 << 30, 30, bits, zero)


# ---- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@PATHS
@pytest.mark.parametrize(("group", "own", "each"), [(1, 5, 18), (3, 2, 3), (20, 1, 1), (4, 1, 2)])
def test_conv(fast, group, own, each):
    @few
    @given(SEEDS, moved(shifts=(4, 16)), ZEROS, st.sampled_from([np.int8, np.int16]), st.booleans())
    def check(seed, rescale, zero, kind, padded):
        rng = np.random.default_rng(seed)
        x = integers(rng, (2, group * own, 5, 4), extremes=bool(seed % 2))
        weight, bias = (
            integers(rng, (group * each, own, 3, 2), kind),
            integers(rng, (group * each,), np.int16),
        )
        sizes = (2, 1), (1, 0, 1, 2) if padded else (0, 0, 0, 0), (1, 2), group
        with simd(fast):
            got = run(Conv(weight, bias, rescale, *sizes, zero), x)
        same(got, naive_conv.conv(above(x, zero), weight, bias, triple(rescale), *sizes), np.int8)

    check()


@PATHS
def test_lines_channels_and_rows(fast):
    """One axis; a ratio for each channel, small ones and wide ones; a fully connected layer."""

    @few
    @given(SEEDS, st.lists(st.integers(0, 60), min_size=6, max_size=6), ZEROS, ZEROS)
    def check(seed, shifts, zero, out):
        rng = np.random.default_rng(seed)
        x, weight, bias = (
            integers(rng, (2, 4, 9)),
            integers(rng, (6, 2, 3)),
            integers(rng, (6,), np.int32) >> 12,
        )
        each = tuple(Rescale.from_ratio(1.3 * 2.0**-shift, 8, out) for shift in shifts)
        kernel = Conv(weight, bias, ChannelRescale(each), (1,), (2, 1), None, 2, zero)
        with simd(fast):
            got = run(kernel, x)
            row = run(Linear(weight[:, 0], bias, ChannelRescale(each), zero), x[:, :, :3])
        for o, rescale in enumerate(each):
            one = naive_conv.conv1d(above(x, zero), weight, bias, triple(rescale), 1, (2, 1), 1, 2)
            same(got[:, o], one[:, o], np.int8)
            rows = naive_conv.linear(above(x[:, :, :3], zero), weight[:, 0], bias, triple(rescale))
            same(row[..., o], rows[..., o], np.int8)

    check()


@few
@given(
    SEEDS, moved(shifts=(4, 14)), ZEROS, st.sampled_from([(1, 3, 2), (2, 2, 1)]), st.integers(0, 1)
)
def test_conv_transpose(seed, rescale, zero, sizes, more_rows):
    """What lies between and around the inputs stands for 0, wherever it is."""
    rng = np.random.default_rng(seed)
    group, own, each = sizes
    x, weight = integers(rng, (2, group * own, 3, 4)), integers(rng, (group * own, each, 3, 2))
    bias = integers(rng, (group * each,), np.int16)
    told = (2, 3), (1, 0, 2, 1), (1, 2), (more_rows, 0), group
    same(
        run(ConvTranspose(weight, bias, rescale, *told, zero), x),
        naive_conv.conv_transpose(above(x, zero), weight, bias, triple(rescale), *told),
        np.int8,
    )


@few
@given(SEEDS, moved(), ZEROS)
def test_affine(seed, rescale, zero):
    rng = np.random.default_rng(seed)
    x, weight, bias = integers(rng, (2, 5, 3)), integers(rng, (5,)), integers(rng, (5,), np.int16)
    want = naive.affine(above(x, zero), weight, bias, triple(rescale))
    same(run(ChannelAffine(weight, bias, rescale, zero), x), want, np.int8)


# ---- operators on differences ----------------------------------------------------------------------------------------


@few
@given(SEEDS, ZEROS, ZEROS, ZEROS, st.sampled_from([1, -1]), st.tuples(*[st.floats(0.01, 8.0)] * 2))
def test_sums(seed, zero_x, zero_y, zero, sign, ratios):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, (2, 3, 4)), integers(rng, (2, 3, 1))
    kernel = subtract_zero_points(AddScaled.from_ratios(*ratios, 8, sign, zero), zero_x, zero_y)
    whole = (
        naive.add_scaled(above(x, zero_x), above(y, zero_y), *ratios, 40, sign).astype(np.int64)
        + zero
    )
    same(run(kernel, x, y), naive.clip(whole, -128, 127), np.int8)


@pytest.mark.slow
@few
@given(SEEDS, ZEROS, ZEROS, moved(shifts=(2, 9)))
def test_products(seed, zero_x, zero_y, rescale):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, (2, 3, 4)), integers(rng, (2, 3, 4))
    want = naive.mul(above(x, zero_x), above(y, zero_y), triple(rescale))
    same(run(subtract_zero_points(Mul(rescale), zero_x, zero_y), x, y), want, np.int8)
    y = y.reshape(2, 4, 3)
    want = naive_conv.matmul(above(x, zero_x), above(y, zero_y), triple(rescale))
    same(run(subtract_zero_points(MatMul(rescale), zero_x, zero_y), x, y), want, np.int8)


@few
@given(SEEDS, ZEROS, moved(shifts=(-1, 5)), st.booleans())
def test_averages(seed, zero, rescale, ceil_mode):
    """Padding stands for 0."""
    window = (3, 2), (2, 1), (1, 0, 2, 1)
    x = integers(np.random.default_rng(seed), (2, 3, 5, 4))
    want = naive_pool.average(above(x, zero), triple(rescale), *window, ceil_mode)
    same(run(subtract_zero_points(AvgPool(*window, rescale, ceil_mode), zero), x), want, np.int8)


@few
@given(SEEDS, ZEROS, ZEROS, moved(shifts=(-1, 3)))
def test_joins(seed, zero_x, zero_y, rescale):
    """Each input less its own zero point; one that has no ratio is still moved."""
    rng = np.random.default_rng(seed)
    x, y = integers(rng, (2, 3, 4)), integers(rng, (2, 2, 4))
    whole = Rescale.from_shift(0, 8, rescale.zero_point)
    parts = (
        naive.requant(above(x, zero_x), triple(rescale)),
        naive.requant(above(y, zero_y), triple(whole)),
    )
    kernel = subtract_zero_points(Concat(1, (rescale, whole)), zero_x, zero_y)
    same(run(kernel, x, y), np.concatenate(parts, 1), np.int8)


# ---- borders ---------------------------------------------------------------------------------------------------------


@few
@given(SEEDS, ZEROS, st.floats(0.01, 1000), st.sampled_from([4, 8, 16]))
def test_quant_and_dequant(seed, zero, scale, bits):
    """The zero point is added after rounding; nan gives it, and it gives 0."""
    zero = max(min(zero, (1 << (bits - 1)) - 1), -(1 << (bits - 1)))
    x = np.random.default_rng(seed).standard_normal((2, 50)).astype(np.float32) * 100
    x[0, :3] = np.nan, np.inf, -np.inf
    got = run(Quant(scale, bits, zero_point=zero), x)
    whole = naive.quant(x, scale, 60).astype(np.int64) + zero
    top = 1 << (bits - 1)
    same(got, naive.clip(whole, -top, top - 1), np.int16 if bits == 16 else np.int8)
    assert got[0, 0] == zero
    back = run(Dequant(scale, zero), got)
    same(back, naive.dequant(above(got, zero), scale), np.float32)
    assert back[0, 0] == 0


def test_only_the_plain_rule_has_a_zero_point():
    for rule in ("luna", "single"):
        with pytest.raises(SimulatorError, match=f"rule '{rule}' has no zero point; got 3"):
            run(Quant(64.0, 8, rule, zero_point=3), np.zeros((1, 2), np.float32))


# ---- laws ------------------------------------------------------------------------------------------------------------


def test_without_zero_points_nothing_is_wrapped():
    kernel = Mul(Rescale.from_shift(7, 8))
    assert subtract_zero_points(kernel, 0, 0) is kernel
    assert Rescale.from_ratio(0.3, 8, 0) == Rescale.from_ratio(0.3, 8)
    assert Rescale.from_shift(3, 8, 5).pow2_shift is None


@few
@given(SEEDS, ZEROS, ZEROS)
def test_bounds_are_absorbed(seed, zero, out):
    """A Clip behind a layer or a sum is one step with it, and changes no integer."""
    rng = np.random.default_rng(seed)
    x, weight = integers(rng, (3, 4, 5, 5)), integers(rng, (6, 4, 3, 3))
    for kernel in (
        Conv(weight, None, Rescale.from_shift(9, 8, out), pads=(1, 1, 1, 1), zero=zero),
        subtract_zero_points(AddScaled.from_ratios(0.7, 0.4, 8, 1, out), zero, 5),
    ):
        names = ("x", "z")[: 1 if isinstance(kernel, Conv) else 2]
        feed = dict.fromkeys(names, x)
        for clip in (Clip(out, 127), Relu()):
            steps = [Step(kernel, names, ("a",)), Step(clip, ("a",), ("y",))]
            specs = {name: TensorSpec((1, *x.shape[1:]), x.dtype) for name in names}
            both = dict(compile_program(steps, specs, ["a", "y"]).run(feed))
            fused = compile_program(steps, specs, ["y"])
            np.testing.assert_array_equal(dict(fused.run(feed))["y"], both["y"])
            np.testing.assert_array_equal(
                both["y"], np.clip(both["a"].astype(np.int64), *clip.clamp_bounds).astype(np.int8)
            )
            assert kernel.fuse(clip, [specs[name] for name in names]) is not None


def test_only_bytes_have_zero_points():
    kernel = ZeroPointKernel(Requant(Rescale.from_shift(0, 8)), (3,))
    with pytest.raises(SimulatorError, match="zero points require int8"):
        run(kernel, np.zeros((1, 2), np.int16))
    with pytest.raises(SimulatorError, match="1 zero points for 2 inputs"):
        run(ZeroPointKernel(Mul(Rescale.from_shift(0, 8)), (3,)), *[np.zeros((1, 2), np.int8)] * 2)
    assert max_magnitude(np.dtype(np.int8)) == 128
