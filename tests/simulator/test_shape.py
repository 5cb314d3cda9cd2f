"""Operators that move integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import Concat, Constant, Conv, Relu, Reshape, Transpose
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.oracles import elementwise as naive
from tests.simulator.helpers import SEEDS, few, integers, rescales, run, same, triple

SAME = Rescale.from_shift(0, 8)


@few
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, -1]),
    st.tuples(rescales(shifts=(-2, 3)), rescales(shifts=(-2, 3))),
)
def test_concat(seed, axis, each):
    rng = np.random.default_rng(seed)
    shape = [2, 3, 4, 5]
    x = integers(rng, shape)
    shape[axis] = 2
    y = integers(rng, shape)
    want = np.concatenate(
        [naive.requant(a, triple(r)) for a, r in zip((x, y), each, strict=True)], axis
    )
    same(run(Concat(axis, each), x, y), want, np.int8)


def test_concat_widens():
    x = integers(np.random.default_rng(0), (2, 3))
    got = run(Concat(1, (Rescale.from_shift(0, 16), Rescale.from_shift(-3, 16))), x, x)
    same(got, np.concatenate([x.astype(int), x.astype(int) * 8], 1), np.int16)


def test_concat_between_convolutions_and_with_a_constant():
    rng = np.random.default_rng(0)
    x, c, weight = (
        integers(rng, (5, 2, 3, 4)),
        integers(rng, (1, 3, 3, 4)),
        integers(rng, (6, 5, 1, 1)),
    )
    eye = np.eye(2, dtype=np.int8)[:, :, None, None]
    steps = [
        Step(Conv(eye, None, SAME), ("x",), ("a",)),
        Step(Constant(c), (), ("c",)),
        Step(Concat(1, (SAME, SAME)), ("a", "c"), ("both",)),
        Step(Conv(weight, None, Rescale.from_shift(8, 8)), ("both",), ("y",)),
    ]
    got = dict(compile_program(steps, {"x": TensorSpec((1, 2, 3, 4), np.int8)}).run({"x": x}))
    assert np.array_equal(got["both"], np.concatenate([x, np.broadcast_to(c, (5, 3, 3, 4))], 1))
    assert got["y"].shape == (5, 6, 3, 4)
    assert np.array_equal(got["c"], c)


@pytest.mark.parametrize(
    ("target", "want"),
    [
        ((1, -1), (3, 24)),
        ((0, 24), (3, 24)),
        ((-1, 24), (3, 24)),
        ((1, 2, 12), (3, 2, 12)),
        ((0, 0, 3, -1), (3, 2, 3, 4)),
    ],
)
def test_reshape_follows_the_batch(target, want):
    x = integers(np.random.default_rng(0), (3, 2, 12))
    same(run(Reshape(target), x), x.reshape(want), np.int8)


@pytest.mark.parametrize(
    ("target", "want"),
    [((6, -1), (6, 12)), ((0, -1), (3, 24)), ((72,), (72,)), ((-1, 2, 1), (36, 2, 1))],
)
def test_reshape_of_the_whole(target, want):
    x = integers(np.random.default_rng(0), (3, 2, 12), np.int32)
    same(run(Reshape(target, is_per_sample=False), x), x.reshape(want), np.int32)


@pytest.mark.parametrize(
    "target", [(2, 12), (24,), (1, 5, -1), (1, -1, -1), (1, 25), (1, 2, 12, 0)]
)
def test_reshape_that_does_not_fit(target):
    with pytest.raises(SimulatorError, match="shape"):
        run(Reshape(target), np.zeros((1, 2, 12), np.int8))


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (0, 3, 1, 2), (1, 0, 2, 3), (3, 2, 1, 0)])
def test_transpose(perm):
    x = integers(np.random.default_rng(0), (2, 3, 4, 5))
    same(run(Transpose(perm), x), x.transpose(perm), np.int8)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.float32])
@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)])
@pytest.mark.parametrize("shape", [(3, 17, 1, 33), (2, 20, 3, 16), (2, 1, 40, 5)])
def test_matrices_are_transposed(kind, perm, shape):
    x = np.random.default_rng(4).integers(-100, 100, shape).astype(kind)
    same(run(Transpose(perm), x), x.transpose(perm), kind)


@pytest.mark.parametrize(
    ("kernel", "arrays", "says"),
    [
        (Transpose((0, 1)), [np.zeros((1, 2, 3), np.int8)], "is not a permutation"),
        (Concat(1, (SAME,)), [np.zeros((1, 2), np.int8)] * 2, "1 rescales"),
        (Concat(5, (SAME, SAME)), [np.zeros((1, 2), np.int8)] * 2, "axis 5"),
        (
            Concat(1, (SAME, SAME)),
            [np.zeros((1, 2, 3), np.int8), np.zeros((1, 2, 4), np.int8)],
            "shapes differ",
        ),
        (
            Concat(1, (SAME, SAME)),
            [np.zeros((1, 2, 3), np.int8), np.zeros((1, 2), np.int8)],
            "ranks differ",
        ),
        (
            Concat(1, (SAME, Rescale.from_shift(0, 16))),
            [np.zeros((1, 2), np.int8)] * 2,
            "rescales of the same width",
        ),
        (Constant(np.zeros(3, np.int8)), [np.zeros((1, 2), np.int8)], "no inputs"),
        (Relu(), [np.zeros((1, 2), bool)], "signed integers"),
    ],
)
def test_what_does_not_fit_is_named(kernel, arrays, says):
    with pytest.raises(SimulatorError, match=says):
        run(kernel, *arrays)
