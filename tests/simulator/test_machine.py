"""The laws of the machine: blocks, threads, fusion, layouts, taps and forced tensors never change
an integer.
"""

import itertools
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from simulator.fixed_point import Rescale
from simulator.kernels import (
    AddScaled,
    AddShift,
    AvgPool,
    ChannelAffine,
    Clip,
    Concat,
    Constant,
    Conv,
    Dequant,
    Linear,
    MatMul,
    MaxPool,
    Mul,
    Quant,
    Relu,
    Requant,
    Reshape,
    Transpose,
)
from simulator.layout import content_key
from simulator.program import (
    NumpyKernel,
    SimulatorError,
    Step,
    TensorSpec,
    _fuse,
    _get_thread_pool,
    _infer,
    compile_program,
)
from tests.simulator.helpers import integers, simd

INPUT = {"x": TensorSpec((1, 3, 9, 10), np.float32)}


class Double(NumpyKernel):
    """A float island."""

    def infer(self, x):
        return (x,)

    def __call__(self, x):
        return (x * np.float32(2),)


def network(seed=0):
    """A small network with every kernel, branches, fused activations and changes of layout."""
    rng = np.random.default_rng(seed)

    def w(*shape):
        return integers(rng, shape)

    def bias(count):
        return integers(rng, (count,), np.int16)

    right, general = Rescale.from_shift(9, 8), Rescale.from_ratio(0.0021, 8)
    pads = (1, 1, 1, 1)
    return [
        Step(Double(), ("x",), ("x2",)),
        Step(Quant(16.0, 8), ("x2",), ("q",)),
        Step(Conv(w(16, 3, 3, 3), bias(16), right, None, pads), ("q",), ("c1",)),
        Step(Relu(), ("c1",), ("r1",)),
        Step(Conv(w(16, 1, 3, 3), bias(16), general, None, pads, None, 16), ("r1",), ("c2",)),
        Step(Clip(-5, 90), ("c2",), ("k2",)),
        Step(Conv(w(16, 16, 1, 1), None, general), ("k2",), ("c3",)),
        Step(AddShift(1, 0), ("r1", "c3"), ("s",)),
        Step(Relu(), ("s",), ("rs",)),
        Step(MaxPool((2, 2), (2, 2), (0, 0, 1, 0)), ("rs",), ("m",)),
        Step(ChannelAffine(w(16), bias(16), Rescale.from_shift(7, 8)), ("m",), ("n",)),
        Step(AddScaled.from_ratios(0.7, 1.1, 8), ("m", "n"), ("a",)),
        Step(AvgPool((5, 5), None, None, Rescale.from_ratio(1 / 25, 8)), ("a",), ("gap",)),
        Step(Mul(Rescale.from_shift(5, 8)), ("a", "gap"), ("se",)),
        Step(Constant(w(1, 4, 5, 5)), (), ("const",)),
        Step(
            Concat(1, (Rescale.from_shift(0, 8), Rescale.from_shift(1, 8))),
            ("se", "const"),
            ("cat",),
        ),
        Step(Transpose((0, 2, 1, 3)), ("cat",), ("t",)),
        Step(Conv(w(6, 5, 1, 1), None, right), ("t",), ("c4",)),
        Step(Reshape((1, -1)), ("c4",), ("flat",)),
        Step(Linear(w(7, 600), bias(7), Rescale.from_shift(10, 16)), ("flat",), ("y16",)),
        Step(Requant(Rescale.from_shift(3, 8)), ("y16",), ("y8",)),
        Step(Dequant(4.0), ("y8",), ("y",)),
    ]


def feed(samples, seed=1):
    return {
        "x": np.random.default_rng(seed).standard_normal((samples, 3, 9, 10)).astype(np.float32)
    }


def run(program, *args):
    return {name: array.copy() for name, array in program.run(*args)}


def equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert np.array_equal(left[name], right[name]), name


@pytest.fixture(scope="module")
def reference():
    """Every tensor of 7 samples, one sample at a time, one thread."""
    return run(compile_program(network(), INPUT, block=1, threads=1), feed(7))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("block", "threads"), list(itertools.product([1, 2, 3, 7, 100, None], [1, 2, 5]))
)
def test_blocks_and_threads_do_not_change_an_integer(reference, block, threads):
    equal(run(compile_program(network(), INPUT, block=block, threads=threads), feed(7)), reference)


def test_a_program_takes_any_batch_again_and_again(reference):
    program = compile_program(network(), INPUT, block=4, threads=2)
    for samples in (7, 1, 3, 7, 0):
        got = run(program, {"x": feed(7)["x"][:samples]})
        equal(got, {name: a if name == "const" else a[:samples] for name, a in reference.items()})


@pytest.mark.parametrize(
    "keep", [["y"], ["r1", "y"], ["c1", "y"], ["s", "c2", "gap"], ["x", "rs"], []]
)
def test_fusing_what_is_not_kept_does_not_change_an_integer(reference, keep):
    program = compile_program(network(), INPUT, keep)
    equal(run(program, feed(7)), {name: reference[name] for name in program.output_names})
    assert set(program.output_names) == set(keep)


def test_fusion_happens():
    everything = {name for step in network() for name in step.outputs}
    specs, _ = _infer(network(), INPUT)
    assert len(_fuse(network(), specs, {"y"})) == len(_fuse(network(), specs, everything)) - 3


def test_vector_instructions_do_not_change_an_integer(reference):
    with simd(False):
        equal(run(compile_program(network(), INPUT), feed(7)), reference)


def test_the_order_is_feeds_first_and_then_steps():
    program = compile_program(network(), INPUT)
    assert list(dict(program.run(feed(1)))) == ["x", *(step.outputs[0] for step in network())]


def test_kept_arrays_belong_to_the_caller(reference):
    program = compile_program(network(), INPUT, threads=1)
    first = dict(program.run(feed(7)))
    dict(program.run(feed(7, seed=9)))
    equal(first, reference)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in first.values())


@pytest.mark.parametrize("name", ["x", "q", "r1", "a", "const", "flat"])
def test_forced_tensors_are_read_by_later_steps_only(reference, name):
    other = run(compile_program(network(), INPUT), feed(7, seed=2))
    if name == "const":
        other["const"] = np.flip(reference["const"]).copy()
    program = compile_program(network(), INPUT, block=2, threads=2)
    got = run(program, feed(7), {name: other[name]})
    order = list(program.output_names)
    for before in order[: order.index(name) + 1]:
        assert np.array_equal(got[before], reference[before]), before
    assert not np.array_equal(got["y16"], reference["y16"])
    equal(run(program, feed(7), {name: reference[name]}), reference)


def test_forcing_everything_shows_each_step_alone(reference):
    program = compile_program(network(), INPUT)
    forced = dict(reference)
    equal(run(program, feed(7), forced), reference)
    forced["r1"] = np.zeros_like(forced["r1"])
    got = run(program, feed(7), forced)
    assert np.array_equal(got["r1"], reference["r1"])
    assert not np.array_equal(got["c2"], reference["c2"])
    assert np.array_equal(got["c3"], reference["c3"])


class Slow(NumpyKernel):
    """Gives its input back, notes how many samples came and who came; fails where a sample is
    99.
    """

    def __init__(self):
        self.blocks, self.threads = [], set()

    def infer(self, x):
        return (x,)

    def __call__(self, x):
        self.blocks.append(len(x))
        self.threads.add(threading.get_ident())
        time.sleep(0.002)
        if (x == 99).any():
            raise ValueError("99")
        return (x,)


def test_threads_get_as_many_blocks_of_about_one_size():
    kernel = Slow()
    program = compile_program(
        [Step(kernel, ("x",), ("y",))],
        {"x": TensorSpec((1, 3), np.int8)},
        ["y"],
        block=10,
        threads=2,
    )
    x = np.arange(64 * 3, dtype=np.uint8).view(np.int8).reshape(64, 3) % 90
    assert np.array_equal(dict(program.run({"x": x}))["y"], x)
    assert kernel.blocks == [8] * 8
    assert len(kernel.threads) == 2
    assert threading.get_ident() in kernel.threads


def test_a_batch_that_is_done_at_once_wakes_no_thread():
    kernel = Slow()
    program = compile_program(
        [Step(kernel, ("x",), ("y",))],
        {"x": TensorSpec((1, 3), np.int8)},
        ["y"],
        block=10,
        threads=2,
    )
    program._seconds_per_sample[0] = 1e-9  # seconds of a sample
    dict(program.run({"x": np.zeros((64, 3), np.int8)}))
    assert kernel.threads == {threading.get_ident()}
    assert sum(kernel.blocks) == 64


def test_a_failure_in_any_thread_is_raised():
    program = compile_program(
        [Step(Slow(), ("x",), ("y",))],
        {"x": TensorSpec((1, 1), np.int8)},
        ["y"],
        block=1,
        threads=2,
    )
    for place in range(6):
        x = np.zeros((6, 1), np.int8)
        x[place] = 99
        with pytest.raises(ValueError, match="99"):
            dict(program.run({"x": x}))
    x[:] = 5
    assert np.array_equal(dict(program.run({"x": x}))["y"], x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(reference):
    """Law: the threads that a process has started do not live in its child, which starts others."""

    def computed():
        return run(compile_program(network(), INPUT, block=1, threads=2), feed(7))

    def in_child():
        equal(computed(), reference)
        assert _get_thread_pool(1).submit(threading.get_ident).result(20) != threading.get_ident()

    equal(computed(), reference)
    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("LINGERONNX_THREADS", "3")
    assert compile_program(network(), INPUT).threads == 3


def test_memory_does_not_grow_with_the_batch_or_with_their_number():
    program = compile_program(network(), INPUT, ["y"], block=4, threads=1)
    dict(program.run(feed(4)))
    once = program.nbytes
    dict(program.run(feed(40)))
    assert program.nbytes == once > 0
    for samples in range(1, 20):
        dict(compile_program(network(), INPUT, ["y"], threads=1).run(feed(1)))
        dict(program.run(feed(samples)))
    assert len(program._idle_workers) <= 4


def test_a_program_is_one_native_call():
    """Law: between feeds and outputs nothing is done in Python but what is written in Python."""
    program = compile_program(network(), INPUT, ["y"], threads=1)
    dict(program.run(feed(2)))
    (worker,) = program._idle_workers[2]
    assert [part for part in worker._segments if not isinstance(part, tuple)] == [program._steps[0]]
    assert len(worker._segments) == 2


# --- kernels that mix samples ---------------------------------------------------------------------


class Sum(NumpyKernel):
    """Sums over axis 0."""

    is_per_sample = False

    def infer(self, x):
        return (TensorSpec(x.shape[1:], x.dtype),)

    def __call__(self, x):
        return (x.sum(axis=0, dtype=x.dtype),)


def test_a_step_that_mixes_samples_fixes_the_shapes():
    steps = [Step(Relu(), ("x",), ("r",)), Step(Sum(), ("r",), ("y",))]
    program = compile_program(steps, {"x": TensorSpec((3, 4), np.int16)}, ["y"])
    assert not program.accepts_batches
    x = integers(np.random.default_rng(0), (3, 4), np.int16) >> 4
    assert np.array_equal(dict(program.run({"x": x}))["y"], np.maximum(x, 0).sum(0))
    with pytest.raises(SimulatorError, match=r"x must be exactly int16\[3,4\], not \[2, 4\]"):
        list(program.run({"x": x[:2]}))


def test_broadcasting_over_the_batch_axis_fixes_the_shapes():
    steps = [
        Step(Constant(np.ones((3, 4), np.int8)), (), ("c",)),
        Step(AddShift(0, 0), ("x", "c"), ("y",)),
    ]
    assert not compile_program(steps, {"x": TensorSpec((1, 4), np.int8)}).accepts_batches
    steps = [
        Step(Constant(np.ones((1, 4), np.int8)), (), ("c",)),
        Step(AddShift(0, 0), ("x", "c"), ("y",)),
    ]
    assert compile_program(steps, {"x": TensorSpec((1, 4), np.int8)}).accepts_batches


# --- steps that are alike -------------------------------------------------------------------------


def test_kernels_that_are_alike_are_built_once():
    """Law: steps of equal kernels share packed weights, those of kernels that differ in a number do
    not.
    """
    rng = np.random.default_rng(4)
    weight, scale = integers(rng, (6, 6)), Rescale.from_shift(8, 8)
    other = weight.copy()
    other[5, 5] ^= 1

    def dense(weight, name, into):
        return Step(Linear(weight.copy(), None, scale), (name,), (into,))

    steps = [
        dense(weight, "x", "a"),
        dense(weight, "a", "b"),
        dense(other, "b", "c"),
        dense(weight, "c", "y"),
    ]
    program = compile_program(steps, {"x": TensorSpec((1, 6), np.int8)}, ["y"])
    first, second, third, fourth = (step.run for step in program._steps)
    assert first is second is fourth is not third
    x = integers(rng, (9, 6))
    want = x.astype(int)
    for matrix in (weight, weight, other, weight):
        want = np.clip((want @ matrix.T.astype(int) + 128) >> 8, -128, 127)
    assert np.array_equal(dict(program.run({"x": x}))["y"], want)


def test_contents():
    """Numbers, types and names count, not objects; what is unknown is like itself alone."""

    def linear(kind=np.int8, shift=8, clip=None):
        return Linear(np.ones((2, 3), kind), None, Rescale.from_shift(shift, 8), clip_bounds=clip)

    assert content_key(linear()) == content_key(linear())
    different = [
        linear(),
        linear(np.int16),
        linear(shift=7),
        linear(clip=(0, 5)),
        Relu(),
        Double(),
        Double(),
    ]
    different += [
        Reshape((1, -1)),
        Reshape((1, -1), is_per_sample=False),
        Concat(1, ()),
        Clip(0, 1),
        Clip(0, 2),
    ]
    assert len({content_key(kernel) for kernel in different}) == len(different)
    assert (
        content_key({"a": (1, np.zeros(2))})
        == content_key({"a": (1, np.zeros(2))})
        != content_key({"a": (1, np.zeros((2, 1)))})
    )


# --- samples of several rows ----------------------------------------------------------------------


def joined_heads():
    """Attention as chips have it: the heads of all samples are the batch of a product of rank 3."""
    scale = Rescale.from_shift(7, 8)
    mask = np.arange(-12, 13, dtype=np.int8).reshape(1, 5, 5)
    return [
        Step(Reshape((0, 3, 5, 4)), ("x",), ("h",)),
        Step(Transpose((0, 1, 3, 2)), ("h",), ("t",)),
        Step(Reshape((3, 5, 4), is_per_sample=False), ("h",), ("a",)),
        Step(Reshape((-1, 4, 5), is_per_sample=False), ("t",), ("b",)),
        Step(MatMul(scale), ("a", "b"), ("p",)),
        Step(Constant(mask), (), ("c",)),
        Step(AddShift(0, 0), ("p", "c"), ("m",)),
        Step(Dequant(2.0), ("m",), ("f",)),
        Step(Double(), ("f",), ("d",)),
        Step(Quant(3.0, 8), ("d",), ("e",)),
        Step(Reshape((1, 3, 5, 5), is_per_sample=False), ("e",), ("y",)),
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block", [1, 2, 32])
def test_heads_joined_with_the_batch_follow_it(block, threads):
    """Law: what samples give together, each gives alone, also where a sample is several rows of
    axis 0.
    """
    steps, x = joined_heads(), integers(np.random.default_rng(3), (7, 15, 4))
    program = compile_program(
        steps, {"x": TensorSpec((1, 15, 4), np.int8)}, block=block, threads=threads
    )
    assert program.accepts_batches
    program._seconds_per_sample[0] = 1.0  # every thread is worth it
    together = dict(program.run({"x": x}))
    whole = compile_program(steps, {"x": TensorSpec((1, 15, 4), np.int8)}, block=1, threads=1)
    alone = [dict(whole.run({"x": x[i : i + 1]})) for i in range(7)]
    shapes = {"a": (21, 5, 4), "p": (21, 5, 5), "d": (21, 5, 5), "y": (7, 3, 5, 5), "c": (1, 5, 5)}
    assert {name: together[name].shape for name in shapes} == shapes
    for name in set(together) - {"c"}:
        assert np.array_equal(together[name], np.concatenate([one[name] for one in alone])), name
    scores = x.reshape(21, 5, 4).astype(int)
    assert np.array_equal(
        together["p"], np.clip((scores @ scores.transpose(0, 2, 1) + 64) >> 7, -128, 127)
    )


def test_tensors_of_several_rows_can_be_forced():
    steps = joined_heads()[:5]
    program = compile_program(steps, {"x": TensorSpec((1, 15, 4), np.int8)}, block=2, threads=1)
    rng = np.random.default_rng(5)
    x, a = integers(rng, (5, 15, 4)), integers(rng, (15, 5, 4))
    found = dict(program.run({"x": x}, {"a": a}))
    b = x.reshape(15, 5, 4).astype(int).transpose(0, 2, 1)
    assert np.array_equal(found["a"], x.reshape(15, 5, 4))
    assert np.array_equal(found["p"], np.clip((a.astype(int) @ b + 64) >> 7, -128, 127))


def test_rows_of_samples_that_do_not_agree_fix_the_shapes():
    """A constant with a value for every head, and inputs of which one has joined heads, cannot
    follow the batch.
    """
    one = {"x": TensorSpec((1, 3, 4), np.int8)}
    join = Step(Reshape((3, 1, 4), is_per_sample=False), ("x",), ("a",))
    heads = Step(Constant(np.ones((3, 1, 4), np.int8)), (), ("c",))
    assert compile_program([join], one).accepts_batches
    assert not compile_program(
        [join, heads, Step(AddShift(0, 0), ("a", "c"), ("y",))], one
    ).accepts_batches
    assert not compile_program(
        [join, Step(AddShift(0, 0), ("a", "x"), ("y",))], one
    ).accepts_batches
    assert not compile_program(
        [Step(Reshape((), is_per_sample=False), ("x",), ("y",))], {"x": TensorSpec((1, 1), np.int8)}
    ).accepts_batches


# --- errors ---------------------------------------------------------------------------------------

RELU = [Step(Relu(), ("x",), ("y",))]
ONE = {"x": TensorSpec((1, 4), np.int8)}


@pytest.mark.parametrize(
    ("steps", "keep", "says"),
    [
        ([Step(Relu(), ("z",), ("y",))], None, r"Relu -> y: reads \['z'\]"),
        ([*RELU, *RELU], None, r"Relu -> y: produces \['y'\], which already exist"),
        (RELU, ["z"], r"cannot keep \['z'\]: no step produces"),
        ([Step(Relu(), ("x",), ("y", "z"))], None, "has 1 outputs, expected 2"),
        (
            [Step(AddShift(0, 0), ("x",), ("y",))],
            None,
            r"AddShift -> y: does not support its inputs x int8\[1,4\]",
        ),
        (
            [Step(Transpose((0, 2, 1)), ("x",), ("y",))],
            None,
            r"Transpose -> y: .*\(inputs: x int8\[1,4\]\)",
        ),
    ],
)
def test_steps_that_do_not_fit_together(steps, keep, says):
    with pytest.raises(SimulatorError, match=says):
        compile_program(steps, ONE, keep)


@pytest.mark.parametrize(
    ("fed", "force", "says"),
    [
        ({}, None, r"feeds must be exactly \['x'\], got \[\]"),
        ({"x": np.zeros((2, 4), np.int16)}, None, "an array of int8"),
        ({"x": np.zeros((2, 5), np.int8)}, None, r"int8\[1,4\] with any batch size, not \[2, 5\]"),
        (
            {"x": np.zeros((2, 4), np.int8)},
            {"z": np.zeros(1)},
            r"only tensors that a run yields can be forced, not \['z'\]",
        ),
        (
            {"x": np.zeros((2, 4), np.int8)},
            {"y": np.zeros((1, 4), np.int8)},
            r"forced value of y is int8\[1, 4\]",
        ),
    ],
)
def test_feeds_that_do_not_fit(fed, force, says):
    with pytest.raises(SimulatorError, match=says):
        list(compile_program(RELU, ONE, ["y"]).run(fed, force))


def test_feeds_of_different_batches():
    program = compile_program(
        [Step(AddShift(0, 0), ("x", "z"), ("y",))], {"x": ONE["x"], "z": ONE["x"]}
    )
    with pytest.raises(SimulatorError, match="different batch sizes"):
        list(program.run({"x": np.zeros((2, 4), np.int8), "z": np.zeros((3, 4), np.int8)}))


def test_a_fallback_that_lies_about_its_output():
    class Liar(Double):
        def __call__(self, x):
            return (x.astype(np.float64),)

    program = compile_program([Step(Liar(), ("x",), ("y",))], {"x": TensorSpec((1, 2), np.float32)})
    with pytest.raises(SimulatorError, match="Liar computed float64"):
        list(program.run({"x": np.zeros((1, 2), np.float32)}))
