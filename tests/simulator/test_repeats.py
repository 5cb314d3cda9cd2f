"""Steps that come again: one loop over them gives what the single steps give, and nothing else
becomes a loop.
"""

import itertools

import numpy as np
import pytest

from simulator import worker
from simulator.fixed_point import Rescale
from simulator.kernels import AddShift, IndexSelect, Linear, Relu, Reshape
from simulator.program import Step, TensorSpec, compile_program
from simulator.repeated_records import RepeatedRecords, _find_longest_repeat, find_repeats
from tests.simulator.helpers import integers

T, X, H = 20, 6, 5


def unrolled(rng, steps=T, odd=None):
    """Return the steps of a layer h = relu(x[t] U + h W), time step by time step; at step `odd` it
    is another W.

    The slices are of the fed tensor itself, and every third state is an output too.
    """
    u, w, other = integers(rng, (H, X)), integers(rng, (H, H)), integers(rng, (H, H))
    scale = Rescale.from_shift(7, 8)
    calls, h = [], "h0"
    for t in range(steps):
        pick = IndexSelect((None, np.array([t]), None))
        calls += [
            Step(pick, ("x",), (f"s{t}",)),
            Step(Reshape((0, X)), (f"s{t}",), (f"r{t}",)),
            Step(Linear(u, None, scale), (f"r{t}",), (f"a{t}",)),
            Step(Linear(other if t == odd else w, None, scale), (h,), (f"b{t}",)),
            Step(AddShift(0, 0), (f"a{t}", f"b{t}"), (f"c{t}",)),
            Step(Relu(), (f"c{t}",), (f"h{t + 1}",)),
        ]
        h = f"h{t + 1}"
    return calls, (u, w, other)


def plain(x, h, weights, odd=None):
    """Compute it in plain NumPy; all states."""
    u, w, other = (m.astype(int).T for m in weights)

    def cut(sums):
        return np.clip((sums + 64) >> 7, -128, 127)

    states = []
    for t in range(x.shape[1]):
        h = np.maximum(
            np.clip(cut(x[:, t] @ u) + cut(h @ (other if t == odd else w)), -128, 127), 0
        )
        states.append(h)
    return states


INPUTS = {"x": TensorSpec((1, T, X), np.int8), "h0": TensorSpec((1, H), np.int8)}


def loops(program):
    """Return the loops of a program that has run."""
    ((one, *_), *_) = program._idle_workers.values()
    return [part for part in one._segments if isinstance(part, RepeatedRecords)]


@pytest.mark.parametrize(
    "keep", [["h20"], ["h20", "h7", "s3"], [f"h{t + 1}" for t in range(T)]], ids=len
)
@pytest.mark.parametrize("odd", [None, 9])
@pytest.mark.parametrize("block", [1, 4])
def test_unrolled_steps_are_one_loop(monkeypatch, keep, odd, block):
    """Law: the integers are those of the steps one by one, whatever is fed, kept and in which
    blocks.
    """
    rng = np.random.default_rng(8)
    steps, weights = unrolled(rng, odd=odd)
    program = compile_program(steps, INPUTS, keep, block=block, threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "find_repeats", lambda *_: iter(()))
        single = compile_program(steps, INPUTS, keep, block=block, threads=1)
        x, h = integers(rng, (6, T, X)), integers(rng, (6, H))
        want = dict(single.run({"x": x, "h0": h}))
    assert not loops(single)
    for _ in range(2):  # the second run finds the records as the first one left them
        found = dict(program.run({"x": x, "h0": h}))
        assert all(np.array_equal(found[name], want[name]) for name in keep)
    states = plain(x.astype(int), h.astype(int), weights, odd)
    assert all(
        np.array_equal(found[f"h{t + 1}"], states[t]) for t in range(T) if f"h{t + 1}" in found
    )
    if keep == ["h20"]:
        assert max(loop.repeat_count for loop in loops(program)) >= (T - 2 if odd is None else 8)
    other = integers(rng, (3, T, X))
    last = dict(program.run({"x": other, "h0": h[:3]}))
    assert np.array_equal(
        last["h20"], plain(other.astype(int), h[:3].astype(int), weights, odd)[-1]
    )


def test_the_longest_stretch_of_equal_turns():
    """The first and the longest stretch, cut into the shortest turns; fewer turns than are worth a
    loop are none.
    """
    turn = [1, 2, 2, 3]
    assert _find_longest_repeat(np.array([7, *turn * 10, 8])) == (1, 4, 10)
    assert _find_longest_repeat(np.array([5] * 30)) == (0, 1, 30)
    assert _find_longest_repeat(np.array([*range(20), *turn * 9, *range(9), *[4, 5] * 10])) == (
        20,
        4,
        9,
    )
    assert _find_longest_repeat(np.array(turn * 7))[2] == 1
    assert _find_longest_repeat(np.array([], np.int64))[2] == 1


def test_steps_that_differ_in_many_words_are_no_loop():
    """Law: of at most one word in four the turns may differ; patched words count, and are found
    again.
    """

    def records(differing):
        return [
            np.array([11, 22, *range(30)])
            + np.where(np.arange(32) < 2, 0, i * (np.arange(32) < 2 + differing))
            for i in range(10)
        ]

    assert not list(find_repeats(records(9), set(), 0, 10))
    made = records(5)
    (loop,) = find_repeats(made, {(4, 20)}, 0, 10)
    assert (loop.all_records, loop.redundant_records, len(loop.patched_words)) == (
        range(10),
        range(1, 10),
        6,
    )
    array, index = loop.locate_word(4, 20)
    array[index] = 77
    assert loop.values[4].tolist() == [*(made[4][2:7]), 77]
    assert [value for value, _ in itertools.groupby(loop.values[:, 5].tolist())] == [18, 77, 18]
