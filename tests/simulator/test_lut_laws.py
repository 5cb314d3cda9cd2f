"""Laws of the tables: what is monotone, what is symmetric, where the ends are, and exactly where
not.

A piece is a straight line with a slope of at least 0 (gelu and swish: of either sign) that is
rounded down, so between two borders nothing steps down. What is checked at the borders therefore
holds for every integer.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import Glu, LayerNorm, LogSoftmax, Softmax, make_input_table
from simulator.piecewise import evaluate_curve, load_piecewise
from tests.oracles import curves as naive
from tests.oracles import fixed
from tests.simulator.helpers import SEEDS, few, integers, more, rescales, run, same, triple

CHIPS = ("venus", "arcs", "venusA")
TABLES = [(function, chip) for chip in CHIPS for function in ("sigmoid", "tanh")]
ALL = [*TABLES, ("gelu", "venusA"), ("swish", "venusA")]
WAYS = ("divide", "fused", "newton")


def top_of(table):
    return 1 << (table.bits - 1)


def seams(table):
    """Return the last x of every piece and the next one, on both sides: [k, 2], ascending, within
    the type.
    """
    ends = table.borders[:-1]
    pairs = np.concatenate([np.stack([-ends - 1, -ends], 1)[::-1], np.stack([ends, ends + 1], 1)])
    return pairs[(pairs[:, 0] >= -top_of(table)) & (pairs[:, 1] < top_of(table))]


# ---- the formula -----------------------------------------------------------------------------------------------------


@more
@given(st.data(), st.sampled_from(ALL))
def test_any_integer(data, which):
    """Table, table rounded to any width, and the form for kernels, against the oracle."""
    function, chip = which
    table = load_piecewise(function, chip)
    x = data.draw(st.integers(-top_of(table), top_of(table) - 1))
    line = naive.piece(function, chip, x)
    assert table(x) == line
    bits, fraction = data.draw(st.sampled_from([8, 16, 32])), data.draw(st.integers(4, 31))
    assert table.evaluate_to_fraction(x, fraction, bits) == fixed.sat(
        fixed.rsh(line, table.fraction_bits - fraction), bits
    )
    if which in TABLES:
        want = naive.curve(function, chip, x, bits)
        assert table.evaluate_rounded(x, bits) == want
        assert evaluate_curve(table.curve(bits), x) == want


@pytest.mark.parametrize(("function", "chip"), ALL)
def test_nothing_lies_beyond_the_last_border(function, chip):
    table = load_piecewise(function, chip)
    assert table.borders[-1] == top_of(table)
    with pytest.raises(ValueError, match="the last segment, which ends at"):
        table(np.array([0, -top_of(table) - 1]))


# ---- monotone --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "chip"), TABLES)
def test_slopes_are_not_negative(function, chip):
    assert (load_piecewise(function, chip).slopes >= 0).all()


@pytest.mark.parametrize("bits", (8, 16))
@pytest.mark.parametrize(("function", "chip"), TABLES)
def test_monotone(function, chip, bits):
    """Law: in the formats that are read, no step goes down; both ends are those of the function."""
    table = load_piecewise(function, chip)
    y = table.evaluate_rounded(seams(table), bits)
    assert (y[:, 1] >= y[:, 0]).all()
    ends = table.evaluate_rounded(np.array([-top_of(table), top_of(table) - 1]), bits)
    top = 1 << (bits - 1)
    assert ends.tolist() == [0 if function == "sigmoid" else -top, top - 1]


#: Where the whole table steps down: |x| of the last integer of a piece -> by how many counts of Q31 (of Q15 on venus).
STEPS_DOWN = {
    ("sigmoid", "venus"): {},
    ("tanh", "venus"): {},
    ("sigmoid", "arcs"): {384154475: 2, 759830874: 2},
    ("tanh", "arcs"): {358241226: 1},
    ("sigmoid", "venusA"): {
        63656107: 2,
        329433241: 2,
        384154475: 2,
        515399149: 4,
        679940425: 4,
        759830874: 9,
        965402453: 5,
    },
    ("tanh", "venusA"): {281591256: 6, 358241226: 1, 403095772: 2, 530372454: 4},
}


@pytest.mark.parametrize(("function", "chip"), TABLES)
def test_where_the_whole_table_steps_down(function, chip):
    """At some borders, by at most 9 counts of Q31, of which Q15 has 65536 to one: the next line
    begins lower.
    """
    table = load_piecewise(function, chip)
    pairs = seams(table)
    y = table(pairs)
    down = pairs[y[:, 1] < y[:, 0]]
    found = {int(min(abs(a), abs(b))) for a, b in down}
    assert found == set(STEPS_DOWN[function, chip])
    unit = table.fraction_bits - 31 if table.fraction_bits > 31 else 0
    for (a, b), low, high in zip(pairs, y[:, 1], y[:, 0], strict=True):
        most = STEPS_DOWN[function, chip].get(int(min(abs(a), abs(b))), 0)
        assert high - low <= most << unit


@pytest.mark.parametrize(
    ("function", "lowest", "jump"), (("gelu", -0.8193, 80199), ("swish", -1.2352, 136392))
)
def test_gelu_and_swish_have_one_valley(function, lowest, jump):
    """Their lines fall up to the border where the real function has its least value, and rise from
    there on.

    They are not monotone on either side of it all the same: the lines do not meet. The next one
    begins lower or higher by up to 0.0006 (gelu) and 0.0010 (swish), on the outer pieces against
    the function's direction.
    """
    table = load_piecewise(function, "venusA")
    border = table.borders[np.abs(table.borders / 2.0**27 + lowest).argmin()]
    assert border / 2.0**27 == pytest.approx(-lowest, abs=1e-3)
    falling = table.borders > border  # the pieces beyond the valley; those within rise
    assert (table.slopes_negative[falling] <= 0).all()
    assert (table.slopes_negative[~falling] >= 0).all()
    assert (table.slopes >= 0).all()
    y = table.evaluate_to_fraction(seams(table), 27, 34)
    steps = y[:, 1] - y[:, 0]
    assert np.abs(steps).max() == jump
    assert (steps[-4:] < 0).all()


# ---- symmetric -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
def test_symmetry_of_venus(function):
    """y(x) + y(-x), exhaustively: 2^15 - 1 for sigmoid, -1 for tanh, as each line is rounded down.
    So tanh is not odd.

    One more where the line is an integer: sigmoid at 0, tanh at 0 and 9 places.
    """
    x = np.arange(1, 1 << 15)
    table = load_piecewise(function, "venus")
    both = table(x) + table(-x) - (32767 if function == "sigmoid" else 0)
    if function == "sigmoid":
        assert not both.any()
        assert table(0) == 1 << 14
    else:
        j = np.searchsorted(table.borders, x)
        whole = table.slopes[j] * x % (1 << table.down[j]) == 0
        assert whole.sum() == 9
        assert np.array_equal(both, np.where(whole, 0, -1))
        assert table(0) == 0


@more
@given(st.integers(1, 2**31 - 1), st.sampled_from(["sigmoid", "tanh"]))
def test_symmetry_of_arcs(x, function):
    """As on venus: one count of Q31 short, but where the line is an integer."""
    table = load_piecewise(function, "arcs")
    j = int(np.searchsorted(table.borders, x))
    whole = int(table.slopes[j]) * x % 2**27 == 0
    assert table(x) + table(-x) == (2**31 if function == "sigmoid" else 0) - (not whole)


@more
@given(st.integers(1, 2**31 - 1))
def test_symmetry_of_venus_a(x):
    """In Q58 tanh is odd; sigmoid is short of 1 by 8 counts of Q31 on the pieces whose biases do
    not add up to 1.
    """
    tanh, sigmoid = load_piecewise("tanh", "venusA"), load_piecewise("sigmoid", "venusA")
    assert tanh(x) == -tanh(-x)
    j = int(np.searchsorted(sigmoid.borders, x))
    short = int(sigmoid.positive[j] + sigmoid.negative[j]) != 2**28
    assert sigmoid(x) + sigmoid(-x) == 2**58 - short * 2**30


@more
@given(st.data(), st.sampled_from(CHIPS), st.sampled_from([8, 16]))
def test_rounded_tanh_is_odd_but_at_the_ends(data, chip, bits):
    """The largest integer stands against the least one, which is larger by 1; elsewhere -1, 0 or 1
    is left by ties.
    """
    table, top = load_piecewise("tanh", chip), 1 << (bits - 1)
    x = data.draw(st.integers(1, top_of(table) - 1))
    y, z = (int(table.evaluate_rounded(v, bits)) for v in (x, -x))
    if (y, z) != (top - 1, -top):
        assert abs(y + z) <= 1
    assert table.evaluate_rounded(-top_of(table), bits) == table.evaluate_rounded(
        1 - top_of(table), bits
    )


@more
@given(st.integers(1, 2**31 - 1), st.sampled_from(["gelu", "swish"]))
def test_gelu_and_swish_differ_by_x(x, function):
    """y(x) - y(-x) = x, exactly in Q27."""
    table = load_piecewise(function, "venusA")
    assert table.evaluate_to_fraction(x, 27, 33) - table.evaluate_to_fraction(-x, 27, 33) == x


# ---- rows ------------------------------------------------------------------------------------------------------------


def row_kernel(kind, way, bits, rescale):
    """Return a softmax or log-softmax of integers at scale 2^4."""
    return kind(make_input_table(2.0**21, bits), rescale, division_mode=way)


KINDS = [(Softmax, way) for way in WAYS] + [(LogSoftmax, way) for way in WAYS[:2]]
Q15 = Rescale.from_shift(0, 32)


@few
@given(
    SEEDS, st.sampled_from(KINDS), st.sampled_from([np.int8, np.int16]), st.sampled_from([1, 3, 40])
)
def test_rows_of_either_width(seed, kind, dtype, length):
    """The kernels on int8 and int16 against the oracles; int16 reaches beyond Q25's int32, where it
    saturates.
    """
    kernel, way = kind
    bits = 8 * np.dtype(dtype).itemsize
    x = integers(np.random.default_rng(seed), (2, length), dtype)
    oracle = naive.softmax if kernel is Softmax else naive.log_softmax
    want = np.array([oracle(row.tolist(), 2**21, way, triple(Q15)) for row in x])
    same(run(row_kernel(kernel, way, bits, Q15), x), want, np.int32)


@few
@given(SEEDS, st.sampled_from(KINDS), st.integers(2, 40))
def test_rows_know_no_order_and_no_offset(seed, kind, length):
    """Law: the same numbers in another order, or all larger by a constant, get the same; a larger
    one gets no less.
    """
    rng = np.random.default_rng(seed)
    x = rng.integers(-60, 60, (3, length)).astype(np.int8)
    kernel = row_kernel(*kind, 8, Q15)
    y, order = run(kernel, x), rng.permutation(length)
    assert np.array_equal(run(kernel, x[:, order]), y[:, order])
    assert np.array_equal(run(kernel, x + np.int8(67)), y)
    ascending = np.take_along_axis(y, np.argsort(x, axis=1), axis=1)
    assert (np.diff(ascending, axis=1) >= 0).all()


@pytest.mark.parametrize("way", WAYS)
def test_softmax_at_both_ends(way):
    """One number far above the others gets all, which is one count too much for eight bits; the
    others get nothing.
    """
    x = np.full((1, 5), -128, np.int8)
    x[0, 2] = 127
    assert abs(run(row_kernel(Softmax, way, 8, Q15), x)[0, 2] - 2**15) <= 1
    assert run(row_kernel(Softmax, way, 8, Rescale.from_shift(8, 8)), x)[0].tolist() == [
        0,
        0,
        127,
        0,
        0,
    ]


@few
@given(SEEDS, st.sampled_from(WAYS), st.integers(1, 40))
def test_shares_add_up(seed, way, length):
    """Law: the shares add up to 1 within half a count each and three for the sum's reciprocal."""
    x = integers(np.random.default_rng(seed), (4, length))
    y = run(row_kernel(Softmax, way, 8, Q15), x)
    assert (y >= 0).all()
    assert np.abs(y.sum(axis=1) - 2**15).max() <= 3 + length / 2


@few
@given(SEEDS, st.sampled_from(WAYS[:2]), st.integers(1, 40))
def test_log_softmax_at_both_ends(seed, way, length):
    """Law: never positive; never below the real logarithm by more than a count of Q15, nor above by
    more than 65.
    """
    x = integers(np.random.default_rng(seed), (4, length))
    y = run(row_kernel(LogSoftmax, way, 8, Q15), x)
    exact = x / 16.0 - x.max(axis=1, keepdims=True) / 16.0
    exact = 2.0**15 * (exact - np.log(np.exp(exact).sum(axis=1, keepdims=True)))
    assert (y <= 0).all()
    assert (y - exact).min() >= -1.0
    assert (y - exact).max() <= 65.0
    assert run(row_kernel(LogSoftmax, way, 8, Rescale.from_shift(10, 8)), x).min() >= -128


@few
@given(SEEDS, st.sampled_from([2, 8, 33]), st.sampled_from([10, 15]))
def test_layer_norm_knows_no_order_and_no_offset(seed, count, fraction):
    """Law: as for softmax; and the negated row is the negated result, but where a tie goes up on
    both sides.
    """
    rng = np.random.default_rng(seed)
    x = rng.integers(-60, 61, (3, count)).astype(np.int8)
    ones, zeros = np.ones(count, np.int64), np.zeros(count, np.int64)
    epsilon = LayerNorm.scale_epsilon(1e-5, 16.0, count)
    kernel = LayerNorm(ones, zeros, epsilon, Rescale.from_shift(0, 32), fraction_bits=fraction)
    y, order = run(kernel, x), rng.permutation(count)
    assert np.array_equal(run(kernel, x[:, order]), y[:, order])
    assert np.array_equal(run(kernel, x + np.int8(67)), y)
    assert (np.diff(np.take_along_axis(y, np.argsort(x, axis=1), axis=1), axis=1) >= 0).all()
    assert set(np.unique(y + run(kernel, -x))) <= {0, 1}


def test_layer_norm_at_both_ends():
    """One number far out of a long row: 2^10 * sqrt(T - 1) counts, and no row has more."""
    for count in (2, 64, 361):
        x = np.zeros((2, count), np.int8)
        x[0, 0], x[1, 0] = 127, -128
        y = run(
            LayerNorm(np.ones(count, int), np.zeros(count, int), 1, Rescale.from_shift(0, 16)), x
        )
        assert np.abs(y[:, 0]).tolist() == pytest.approx(
            [2**10 * math.sqrt(count - 1)] * 2, rel=2e-3
        )
        assert (y[0, 0] > 0, y[1, 0] < 0) == (True, True)
        narrow = run(
            LayerNorm(np.ones(count, int), np.zeros(count, int), 1, Rescale.from_shift(0, 8)), x
        )
        assert narrow[:, 0].tolist() == [127, -128]


# ---- gates -----------------------------------------------------------------------------------------------------------


@few
@given(SEEDS, st.integers(-2, 12), rescales(shifts=(12, 18)))
def test_glu(seed, q, rescale):
    """Against the oracle, gate included: Q27 saturated, sigmoid in Q31, rounded to Q15."""
    x = integers(np.random.default_rng(seed), (2, 3, 8))
    want = np.array(
        [[naive.glu(row.tolist(), q, triple(rescale)) for row in sample] for sample in x]
    )
    same(run(Glu(Glu.gates(q), rescale), x), want, np.int8)


@pytest.mark.parametrize("q", (-2, 0, 3, 4, 7, 12))
def test_gate(q):
    """Law: no gate closes as its number grows; within 2^-9 of the real sigmoid, the worst knot of
    the table.
    """
    gate, x = Glu.gates(q), np.arange(-128, 128) / 2.0**q
    assert (np.diff(gate) >= 0).all()
    assert gate[0] >= 0
    assert gate[-1] <= 2**15
    assert np.abs(gate / 2**15 - 1 / (1 + np.exp(-np.clip(x, -16, 16)))).max() < 2**-9
    assert run(Glu(gate, Rescale.from_shift(15, 8)), np.array([[[0, 99]]], np.int8)).item() == 0
