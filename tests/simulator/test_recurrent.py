"""LSTM and GRU against the plain-Python steps: shapes, lengths, directions, formats, saturated
sums, time axes.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.fixed_point import ChainedRescale, Rescale
from simulator.kernels import CandidateGru, ExecutorGru, Gru, Lstm
from simulator.kernels.recurrent.layer import RecurrentKernel
from simulator.piecewise import evaluate_curve, load_piecewise
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.case_selection import choose_fast_subset
from tests.oracles import recurrent as naive
from tests.simulator.helpers import SEEDS, few, integers, triple

CHIPS = ("venus", "arcs", "venusA")


def states(kernel, x, **more):
    """Run one layer and return all its outputs."""
    names, feeds = tuple(f"y{i}" for i in kernel.output_indices), {"x": x, **more}
    specs = {
        n: TensorSpec((1, *a.shape[1:]) if kernel.is_per_sample else a.shape, a.dtype)
        for n, a in feeds.items()
    }
    program = compile_program([Step(kernel, tuple(feeds), names)], specs, keep=names)
    assert program.accepts_batches == kernel.is_per_sample
    return [array for _, array in program.run(feeds)]


def layer(seed, gates, kind=np.int8, extremes=False, bias=1 << 14):
    """Return x [N, T, I], weights and biases of a small layer."""
    rng = np.random.default_rng(seed)
    samples, times, inputs, units = rng.integers(1, (4, 6, 7, 6))
    rows = gates * units
    x = integers(rng, (samples, times, inputs), kind, extremes)
    w, r = (integers(rng, (rows, n), np.int8, extremes) for n in (inputs, units))
    b, d = (rng.integers(-bias, bias, rows) for _ in range(2))
    return x, w, r, b, d


def shifted(shift):
    """The chips' way to another format."""
    return ChainedRescale(Rescale.from_shift(0, 32), Rescale.from_shift(shift, 32))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("function", ("sigmoid", "tanh"))
@pytest.mark.parametrize("bits", (8, 16, 32))
def test_follow_is_the_table(chip, function, bits):
    """The form for kernels gives what the arrays give, at the borders of the pieces and
    anywhere.
    """
    table = load_piecewise(function, chip)
    top = 1 << (table.bits - 1)
    near = np.concatenate([table.borders + d for d in (-1, 0, 1)])
    x = np.unique(
        np.concatenate(
            [near, -near, np.random.default_rng(0).integers(-top, top, 200), [0, -top, top - 1]]
        )
    )
    x = x[(x >= -top) & (x < top)]
    curve = table.curve(bits)
    assert [int(evaluate_curve(curve, int(v))) for v in x] == table.evaluate_rounded(
        x, bits
    ).tolist()
    assert table.evaluate_rounded(x, bits).tolist() == [
        naive.curve(function, chip, int(v), bits) for v in x
    ]


@few
@given(
    SEEDS,
    st.sampled_from(CHIPS),
    st.booleans(),
    st.booleans(),
    st.integers(-6, 10),
    st.integers(-6, 10),
    st.integers(5, 9),
    st.sampled_from([1 << 10, 1 << 14, 2**31 - 1]),
)
@example(0, "arcs", True, True, -10, -10, 7, 2**31 - 1)
@example(1, "venus", False, True, 10, 10, 7, 2**31 - 1)
def test_lstm(seed, chip, forward, extremes, shift_x, shift_h, q, bias):
    """Both arithmetics, sums far beyond the gates' range and cells at their limit included."""
    x, w, r, b, d = layer(seed, 4, extremes=extremes, bias=bias)
    arithmetic = "q11" if chip == "venus" else "q27"
    less = 0 if chip == "venus" else 16  # sums have some 14 bits
    shift_x, shift_h = shift_x - less, shift_h - less
    out = Lstm.make_output_rescale(arithmetic, 2.0**q, 8)
    kernel = Lstm(
        w,
        r,
        b,
        d,
        shifted(shift_x),
        shifted(shift_h),
        out,
        forward,
        output_indices=(0, 1, 2),
        arithmetic=arithmetic,
        table=chip,
    )
    y, h, c = states(kernel, x)
    want = naive.lstm(x, w, r, b, d, shift_x, shift_h, triple(out), arithmetic, chip, forward)
    assert (y.dtype, h.dtype, c.dtype) == (np.int8, np.int8, np.int32)
    assert y.tolist() == want[0]
    assert h.tolist() == want[1]
    if arithmetic == "q11":
        units = r.shape[1]
        packed = np.ascontiguousarray(c).view(np.int16)
        assert not packed[..., units:].any()
        c = packed[..., :units]
    assert c.tolist() == want[2]


@few
@given(
    SEEDS,
    st.sampled_from(["q15", "q15_wide"]),
    st.booleans(),
    st.booleans(),
    st.integers(-10, 10),
    st.integers(-10, 10),
    st.integers(5, 9),
)
@example(2, "q15", True, True, -10, -10, 7)
@example(3, "q15_wide", False, True, -10, -10, 7)
def test_lstm_with_gates_of_16_bits(seed, arithmetic, forward, extremes, shift_x, shift_h, q):
    """Later executors of venus: a cell that is cut at 1, and one of 32 bits up to its limit."""
    x, w, r, b, d = layer(seed, 4, extremes=extremes)
    out = Lstm.make_output_rescale(arithmetic, 2.0**q, 8)
    kernel = Lstm(
        w,
        r,
        b,
        d,
        shifted(shift_x),
        shifted(shift_h),
        out,
        forward,
        output_indices=(0, 1, 2),
        arithmetic=arithmetic,
        table="venus",
    )
    y, h, c = states(kernel, x)
    want = naive.lstm(x, w, r, b, d, shift_x, shift_h, triple(out), arithmetic, "venus", forward)
    if arithmetic == "q15":
        units = r.shape[1]
        packed = np.ascontiguousarray(c).view(np.int16)
        assert not packed[..., units:].any()
        c = packed[..., :units]
    assert (y.tolist(), h.tolist(), c.tolist()) == want


@pytest.mark.parametrize("start", (-(2**31), -70000, 2**31 - 1))
def test_products_of_a_large_cell_are_saturated(start):
    """A given cell of 32 bits: the product with the forget gate passes 32 bits and is cut."""
    x, w, r, b, d = layer(8, 4)
    out = Lstm.make_output_rescale("q15_wide", 2.0**7, 8)
    cells = np.full((len(x), 1, r.shape[1]), start, np.int32)
    kernel = Lstm(
        w,
        r,
        b,
        d,
        shifted(2),
        shifted(2),
        out,
        output_indices=(0, 1, 2),
        state_inputs=("c",),
        arithmetic="q15_wide",
        table="venus",
    )
    have = states(kernel, x, c=cells)
    want = naive.lstm(x, w, r, b, d, 2, 2, triple(out), "q15_wide", "venus", True, cells=cells)
    assert tuple(a.tolist() for a in have) == want


@pytest.mark.slow
@few
@given(
    SEEDS,
    st.booleans(),
    st.floats(0.1, 9),
    st.floats(0.1, 9),
    st.sampled_from([8, 16]),
    st.floats(90, 200),
)
def test_lstm_of_any_scales(seed, forward, ratio_x, ratio_h, bits, scale):
    """The generic target: sums requantized by multiplication, states of 8 and 16 bits, 16-bit
    inputs.
    """
    x, w, r, b, d = layer(seed, 4, kind=np.int16 if bits == 16 else np.int8)
    to_x, to_h = (Rescale.from_ratio(v * 1000, 32) for v in (ratio_x, ratio_h))
    out = Lstm.make_output_rescale("q27", scale * (1 if bits == 8 else 256), bits)
    kernel = Lstm(w, r, b, d, to_x, to_h, out, forward, output_indices=(0, 2))
    y, c = states(kernel, x)
    want = naive.lstm(
        x, w, r, b, d, triple(to_x), triple(to_h), triple(out), "q27", "arcs", forward
    )
    assert y.dtype == out.dtype
    assert (y.tolist(), c.tolist()) == (want[0], want[2])


@few
@given(
    SEEDS,
    st.sampled_from(CHIPS),
    st.booleans(),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(6, 8),
)
def test_gru_of_the_executor(seed, chip, extremes, shift_x, shift_h, q):
    """Its faults and all."""
    x, w, r, b, d = layer(seed, 3, extremes=extremes)
    out = Rescale.from_shift(14 - q, 8)
    kernel = ExecutorGru(
        w,
        r,
        b,
        d,
        shifted(shift_x),
        shifted(shift_h),
        out,
        table=chip,
        uses_state_sums=chip != "venusA",
    )
    y, h = states(kernel, x)
    want = naive.gru_executor(x, w, r, b, d, shift_x, shift_h, triple(out), chip, chip != "venusA")
    assert (y.tolist(), h.tolist()) == want


def later_gru(chip, parts, sums, q_h, q_o, forward, **more):
    """Return the kernel of a later executor; `sums` are log2 of the scales of both gate sums."""
    if chip == "venus":
        return CandidateGru(
            *parts,
            *(shifted(q - 11) for q in sums),
            Rescale.from_shift(15 - q_h, 8),
            forward,
            increment_rescale=Rescale.from_shift(15 + q_h - q_o, 32),
            **more,
        )
    bits = max(sums) if chip == "venusA" else 27
    return Gru(
        *parts,
        *(shifted(q - bits) for q in sums),
        Rescale.from_shift(31 - q_h, 8),
        forward,
        reset_after=chip == "venusA",
        table=chip,
        saturates_candidate=False,
        sum_fraction_bits=bits,
        **more,
    )


@few
@given(
    SEEDS,
    st.sampled_from(CHIPS),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(11, 32), st.integers(11, 32)),
    st.integers(5, 9),
    st.integers(-2, 2),
    st.booleans(),
)
@example(5, "venus", True, True, (11, 11), 7, 0, True)
@example(6, "arcs", True, True, (11, 30), 7, 0, True)
@example(7, "venusA", False, True, (32, 11), 7, 0, True)
def test_gru_of_later_executors(seed, chip, forward, extremes, sums, q_h, more, starts):
    """Each chip's own unit: sums of any scales, states that are given, n above the state's
    largest number.
    """
    x, w, r, b, d = layer(seed, 3, extremes=extremes, bias=2**31 - 1 if sums[0] > 24 else 1 << 14)
    feeds = {}
    if starts:
        feeds["h"] = integers(np.random.default_rng(seed), (len(x), 1, r.shape[1]), np.int8)
    kernel = later_gru(
        chip, (w, r, b, d), sums, q_h, q_h + more, forward, state_inputs=tuple(feeds)
    )
    y, h = states(kernel, x, **feeds)
    want = naive.gru_of_later_executors(
        chip, x, w, r, b, d, sums, q_h, q_h + more, forward, feeds.get("h")
    )
    assert (y.tolist(), h.tolist()) == want


@few
@given(
    SEEDS,
    st.booleans(),
    st.booleans(),
    st.sampled_from([8, 16]),
    st.floats(0.1, 9),
    st.floats(90, 200),
)
def test_gru(seed, forward, reset_after, bits, ratio, scale):
    """The unit as it is defined, both places of the reset gate, states of 8 and 16 bits."""
    x, w, r, b, d = layer(seed, 3, kind=np.int16 if bits == 16 else np.int8)
    to_x, to_h = (Rescale.from_ratio(v * 1000, 32) for v in (ratio, 2 * ratio))
    out = Gru.make_output_rescale(scale * (1 if bits == 8 else 256), bits)
    kernel = Gru(
        w,
        r,
        b,
        d,
        to_x,
        to_h,
        out,
        forward,
        reset_after=reset_after,
        gate_bits=32 if bits == 8 else 16,
    )
    y, h = states(kernel, x)
    want = naive.gru(
        x,
        w,
        r,
        b,
        d,
        triple(to_x),
        triple(to_h),
        triple(out),
        bits,
        32 if bits == 8 else 16,
        reset_after,
        forward,
    )
    assert (y.tolist(), h.tolist()) == want


def beginnings(seed, x, units, kind):
    """Return lengths from 0 to T, states of `kind` and cells of up to 4.0 for every sample."""
    rng = np.random.default_rng(seed + 1)
    return {
        "lengths": rng.integers(0, x.shape[1] + 1, len(x)),
        "h": integers(rng, (len(x), 1, units), kind),
        "c": rng.integers(-(1 << 17), 1 << 17, (len(x), 1, units)).astype(np.int32),
    }


WHAT = st.sets(st.sampled_from(["lengths", "h", "c"])).map(
    lambda s: [k for k in ("lengths", "h", "c") if k in s]
)


@few
@given(SEEDS, st.booleans(), WHAT, st.sampled_from(choose_fast_subset(1, [8, 16])))
@example(3, False, ["lengths", "h", "c"], 8)
def test_lstm_of_given_states(seed, forward, what, bits):
    """Lengths, states and cells, any of them, as inputs and, for one sample, as constants."""
    kind = np.int8 if bits == 8 else np.int16
    x, w, r, b, d = layer(seed, 4)
    more = {
        key: array for key, array in beginnings(seed, x, r.shape[1], kind).items() if key in what
    }
    to = Rescale.from_ratio(3000.0, 32)
    out = Lstm.make_output_rescale("q27", 100.0 * (1 if bits == 8 else 256), bits)
    parts = (w, r, b, d, to, to, out, forward)
    have = states(Lstm(*parts, output_indices=(0, 1, 2), state_inputs=tuple(what)), x, **more)
    how = (w, r, b, d, triple(to), triple(to), triple(out), "q27", "arcs", forward)
    want = naive.lstm(x, *how, more.get("h"), more.get("c"), more.get("lengths"))
    assert [a.tolist() for a in have] == list(want)
    fixed = {key: array[:1] for key, array in more.items()}
    alone = states(Lstm(*parts, output_indices=(0, 1, 2), constant_states=fixed), x[:1])
    assert [a.tolist() for a in alone] == [rows[:1] for rows in want]


@few
@given(SEEDS, st.booleans(), st.booleans(), WHAT, st.sampled_from(choose_fast_subset(1, [8, 16])))
@example(4, False, False, ["lengths", "h"], 8)
def test_gru_of_given_states(seed, forward, reset_after, what, bits):
    """As for the LSTM."""
    what, kind = [key for key in what if key != "c"], np.int8 if bits == 8 else np.int16
    x, w, r, b, d = layer(seed, 3)
    more = {
        key: array for key, array in beginnings(seed, x, r.shape[1], kind).items() if key in what
    }
    to, out = (
        Rescale.from_ratio(3000.0, 32),
        Gru.make_output_rescale(100.0 * (1 if bits == 8 else 256), bits),
    )
    gates = 32 if bits == 8 else 16
    kernel = Gru(
        w,
        r,
        b,
        d,
        to,
        to,
        out,
        forward,
        reset_after=reset_after,
        gate_bits=gates,
        state_inputs=tuple(what),
    )
    have = states(kernel, x, **more)
    want = naive.gru(
        x,
        w,
        r,
        b,
        d,
        triple(to),
        triple(to),
        triple(out),
        bits,
        gates,
        reset_after,
        forward,
        more.get("h"),
        more.get("lengths"),
    )
    assert [a.tolist() for a in have] == list(want)


@pytest.mark.slow
@few
@given(SEEDS, st.integers(0, 6), st.sampled_from(["LSTM", "GRU"]))
def test_a_sequence_in_two_calls(seed, cut, kind):
    """The states of the first part, given to the second, go on as if nothing had happened."""
    x, w, r, b, d = layer(seed, 4 if kind == "LSTM" else 3)
    cut, to = min(cut, x.shape[1]), Rescale.from_ratio(3000.0, 32)
    build, keys = (Lstm, ("h", "c")) if kind == "LSTM" else (Gru, ("h",))
    out = (
        Lstm.make_output_rescale("q27", 100.0, 8)
        if kind == "LSTM"
        else Gru.make_output_rescale(100.0, 8)
    )
    parts, kept = (w, r, b, d, to, to, out), tuple(range(1 + len(keys)))
    whole = states(build(*parts, output_indices=kept), x)
    ends = {
        key: np.zeros((len(x), 1, r.shape[1]), np.int8 if key == "h" else np.int32) for key in keys
    }
    pieces = []
    for piece in (x[:, :cut], x[:, cut:]):
        if piece.shape[1]:
            y, *last = states(build(*parts, output_indices=kept, state_inputs=keys), piece, **ends)
            ends = dict(zip(keys, last, strict=True))
            pieces.append(y)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole[0])
    for key, array in zip(keys, whole[1:], strict=True):
        np.testing.assert_array_equal(ends[key], array)


def test_given_states_that_do_not_fit():
    """Names, sizes and types."""
    x, w, r, b, d = layer(6, 3)
    parts = (
        w,
        r,
        b,
        d,
        Rescale.from_ratio(9.0, 32),
        Rescale.from_ratio(9.0, 32),
        Gru.make_output_rescale(100.0, 8),
    )
    units = r.shape[1]
    with pytest.raises(SimulatorError, match="has no state 'c'"):
        Gru(*parts, constant_states={"c": np.zeros((1, 1, units), np.int32)})
    with pytest.raises(SimulatorError, match="'h' must be int8"):
        states(Gru(*parts, state_inputs=("h",)), x, h=np.zeros((len(x), 1, units), np.int16))
    with pytest.raises(SimulatorError, match="'lengths' must be integers"):
        states(Gru(*parts, state_inputs=("lengths",)), x, lengths=np.ones((len(x), 2), np.int64))
    with pytest.raises(SimulatorError, match="expected inputs x, h"):
        states(Gru(*parts, state_inputs=("h",)), x)


@pytest.mark.parametrize("forward", (True, False))
def test_time_first(forward):
    """Axis 0 as time: the same numbers, and batches are not cut."""
    x, w, r, b, d = layer(3, 4)
    parts = (
        w,
        r,
        b,
        d,
        shifted(-10),
        shifted(-10),
        Lstm.make_output_rescale("q27", 128.0, 8),
        forward,
    )
    first = states(Lstm(*parts, output_indices=(0, 1, 2)), x)
    second = states(
        Lstm(*parts, time_axis=0, output_indices=(0, 1, 2)), np.ascontiguousarray(x.swapaxes(0, 1))
    )
    for one, other in zip(first, second, strict=True):
        assert one.swapaxes(0, 1).tolist() == other.tolist()


def test_what_does_not_fit():
    """Weights and inputs of other sizes are errors."""
    x, w, r, b, d = layer(5, 4)
    parts = (b, d, shifted(-10), shifted(-10), Lstm.make_output_rescale("q27", 128.0, 8))
    with pytest.raises(SimulatorError, match="inconsistent weights"):
        Lstm(w[:-1], r, *parts)
    with pytest.raises(SimulatorError, match="requires integers"):
        states(Lstm(w, r, *parts), np.concatenate([x, x], axis=2))
    with pytest.raises(NotImplementedError):
        RecurrentKernel(
            w[: r.shape[1]], r[: r.shape[1]], b[: r.shape[1]], d[: r.shape[1]], *parts[2:]
        ).make_step_function()


def test_same_integers_for_any_batch_and_threads():
    """Blocks and threads change nothing."""
    rng = np.random.default_rng(9)
    w, r = (integers(rng, (12, n)) for n in (4, 3))
    zero = np.zeros(12, np.int64)
    kernel = Lstm(
        w,
        r,
        zero,
        zero,
        shifted(-14),
        shifted(-14),
        Lstm.make_output_rescale("q27", 128.0, 8),
        output_indices=(0,),
    )
    x = integers(rng, (7, 5, 4))
    results = []
    for block, threads in ((1, 1), (3, 2), (7, 1)):
        program = compile_program(
            [Step(kernel, ("x",), ("y",))],
            {"x": TensorSpec((1, 5, 4), np.int8)},
            ["y"],
            block=block,
            threads=threads,
        )
        results.append(dict(program.run({"x": x}))["y"].tolist())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("chip", ("venus", "arcs"))
def test_plain_python_gives_the_same_integers(monkeypatch, chip):
    """Law: without Numba, where products of two 8-bit numbers would keep their type, nothing
    overflows.
    """
    x, w, r, b, d = layer(0, 4, extremes=True)
    arithmetic = "q11" if chip == "venus" else "q27"
    out = Lstm.make_output_rescale(arithmetic, 2.0**7, 8)
    kernel = Lstm(
        w,
        r,
        b,
        d,
        shifted(-6),
        shifted(-6),
        out,
        output_indices=(0, 1, 2),
        arithmetic=arithmetic,
        table=chip,
    )
    compiled = states(kernel, x)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", True)
    plain = states(kernel, x)
    assert [a.tolist() for a in plain] == [a.tolist() for a in compiled]
