"""Recurrent layers of the training side's arithmetic against their oracles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import TrainedGru, TrainedLstm
from simulator.program import Step, TensorSpec, compile_program
from tests.case_selection import choose_fast_subset
from tests.oracles import training
from tests.simulator.helpers import SEEDS, few, integers

LSTMS = st.sampled_from(("q15", "q7"))
GRUS = st.sampled_from(
    (("q15", "venus"), ("q7", "venus"), ("before", "arcs"), ("common", "venusA"))
)
#: Right shifts of the second rounding; one to the left is another form, which compiles another kernel.
AGAIN = choose_fast_subset(3, (0, 1, 2, -1))


def layer(seed, gates, times, units, wild):
    """Weights, biases and an input; wild ones drive the gates into saturation and beyond the
    table.
    """
    rng = np.random.default_rng(seed)
    inputs = 3
    x = integers(rng, (2, times, inputs))
    w, r = integers(rng, (gates * units, inputs)), integers(rng, (gates * units, units))
    if not wild:
        w, r = (a // 4 for a in (w, r))
    biases = [
        rng.integers(-(10**5 if wild else 2000), 10**5 if wild else 2000, gates * units)
        for _ in range(2)
    ]
    return x, w, r, *biases


def states(kernel, x):
    """Run a layer and return all its outputs."""
    names = tuple("yhc"[: 1 + len(kernel.final_state_specs(1))])
    program = compile_program(
        [Step(kernel, ("x",), names)], {"x": TensorSpec((1, *x.shape[1:]), x.dtype)}, keep=names
    )
    return [array.tolist() for _, array in program.run({"x": x})]


@few
@given(
    SEEDS,
    LSTMS,
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(3, 7),
    st.sampled_from(AGAIN),
    st.booleans(),
    st.booleans(),
)
def test_lstm(seed, arithmetic, times, units, scale, again, forward, wild):
    x, w, r, b, d = layer(seed, 4, times, units, wild)
    shifts, product = (1, -1), TrainedLstm.fraction_bits[arithmetic][0]
    kernel = TrainedLstm(
        w,
        r,
        b,
        d,
        *(Rescale.from_shift(s, 32) for s in shifts),
        Rescale.from_shift(product - scale, 8),
        forward,
        output_indices=(0, 1, 2),
        arithmetic=arithmetic,
        feedback_rescale=Rescale.from_shift(again, 8),
    )
    want = training.lstm(
        x.tolist(), w, r, b, d, shifts, (product - scale, 8), (again, 8), arithmetic, forward
    )
    assert states(kernel, x) == list(want)


@few
@given(
    SEEDS,
    GRUS,
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(3, 7),
    st.sampled_from(AGAIN),
    st.booleans(),
    st.booleans(),
)
def test_gru(seed, kind, times, units, scale, again, forward, wild):
    arithmetic, chip = kind
    x, w, r, b, d = layer(seed, 3, times, units, wild)
    exponents, sums = (12, 10), {"before": 27, "common": 12}.get(arithmetic, 11)
    shifts = [e - sums for e in exponents]
    kernel = TrainedGru(
        w,
        r,
        b,
        d,
        *(Rescale.from_shift(s, 32) for s in shifts),
        Rescale.from_shift(14 - scale, 8),
        forward,
        output_indices=(0, 1),
        arithmetic=arithmetic,
        table=chip,
        feedback_rescale=Rescale.from_shift(again, 8),
        scale=scale,
        sums=sums if arithmetic == "common" else 27,
    )
    told = sums if arithmetic == "common" else 27
    want = training.gru(
        x.tolist(), w, r, b, d, shifts, scale, 8, (again, 8), told, arithmetic, chip, forward
    )
    assert states(kernel, x) == list(want)


@pytest.mark.parametrize("times_first", (False, True))
def test_states_go_on(times_first):
    """Law: two calls, the second from the states of the first, are one call."""
    x, w, r, b, d = layer(5, 4, 6, 2, False)
    if times_first:
        x = np.ascontiguousarray(x.swapaxes(0, 1))
    axis = 0 if times_first else 1
    made = {"time_axis": axis, "output_indices": (0, 1, 2)}
    shifts = [Rescale.from_shift(shift, 32) for shift in (1, -1)]
    whole = TrainedLstm(w, r, b, d, *shifts, Rescale.from_shift(25, 8), **made)
    again = TrainedLstm(
        w, r, b, d, *shifts, Rescale.from_shift(25, 8), **made, state_inputs=("h", "c")
    )

    def run(kernel, names, *arrays):
        feed = dict(zip(names, arrays, strict=True))
        specs = {n: TensorSpec(a.shape, a.dtype) for n, a in feed.items()}
        return dict(
            compile_program(
                [Step(kernel, names, ("y", "hn", "cn"))], specs, keep=("y", "hn", "cn")
            ).run(feed)
        )

    one = run(whole, ("x",), x)
    first, second = np.split(x, [2], axis)
    a = run(whole, ("x",), np.ascontiguousarray(first))
    z = run(again, ("x", "h", "c"), np.ascontiguousarray(second), a["hn"], a["cn"])
    assert np.array_equal(np.concatenate([a["y"], z["y"]], axis), one["y"])
    assert np.array_equal(z["hn"], one["hn"])
    assert np.array_equal(z["cn"], one["cn"])
