"""Recurrent layers in operators on integers, beside the simulator's kernels."""

import numpy as np
import pytest

from lingeronnx.operators.exact_nodes import NotExactError
from simulator import kernels as k
from simulator.fixed_point import ChainedRescale, Rescale
from simulator.program import Step, TensorSpec, compile_program
from tests.qdq.exact.helpers import called
from tests.simulator.helpers import integers


def recurrent(kind, gates, shift, units=3, **more):
    """A layer with weights over the whole range, and what goes in: x, states, cells."""
    rng = np.random.default_rng(7)
    weights = [integers(rng, (gates * units, n)) for n in (4, units)]
    biases = [rng.integers(-5000, 5000, gates * units) for _ in range(2)]
    how = ChainedRescale(Rescale.from_shift(0, 32), Rescale.from_shift(shift, 32))
    x, h = integers(rng, (3, 5, 4)), integers(rng, (3, 1, units))
    c = rng.integers(-(2**15), 2**15, (3, 1, units)).astype(np.int32)
    return kind(*weights, *biases, how, how, **more), x, h, c


def outputs(kernel, *arrays):
    """What the simulator computes for all outputs of a kernel."""
    names = [f"x{i}" for i in range(len(arrays))]
    feed = dict(zip(names, arrays, strict=True))
    wanted = tuple(f"y{i}" for i in range(len(kernel.output_indices)))
    specs = {name: TensorSpec(a.shape, a.dtype) for name, a in feed.items()}
    return [
        array
        for _, array in compile_program(
            [Step(kernel, tuple(names), wanted)], specs, keep=wanted
        ).run(feed)
    ]


@pytest.mark.parametrize("forward", (True, False))
@pytest.mark.parametrize(
    ("arithmetic", "chip"), (("q27", "arcs"), ("q27", "venusA"), ("wide", "arcs"), ("q11", "venus"))
)
def test_lstm(arithmetic, chip, forward):
    """Sequence, last state and last cell (packed on one chip); from the beginning and from given
    states.
    """
    out, shift = (
        k.Lstm.make_output_rescale(arithmetic, 100.0 if arithmetic == "wide" else 64.0, 8),
        6 if chip == "venus" else -12,
    )
    for given_, units in (((), 3), (("h", "c"), 4)):
        kernel, x, *states = recurrent(
            k.Lstm,
            4,
            shift,
            units,
            rescale_o=out,
            arithmetic=arithmetic,
            table=chip,
            output_indices=(0, 1, 2),
            state_inputs=given_,
            is_forward=forward,
        )
        arrays = (x, *states[: len(given_)])
        for a, b in zip(called(kernel, *arrays), outputs(kernel, *arrays), strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
            assert len(np.unique(a)) > 3


@pytest.mark.parametrize("time_axis", (0, 1))
def test_gru(time_axis):
    """As it is defined, both places of the reset gate, and as the executor computes it."""
    out, kept = (
        k.Gru.make_output_rescale(64.0, 8),
        {"output_indices": (0, 1), "time_axis": time_axis},
    )
    made = [
        recurrent(k.Gru, 3, -12, rescale_o=out, reset_after=after, **kept)
        for after in (True, False)
    ]
    for joined in (True, False):
        to_state = Rescale.from_shift(7, 8)
        made.append(
            recurrent(
                k.ExecutorGru,
                3,
                6,
                rescale_o=to_state,
                table="venus",
                uses_state_sums=joined,
                **kept,
            )
        )
    for kernel, x, *_ in made:
        for a, b in zip(called(kernel, x), outputs(kernel, x), strict=True):
            assert np.array_equal(a, b)
            assert len(np.unique(a)) > 3


def test_lengths_have_no_function():
    kernel, x, *_ = recurrent(
        k.Lstm,
        4,
        -12,
        rescale_o=k.Lstm.make_output_rescale("q27", 64.0, 8),
        state_inputs=("lengths",),
    )
    with pytest.raises(NotExactError, match="lengths"):
        called(kernel, x, np.array([1, 2, 3]))
