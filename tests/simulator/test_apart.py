"""Law: what moves numbers along axis 0 of a sample gives in a batch what NumPy gives for each
sample alone.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import (
    AddShift,
    Concat,
    Constant,
    Gather,
    IndexSelect,
    Relu,
    Reshape,
    Split,
    Transpose,
)
from simulator.program import Step, TensorSpec, compile_program
from tests.simulator.helpers import SEEDS, integers

SAME = Rescale.from_shift(0, 8)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def together(steps, x, output="y", **options):
    """Return what the steps, made for one sample [1, ...], give for all samples, and the
    program.
    """
    program = compile_program(
        steps, {"x": TensorSpec((1, *x.shape[1:]), x.dtype)}, [output], **options
    )
    assert program.accepts_batches
    ((_, y),) = program.run({"x": x})
    return y


def seen(sizes):
    """Return the step that lets a sample be seen in these sizes."""
    return Step(Reshape(sizes, is_per_sample=False), ("x",), ("r",))


@settings(max_examples=60, deadline=None)
@given(SEEDS, SIZES, st.integers(1, 7), st.data())
def test_a_transpose(seed, sizes, samples, data):
    perm = data.draw(st.permutations(range(len(sizes))))
    x = integers(np.random.default_rng(seed), (samples, int(np.prod(sizes))))
    want = np.concatenate([row.reshape(sizes).transpose(perm) for row in x])
    for block, threads in itertools.product((1, 3), (1, 2)):
        got = together(
            [seen(sizes), Step(Transpose(perm), ("r",), ("y",))], x, block=block, threads=threads
        )
        np.testing.assert_array_equal(got, want)


@settings(max_examples=60, deadline=None)
@given(SEEDS, SIZES, st.integers(1, 7), st.data())
def test_a_choice_of_rows(seed, sizes, samples, data):
    """Steps in order are views, others are taken one by one, and -1 is a fill."""
    places = data.draw(st.lists(st.integers(-1, sizes[0] - 1), min_size=1, max_size=5))
    x = integers(np.random.default_rng(seed), (samples, int(np.prod(sizes))))
    others = [None] * (len(sizes) - 1)
    got = together(
        [seen(sizes), Step(IndexSelect((np.array(places), *others), 9), ("r",), ("y",))], x
    )
    rows = [row.reshape(sizes) for row in x]
    want = [
        np.stack([row[p] if p >= 0 else np.full(sizes[1:], 9, np.int8) for p in places])
        for row in rows
    ]
    np.testing.assert_array_equal(got, np.concatenate(want))


@pytest.mark.parametrize("axis", [0, -2])
def test_a_gather_and_a_split(axis):
    x = integers(np.random.default_rng(1), (4, 15))
    rows = x.reshape(4, 5, 3)
    places = np.array([4, 0, 0])
    got = together([seen((5, 3)), Step(Gather(axis, places), ("r",), ("y",))], x)
    np.testing.assert_array_equal(got, rows[:, places].reshape(-1, 3))
    for output, part in (("y", rows[:, :2]), ("z", rows[:, 2:])):
        got = together([seen((5, 3)), Step(Split(axis, (2, 3)), ("r",), ("y", "z"))], x, output)
        np.testing.assert_array_equal(got, part.reshape(-1, 3))


@pytest.mark.parametrize("axis", [0, -2])
def test_rows_joined_with_a_constant_and_rescaled(axis):
    """The constant stands in every sample; of a sample's rows each input brings another number."""
    x, c = integers(np.random.default_rng(2), (5, 12)), integers(np.random.default_rng(3), (2, 3))
    steps = [
        seen((4, 3)),
        Step(Constant(c), (), ("c",)),
        Step(Concat(axis, (Rescale.from_shift(1, 8), SAME)), ("r", "c"), ("y",)),
    ]
    halves = np.clip((x.reshape(5, 4, 3).astype(int) + 1) >> 1, -128, 127)
    want = np.concatenate([np.concatenate([half, c]) for half in halves])
    np.testing.assert_array_equal(together(steps, x), want)


def test_rows_of_a_sample_through_a_net():
    """Turned, computed on, turned back and joined with what was never turned."""
    x = integers(np.random.default_rng(4), (6, 20))
    steps = [
        seen((4, 5)),
        Step(Transpose((1, 0)), ("r",), ("t",)),
        Step(Relu(), ("t",), ("a",)),
        Step(Transpose((1, 0)), ("a",), ("b",)),
        Step(Reshape((1, 20), is_per_sample=False), ("b",), ("c",)),
        Step(AddShift(0, 0), ("c", "x"), ("y",)),
    ]
    want = np.clip(np.maximum(x, 0).astype(int) + x, -128, 127)
    np.testing.assert_array_equal(together(steps, x), want)
    turned = np.concatenate([row.reshape(4, 5).T for row in x])
    np.testing.assert_array_equal(together(steps, x, "t"), turned)


def test_feeds_of_more_rows_stay_as_they_are():
    """Shapes that are exact have no batch: a matrix that is fed is turned as one."""
    program = compile_program(
        [Step(Transpose((1, 0)), ("x",), ("y",))], {"x": TensorSpec((3, 4), np.int8)}
    )
    assert not program.accepts_batches
    x = integers(np.random.default_rng(5), (3, 4))
    np.testing.assert_array_equal(dict(program.run({"x": x}))["y"], x.T)
