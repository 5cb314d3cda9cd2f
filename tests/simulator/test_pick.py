"""Operators that choose by position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fixed_point import Rescale
from simulator.kernels import ArgMax, Conv, Gather, IndexSelect, Lookup, Split
from simulator.program import SimulatorError, Step, TensorSpec, compile_program
from tests.oracles import pick as naive
from tests.simulator.helpers import SEEDS, few, integers, more, run, same


@more
@given(SEEDS, st.integers(2, 4), st.sampled_from([np.int8, np.int16, np.int32]), st.booleans())
def test_pick(seed, rank, dtype, gaps):
    rng = np.random.default_rng(seed)
    x = integers(rng, rng.integers(1, 5, rank), dtype)
    indices = [None]
    for size in x.shape[1:]:
        kind = rng.integers(4)
        free = rng.integers(-1 if gaps else 0, size, rng.integers(1, 7))
        indices.append(
            [None, np.arange(size)[rng.integers(size) :: 1 + rng.integers(2)], free, free[:1]][kind]
        )
    fill = -7 if gaps else None
    same(run(IndexSelect(tuple(indices), fill), x), naive.pick(x, indices, fill), dtype)


def test_pick_channels_between_convolutions():
    """Channel-last arrays are picked along the axes that the shape names."""
    rng = np.random.default_rng(0)
    x, eye = integers(rng, (3, 4, 3, 5)), np.eye(4, dtype=np.int8)[:, :, None, None]
    indices = (None, np.array([3, 0, 0, 2]), None, np.array([-1, 4, 1]))
    steps = [
        Step(Conv(eye, None, Rescale.from_shift(0, 8)), ("x",), ("a",)),
        Step(IndexSelect(indices, 9), ("a",), ("b",)),
        Step(Conv(eye, None, Rescale.from_shift(0, 8)), ("b",), ("y",)),
    ]
    got = dict(
        compile_program(steps, {"x": TensorSpec((1, 4, 3, 5), np.int8)}, ["y"]).run({"x": x})
    )
    same(got["y"], naive.pick(x, indices, 9), np.int8)


def test_pick_mixes_samples_along_axis_0():
    x = integers(np.random.default_rng(0), (3, 4))
    assert not IndexSelect((np.array([0, 2]), None)).is_per_sample
    same(run(IndexSelect((np.array([0, 2]), None)), x), x[[0, 2]], np.int8)


@few
@given(SEEDS, st.integers(1, 2), st.integers(0, 2))
def test_gather(seed, axis, rank):
    rng = np.random.default_rng(seed)
    x = integers(rng, (2, 4, 5))
    indices = rng.integers(0, x.shape[axis], rng.integers(1, 4, rank))
    same(
        run(Gather(axis, np.asarray(indices)), x),
        naive.gather(x, axis, np.asarray(indices)),
        np.int8,
    )


def test_lookup():
    rng = np.random.default_rng(0)
    table, x = integers(rng, (9, 4)), rng.integers(0, 9, (3, 5))
    same(run(Lookup(table), x), naive.gather(table, 0, x), np.int8)
    with pytest.raises(SimulatorError, match="indices from 0 to 9 are outside a table of 9 rows"):
        run(Lookup(table), np.array([[0, 9]]))
    with pytest.raises(SimulatorError, match="signed integers"):
        run(Lookup(table), np.zeros((1, 2), np.float32))


@few
@given(SEEDS, st.sampled_from([1, 2, -1]), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_split(seed, axis, sizes):
    shape = [2, 3, 4]
    shape[axis] = max(sum(sizes), 1)
    sizes = sizes if sum(sizes) else [1]
    x = integers(np.random.default_rng(seed), shape)
    names = tuple(f"y{i}" for i in range(len(sizes)))
    step = Step(Split(axis, sizes), ("x",), names)
    got = dict(
        compile_program([step], {"x": TensorSpec((1, *shape[1:]), np.int8)}, names).run({"x": x})
    )
    start = 0
    for name, size in zip(names, sizes, strict=True):
        places: list = [None] * 3
        places[axis] = range(start, start + size)
        same(got[name], naive.pick(x, places, None), np.int8)
        start += size


@few
@given(SEEDS, st.integers(0, 3), st.integers(1, 40))
def test_argmax(seed, axis, size):
    shape = [1] * 4
    shape[axis] = size
    x = np.random.default_rng(seed).integers(-3, 3, shape).astype(np.int8)
    want = np.array(naive.largest(x.reshape(-1)), object).reshape(2, 1, 1, 1)
    same(run(ArgMax(axis), x), want, np.int32)


@pytest.mark.parametrize(
    ("kernel", "arrays", "says"),
    [
        (IndexSelect((None,)), [np.zeros((1, 2), np.int8)], "1 axes"),
        (IndexSelect((None, np.array([2]))), [np.zeros((1, 2), np.int8)], "out of range"),
        (IndexSelect((None, np.array([-1]))), [np.zeros((1, 2), np.int8)], "out of range"),
        (Gather(1, np.array(2)), [np.zeros((1, 2), np.int8)], "out of range"),
        (Gather(2, np.array(2)), [np.zeros((1, 2), np.int8)], "axis 2 does not exist"),
        (Split(1, [1, 2]), [np.zeros((1, 2), np.int8)], "slices of"),
        (ArgMax(1), [np.zeros((2, 2), np.int8)], "a single row"),
    ],
)
def test_what_does_not_fit_is_named(kernel, arrays, says):
    with pytest.raises(SimulatorError, match=says):
        run(kernel, *arrays)
