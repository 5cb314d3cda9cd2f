"""Tables, softmax, log-softmax and layer normalisation against their oracles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import LayerNorm, LogSoftmax, Softmax, Table, all_integers, make_input_table
from simulator.piecewise import load_piecewise
from simulator.program import SimulatorError
from tests.oracles import curves as naive
from tests.simulator.helpers import SEEDS, few, integers, rescales, run, same, triple

TABLES = [
    (function, chip) for chip in ("venus", "arcs", "venusA") for function in ("sigmoid", "tanh")
]
WAYS = ("divide", "fused", "newton")


# ---- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "chip"), [*TABLES, ("gelu", "venusA"), ("swish", "venusA")])
def test_pieces(function, chip):
    table = load_piecewise(function, chip)
    top = 1 << (table.bits - 1)
    edges = [int(b) + d for b in table.borders for d in (-1, 0, 1)]
    x = np.array([v for v in {*edges, *(-e for e in edges), 0, -top, top - 1} if -top <= v < top])
    assert table(x).tolist() == [naive.piece(function, chip, int(v)) for v in x]


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (np.int8, np.int16))
@pytest.mark.parametrize("shape", ((7,), (2, 3, 4, 5)))
def test_table(dtype, shape):
    rng = np.random.default_rng(0)
    bits = 8 * np.dtype(dtype).itemsize
    values = integers(rng, 1 << bits)
    x = integers(rng, shape, dtype)
    x.flat[0], x.flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    same(run(Table(values), x), values[x.astype(int) + (1 << (bits - 1))], np.int8)
    assert all_integers(bits)[[0, -1]].tolist() == [np.iinfo(dtype).min, np.iinfo(dtype).max]


def test_table_of_another_width():
    with pytest.raises(SimulatorError, match="a table of \\[256\\] entries does not match int16"):
        run(Table(np.zeros(256, np.int8)), np.zeros((1, 4), np.int16))


# ---- softmax ---------------------------------------------------------------------------------------------------------


@few
@given(
    SEEDS,
    st.sampled_from(WAYS),
    st.integers(0, 10),
    st.booleans(),
    st.sampled_from([1, 2, 9, 40]),
    rescales((5, 10)),
)
def test_softmax(seed, way, q, extremes, length, rescale):
    x = integers(np.random.default_rng(seed), (3, length), extremes=extremes)
    got = run(Softmax(make_input_table(2.0 ** (25 - q), 8), rescale, division_mode=way), x)
    want = np.array([naive.softmax(row.tolist(), 2 ** (25 - q), way, triple(rescale)) for row in x])
    same(got, want, np.int8)


@few
@given(
    SEEDS,
    st.sampled_from(WAYS),
    st.floats(0.7, 500.0),
    st.sampled_from([1, 7, 8, 33]),
    st.sampled_from((8, 16)),
    rescales((5, 10)),
)
def test_softmax_of_any_scale(seed, way, scale, length, bits, rescale):
    """Differences of equal integers differ in Q25, and 16-bit integers have no table of e."""
    ratio = 2.0**25 / scale
    m, s = (r := Rescale.from_ratio(ratio, 32)).multiplier, r.shift
    x = integers(np.random.default_rng(seed), (3, length), np.dtype(f"int{bits}"))
    got = run(Softmax(make_input_table(ratio, bits), rescale, division_mode=way), x)
    want = np.array(
        [naive.softmax(row.tolist(), naive.Fraction(m, 2**s), way, triple(rescale)) for row in x]
    )
    same(got, want, np.int8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ("descending", "saturated", "constant"))
def test_softmax_of_unusual_tables(way, table):
    """Rows of all integers; tables that do not ascend give e without a table of powers."""
    entry = {
        "descending": make_input_table(2.0**21, 8)[::-1],
        "saturated": make_input_table(2.0**26, 8),
        "constant": np.zeros(256, np.int64),
    }[table]
    x = np.random.default_rng(4).permutation(np.arange(-128, 128)).astype(np.int8)[None]
    got = run(Softmax(entry.copy(), Rescale.from_shift(0, 32), division_mode=way), x)
    # a 16-bit input takes the other loop, whose integers the tests above compare
    wide = np.concatenate([np.full(1 << 15, entry[0]), entry, np.full((1 << 15) - 256, entry[-1])])
    want = run(
        Softmax(wide, Rescale.from_shift(0, 32), division_mode=way), x.astype(np.int16) + 128
    )
    same(got, want, np.int32)


@few
@given(
    SEEDS,
    st.sampled_from(WAYS[:2]),
    st.floats(0.7, 500.0),
    st.sampled_from([1, 3, 40]),
    rescales((8, 13)),
)
def test_log_softmax(seed, way, scale, length, rescale):
    ratio = 2.0**25 / scale
    m, s = (r := Rescale.from_ratio(ratio, 32)).multiplier, r.shift
    x = integers(np.random.default_rng(seed), (3, length))
    got = run(LogSoftmax(make_input_table(ratio, 8), rescale, division_mode=way), x)
    want = np.array(
        [
            naive.log_softmax(row.tolist(), naive.Fraction(m, 2**s), way, triple(rescale))
            for row in x
        ]
    )
    same(got, want, np.int8)


def test_softmax_of_constant_rows_beyond_int32():
    """The sum of 600 equal powers is cut to int32."""
    x = np.full((1, 600), 5, np.int8)
    for way in WAYS:
        kernel = Softmax(make_input_table(2.0**21, 8), Rescale.from_shift(0, 32), division_mode=way)
        want = naive.softmax(x[0].tolist(), 2**21, way, (1 << 30, 30, 32))
        assert run(kernel, x)[0].tolist() == want


@pytest.mark.parametrize("axis", (-1, -2, 1, 2))
def test_rows_of_several_axes(axis):
    x = integers(np.random.default_rng(1), (4, 3, 5))
    entry, rescale = make_input_table(2.0**21, 8), Rescale.from_shift(8, 8)
    got = run(Softmax(entry, rescale, axis=axis), x)
    rows = x.reshape(math.prod(x.shape[: axis % 3]), -1)
    want = np.array([naive.softmax(row.tolist(), 2**21, "divide", triple(rescale)) for row in rows])
    same(got, want.reshape(x.shape), np.int8)


def test_softmax_is_near_the_real_one():
    """Law: within 1 count of 2^15 of the real function, for whatever way."""
    x = integers(np.random.default_rng(2), (50, 12))
    real = np.exp(x / 16.0 - x.max(axis=1, keepdims=True) / 16.0)
    real *= 2.0**15 / real.sum(axis=1, keepdims=True)
    for way in WAYS:
        got = run(
            Softmax(make_input_table(2.0**21, 8), Rescale.from_shift(0, 32), division_mode=way), x
        )
        assert np.abs(got - real).max() <= 1.5


@pytest.mark.parametrize("wrong", ({"axis": 2}, {"axis": -3}, {"division_mode": "guess"}))
def test_softmax_refuses(wrong):
    with pytest.raises(SimulatorError):
        run(
            Softmax(make_input_table(2.0**21, 8), Rescale.from_shift(8, 8), **wrong),
            np.zeros((1, 4), np.int8),
        )


def test_rows_over_samples_are_not_split():
    """A row that takes in axis 0 sees all samples at once."""
    x = integers(np.random.default_rng(3), (4, 3))
    got = run(Softmax(make_input_table(2.0**21, 8), Rescale.from_shift(8, 8), axis=0), x)
    want = naive.softmax(x.reshape(-1).tolist(), 2**21, "divide", (1 << 30, 38, 8))
    assert got.reshape(-1).tolist() == want


# ---- layer normalisation ---------------------------------------------------------------------------------------------


@few
@given(
    SEEDS,
    st.sampled_from([1, 2, 8, 17, 64]),
    st.integers(0, 6),
    st.booleans(),
    rescales((6, 14)),
    st.sampled_from([10, 15]),
)
def test_layer_norm(seed, count, q, extremes, rescale, fraction):
    rng = np.random.default_rng(seed)
    x = integers(rng, (4, count), extremes=extremes)
    x[0] = x[0, 0]  # a constant row
    x[1] = np.arange(count) == 0  # nearly constant
    gamma, beta = rng.integers(-128, 128, count), rng.integers(-(2**28), 2**28, count)
    epsilon = math.floor(1e-5 * 4.0**q * count**2 + 0.5)
    assert LayerNorm.scale_epsilon(1e-5, 2.0**q, count) == epsilon
    got = run(LayerNorm(gamma, beta, epsilon, rescale, fraction_bits=fraction), x)
    want = [
        naive.layer_norm(
            r.tolist(), gamma.tolist(), beta.tolist(), epsilon, fraction, triple(rescale)
        )
        for r in x
    ]
    same(got, np.array(want), np.int8)


def test_layer_norm_over_two_axes():
    rng = np.random.default_rng(4)
    x = integers(rng, (3, 2, 4, 5))
    gamma, beta, rescale = (
        rng.integers(-128, 128, 20),
        rng.integers(-999, 999, 20),
        Rescale.from_shift(9, 8),
    )
    got = run(LayerNorm(gamma, beta, 3, rescale, row_axes=2), x)
    want = [
        naive.layer_norm(r.tolist(), gamma.tolist(), beta.tolist(), 3, 10, triple(rescale))
        for r in x.reshape(-1, 20)
    ]
    same(got, np.array(want).reshape(x.shape), np.int8)


@pytest.mark.parametrize("wrong", ({"fraction_bits": 12}, {"row_axes": 0}, {"epsilon": -1}))
def test_layer_norm_refuses(wrong):
    fields = {
        "gamma": np.ones(4, int),
        "beta": np.ones(4, int),
        "epsilon": 1,
        "rescale": Rescale.from_shift(9, 8),
    }
    with pytest.raises(SimulatorError):
        run(LayerNorm(**{**fields, **wrong}), np.zeros((1, 4), np.int8))


@pytest.mark.parametrize("count", (2**16, 2**16 + 1))
def test_layer_norm_of_the_longest_row(count):
    """The squares of 65,536 numbers of 16 bits just fit 62 bits; more would overflow silently."""
    x = np.full((1, count), -(2**15), np.int16)
    x[0, : count // 2] = 2**15 - 1
    ones, zeros = np.ones(count, int), np.zeros(count, int)
    kernel = LayerNorm(ones, zeros, 0, Rescale.from_shift(5, 8))
    if count > 2**16:
        with pytest.raises(SimulatorError, match="sums of rows of 65537 do not fit"):
            run(kernel, x)
        return
    want = naive.layer_norm(
        x[0].tolist(), ones.tolist(), zeros.tolist(), 0, 10, triple(kernel.rescale)
    )
    same(run(kernel, x), np.array([want]), np.int8)
