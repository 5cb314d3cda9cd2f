"""Loops that call each other by their records: the same numbers with and without machine code."""

import numpy as np
import pytest

from simulator._jit import jit
from simulator.kernels.loops._conv_simd import run_record
from simulator.native import InputRef, NativeLoop, NestedLoop, OutputRef, Scratch


@jit
def _square(now, memory):
    memory[now[0]] = memory[now[0]] * memory[now[0]] + now[1]


@jit
def _each(x, now, memory, step, out):
    """Square every number of x plus its place, by a loop of its own that finds it in the memory
    that both have.
    """
    for i in range(x.size):
        now[0], now[1] = i, 100 * i
        memory[i] = x[i] + i
        run_record(step)
        out[i] = memory[i]


def _loop():
    """Return the loop for any number of rows of seven."""
    memory, now = Scratch(7, np.int64, per_row=True), Scratch(2, np.int64)
    return NativeLoop(
        _each,
        (
            InputRef(0, (-1,)),
            now,
            memory,
            NestedLoop(NativeLoop(_square, (now, memory))),
            OutputRef(0, (-1,)),
        ),
    )


@pytest.mark.parametrize("disabled", [False, True])
def test_a_loop_calls_another_on_the_memory_that_both_have(monkeypatch, disabled):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", str(int(disabled)))
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", disabled)
    x, out = np.arange(14, dtype=np.int64).reshape(2, 7), np.empty((2, 7), np.int64)
    _loop()([x], [out])
    assert out.reshape(-1).tolist() == [(2 * i) ** 2 + 100 * i for i in range(14)]


def test_memory_is_counted_once():
    """Law: the same `Scratch` is the same memory wherever it stands; another one like it is other
    memory.
    """
    one, like = Scratch(1000, np.int64), Scratch(1000, np.int64)
    once, twice = (NativeLoop(_square, (one, second)).scratch_bytes(1) for second in (one, like))
    assert twice == 2 * once >= 16000
    assert (
        NativeLoop(_each, (one, NestedLoop(NativeLoop(_square, (one, like))))).scratch_bytes(1)
        == twice
    )
