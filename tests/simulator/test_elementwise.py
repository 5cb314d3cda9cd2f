"""Operators that work number by number against their oracles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import (
    AddScaled,
    AddShift,
    ChannelAffine,
    Clip,
    Dequant,
    Mul,
    Quant,
    Relu,
    Requant,
)
from simulator.kernels.lookup_table import Table
from simulator.kernels.loops._copy import make_broadcast_arguments
from simulator.kernels.shape import Constant
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.case_selection import choose_fast_subset
from tests.oracles import elementwise as naive
from tests.simulator.helpers import SEEDS, few, integers, rescales, run, same, triple

SHAPES = [
    ((3, 5), (3, 5)),
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (2, 3, 1, 1)),
    ((2, 3, 1, 4), (2, 1, 5, 1)),
    ((7,), (1,)),
    ((2, 3, 2, 4, 5), (1, 3, 1, 4, 5)),
    ((2, 1, 3, 1, 2, 5), (3, 1, 2, 1)),
    ((2, 2, 3, 2, 3, 2), (1, 3, 1, 3, 1)),
]
BYTES = np.arange(-128, 128, dtype=np.int8)
ALL_PAIRS = np.repeat(BYTES, 256).reshape(1, -1), np.tile(BYTES, 256).reshape(1, -1)


def pair(seed, shapes, dtypes=(np.int8, np.int8)):
    rng = np.random.default_rng(seed)
    return [integers(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


@pytest.mark.parametrize(
    ("shapes", "merged"),
    [
        (((2, 3, 2, 4, 5), (1, 3, 1, 4, 5)), [(-1, 3, 2, 20), (-1, 3, 1, 20), (-1, 3, 2, 20)]),
        (((2, 3, 1, 4, 5), (4, 5)), [(-1, 1, 3, 20), (-1, 1, 1, 20), (-1, 1, 3, 20)]),
        (((2, 2, 3, 2, 3, 2), (1, 3, 1, 3, 1)), None),
    ],
)
def test_axes_that_broadcast_alike_are_merged(shapes, merged):
    """So that more than four of them are added by compiled loops, too."""
    specs = [TensorSpec(shape, np.dtype(np.int8)) for shape in shapes]
    arguments = make_broadcast_arguments(specs, specs[0], False)
    if merged is None:
        assert arguments is None
    else:
        assert [arguments[index].shape for index in (0, 1, 4)] == merged


@few
@given(
    SEEDS,
    st.sampled_from(SHAPES),
    st.integers(-2, 9),
    st.integers(-2, 9),
    st.sampled_from(choose_fast_subset(2, [4, 8, 16])),
    st.sampled_from([1, -1]),
)
def test_add_shift(seed, shapes, shift_x, shift_y, bits, sign):
    x, y = pair(seed, shapes)
    got = run(AddShift(shift_x, shift_y, bits, sign), x, y)
    same(
        got,
        naive.add_shift(x, y, shift_x, shift_y, bits, sign),
        np.int16 if bits == 16 else np.int8,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, -1])
def test_add_shift_for_all_pairs_of_bytes(sign):
    x, y = ALL_PAIRS
    same(run(AddShift(1, 0, 8, sign), x, y), naive.add_shift(x, y, 1, 0, 8, sign), np.int8)


@few
@given(
    SEEDS,
    st.sampled_from(SHAPES),
    st.tuples(st.floats(0.001, 40.0), st.floats(0.001, 40.0)),
    st.sampled_from(choose_fast_subset(2, [4, 8, 16])),
    st.sampled_from([1, -1]),
    st.sampled_from(
        choose_fast_subset(2, [(np.int8, np.int8), (np.int16, np.int8), (np.int32, np.int32)])
    ),
)
def test_add_scaled(seed, shapes, ratios, bits, sign, dtypes):
    x, y = pair(seed, shapes, dtypes)
    got = run(AddScaled.from_ratios(*ratios, bits, sign), x, y)
    same(got, naive.add_scaled(x, y, *ratios, bits, sign), np.int16 if bits == 16 else np.int8)


def test_add_scaled_at_powers_of_two_rounds_once():
    x, y = ALL_PAIRS
    want = naive.each(lambda a, b: max(-128, min(127, (a + b + 1) >> 1)), x, y)
    same(run(AddScaled.from_ratios(0.5, 0.5, 8), x, y), want, np.int8)


@few
@given(
    SEEDS,
    st.sampled_from(SHAPES),
    rescales(shifts=(0, 16), bits=choose_fast_subset(1, (8, 16, 32))),
    st.sampled_from(
        choose_fast_subset(
            2, [(np.int8, np.int8), (np.int16, np.int8), (np.int16, np.int16), (np.int32, np.int16)]
        )
    ),
)
def test_mul(seed, shapes, rescale, dtypes):
    x, y = pair(seed, shapes, dtypes)
    same(run(Mul(rescale), x, y), naive.mul(x, y, triple(rescale)), rescale.dtype)


@pytest.mark.slow
def test_products_of_32_bits_do_not_wrap():
    x, y = np.full((1, 3), -(2**31) + 1, np.int32), np.array([[2**29, 1, -(2**29)]], np.int32)
    for rescale in (Rescale.from_shift(40, 32), Rescale.from_ratio(1e-11, 16)):
        with pytest.raises(SimulatorError, match="62 bits"):
            run(Mul(rescale), x, y)
    x, y = x, np.array([[2**15 - 1, 1, -(2**15)]], np.int16)
    for rescale in (
        Rescale.from_shift(20, 32),
        Rescale.from_ratio(1e-9, 16),
        Rescale.from_ratio(1.1e-17, 8),
    ):
        same(run(Mul(rescale), x, y), naive.mul(x, y, triple(rescale)), rescale.dtype)


@few
@given(
    SEEDS, st.sampled_from([(2, 5), (2, 5, 3), (1, 5, 2, 3)]), rescales(), st.sampled_from([0, 16])
)
def test_affine(seed, shape, rescale, right):
    rng = np.random.default_rng(seed)
    x, weight, bias = (
        integers(rng, shape),
        integers(rng, (5,)),
        integers(rng, (5,), np.int32) >> right,
    )
    same(
        run(ChannelAffine(weight, bias, rescale), x),
        naive.affine(x, weight, bias, triple(rescale)),
        rescale.dtype,
    )


@few
@given(
    SEEDS,
    rescales(shifts=(-8, 12), bits=(4, 8, 16, 32)),
    st.sampled_from([np.int8, np.int16, np.int32]),
)
def test_requant(seed, rescale, dtype):
    x = integers(np.random.default_rng(seed), (3, 40), dtype)
    same(run(Requant(rescale), x), naive.requant(x, triple(rescale)), rescale.dtype)


@pytest.mark.parametrize(("left", "bits"), [(4, 16), (10, 16), (27, 32), (3, 8)])
def test_requant_without_saturation_keeps_the_low_bits(left, bits):
    x = BYTES.reshape(1, -1)
    want = naive.requant_wrapped(x, left, bits)
    same(
        run(Requant(Rescale.from_shift(-left, bits), saturate=False), x),
        want,
        np.dtype(f"int{bits}"),
    )


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_relu_and_clip(dtype):
    x = integers(np.random.default_rng(0), (2, 300), dtype)
    same(run(Relu(), x), naive.clip(x, 0, 2**40), dtype)
    same(run(Clip(-3, 90), x), naive.clip(x, -3, 90), dtype)
    same(run(Clip(-(2**50), 2**50), x), x, dtype)


REALS = np.array(
    [
        [
            0.0,
            -0.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -1.5,
            0.49999997,
            7.96875,
            7.9374995,
            -8.03125,
            -8.1,
            1e30,
            -1e30,
            3.4e38,
        ]
    ],
    np.float32,
)


@pytest.mark.parametrize(
    ("scale", "bits"), [(1.0, 8), (16.0, 8), (3.7, 4), (1000.3, 16), (1e6, 32), (2.0**-5, 8)]
)
def test_quant(scale, bits):
    rng = np.random.default_rng(bits)
    x = np.concatenate([REALS, (rng.standard_normal((1, 200)) * 9).astype(np.float32)], axis=1)
    same(run(Quant(scale, bits), x), naive.quant(x, scale, bits), np.dtype(f"int{max(bits, 8)}"))


@pytest.mark.parametrize("q", [0, 4, 10, -1, -2, -31, -32])
def test_quant_of_the_npu(q):
    rng = np.random.default_rng(3)
    x = np.concatenate([REALS, (rng.standard_normal((1, 200)) * 9).astype(np.float32)], axis=1)
    factor = 2**q if q >= 0 else {-1: -(2**31), -2: 2**30, -31: 2, -32: 1}[q]
    same(run(Quant(2.0**q, 16, "luna"), x), naive.quant_luna(x, factor), np.int8)


def test_quant_of_no_numbers():
    x = np.array([[math.nan, math.inf, -math.inf]], np.float32)
    assert run(Quant(4.0, 16), x).tolist() == [[0, 32767, -32768]]
    assert run(Quant(4.0, 8, "luna"), x).tolist() == [[0, 127, -128]]


def test_half_is_rounded_up_and_not_to_even():
    x = np.array([[2.5, 3.5, -2.5]], np.float32)
    assert run(Quant(1.0, 8), x).tolist() == [[3, 4, -2]]


def test_the_npu_adds_the_half_before_rounding_to_float():
    x = np.array([[np.nextafter(np.float32(0.5), np.float32(0))]])
    assert (run(Quant(1.0, 8), x)[0, 0], run(Quant(1.0, 8, "luna"), x)[0, 0]) == (0, 1)


@pytest.mark.parametrize("scale", [16.0, 3.7])
def test_dequant(scale):
    x = integers(np.random.default_rng(0), (2, 60), np.int32)
    same(run(Dequant(scale), x), naive.dequant(x, scale), np.float32)


@pytest.mark.parametrize(
    ("kernel", "arrays", "says"),
    [
        (
            AddShift(0, 0),
            [np.zeros((1, 3), np.int8), np.zeros((1, 4), np.int8)],
            "do not broadcast",
        ),
        (
            AddShift(0, 0),
            [np.zeros((1, 3), np.int8), np.zeros((1, 3), np.float32)],
            "signed integers",
        ),
        (
            AddShift(0, 0, 8, 2),
            [np.zeros((1, 3), np.int8), np.zeros((1, 3), np.int8)],
            "sign of a sum",
        ),
        (
            ChannelAffine(np.zeros(3, np.int8), np.zeros(3, int), Rescale.from_shift(0, 8)),
            [np.zeros((1, 4), np.int8)],
            "do not match",
        ),
        (Relu(), [np.zeros((1, 3), np.float32)], "signed integers"),
        (Quant(1.0, 8), [np.zeros((1, 3), np.float64)], "requires float32"),
        (Quant(0.0, 8), [np.zeros((1, 3), np.float32)], "positive and finite"),
        (Quant(3.0, 8, "luna"), [np.zeros((1, 3), np.float32)], "must be a power of two"),
        (Quant(3.0, 8, "other"), [np.zeros((1, 3), np.float32)], "unknown quantization rule"),
        (Requant(Rescale.from_shift(0, 8)), [np.zeros((1, 3), np.uint8)], "signed integers"),
    ],
)
def test_what_does_not_fit_is_named(kernel, arrays, says):
    with pytest.raises(SimulatorError, match=says):
        run(kernel, *arrays)


@pytest.mark.parametrize("samples", (0, 1, 3))
@pytest.mark.parametrize("kernel", (AddShift(1, 0), Mul(Rescale.from_shift(5, 8))))
@pytest.mark.parametrize("names", (("x", "c"), ("c", "x"), ("x", "x")))
def test_an_operand_of_one_sample_serves_all(samples, kernel, names):
    """A constant has no batch: its numbers repeat for every sample."""
    rng = np.random.default_rng(1)
    x, constant = integers(rng, (samples, 3, 4)), integers(rng, (1, 3, 4))
    steps = [Step(Constant(constant), (), ("c",)), Step(kernel, names, ("y",))]
    program = compile_program(steps, {"x": TensorSpec((1, 3, 4), np.dtype(np.int8))}, ["y"])
    operands = {"x": x, "c": np.repeat(constant, samples, axis=0)}
    a, b = (operands[name] for name in names)
    want = (
        naive.add_shift(a, b, 1, 0, 8, 1)
        if isinstance(kernel, AddShift)
        else naive.mul(a, b, triple(kernel.rescale))
    )
    same(dict(program.run({"x": x}))["y"], want, np.int8)


@pytest.mark.parametrize("saturate", (True, False))
@pytest.mark.parametrize("shift", (-12, -3, 0, 2))
def test_a_table_behind_a_requantization_is_looked_up_at_once(shift, saturate):
    """Each of the 256 bytes gives what the two kernels give one after the other."""
    values = integers(np.random.default_rng(2), (1 << 16,))
    requant, table = Requant(Rescale.from_shift(shift, 16), saturate), Table(values)
    steps = [Step(requant, ("x",), ("wide",)), Step(table, ("wide",), ("y",))]
    x = {"x": BYTES.reshape(1, -1)}
    specs = {"x": TensorSpec((1, 256), np.dtype(np.int8))}
    want = dict(compile_program(steps, specs, ["wide", "y"]).run(x))["y"]
    assert isinstance(requant.fuse(table, [specs["x"]]), Table)
    same(dict(compile_program(steps, specs, ["y"]).run(x))["y"], want, np.int8)
    assert requant.fuse(table, [TensorSpec((1, 256), np.dtype(np.int16))]) is None
    assert requant.fuse(Relu(), [specs["x"]]) is None
