"""Machine code that is kept: found again without Numba, for the same types, on the same machine."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
import pytest

from simulator import _code_cache, _disk_cache
from simulator._jit import config, jit

ROOT = Path(__file__).resolve().parents[2]
Pair = namedtuple("Pair", "a b")

_PROGRAM = """
import sys
import numpy as np
from simulator import _code_cache
from simulator.fixed_point import Rescale
from simulator.kernels import AddShift, Conv, MaxPool
from simulator.program import Step, TensorSpec, compile_program
rescale = Rescale.from_shift(7, 8)
conv = Conv(np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3), None, rescale, None, (1, 1, 1, 1))
steps = [
    Step(conv, ("x",), ("y",)),
    Step(MaxPool((2, 2), (1, 1), (0, 0, 1, 1)), ("y",), ("z",)),
    Step(AddShift(0, 1), ("y", "z"), ("s",)),
]
program = compile_program(steps, {"x": TensorSpec((1, 3, 5, 5), np.int8)}, ["s"])
x = np.arange(150).astype(np.int8).reshape(2, 3, 5, 5)
(_, s), = program.run({"x": x})
print(s.tolist())
print(_code_cache._load_or_compile.cache_info().currsize, "numba" in sys.modules)
"""


@pytest.mark.parametrize(
    "value",
    (
        None,
        True,
        3,
        0.5,
        np.int8(1),
        np.float32(2),
        np.zeros((2, 3), np.int16),
        np.zeros(4, np.float64),
        (1, np.zeros(1, np.uint8)),
        (1, 2),
        Pair(1, 2),
        Pair(1, np.int32(2)),
        Pair((1, None), Pair(0.5, 2)),
        (),
    ),
    ids=repr,
)
def test_kinds_stand_for_numbas_types(value):
    """Law: what a kind becomes is what Numba itself makes of the value."""
    assert _code_cache._numba_type(_code_cache.argument_type(value)) == numba.typeof(value)


def test_arrays_may_be_written_whatever_they_say():
    """Law: a constant that cannot be written has the type of one that can, so that one code serves
    both.
    """
    x = np.zeros(3)
    x.flags.writeable = False
    assert _code_cache.argument_type(x) == _code_cache.argument_type(np.zeros(3))


def test_other_types_are_other_code():
    """Law: the text of kinds tells apart what Numba tells apart: classes, ranks, numbers of
    members.
    """
    values = [
        np.zeros(1, np.int8),
        np.zeros((1, 1), np.int8),
        np.zeros(1, np.int16),
        (1, 2),
        Pair(1, 2),
        ((1,), 2),
        1,
    ]
    assert len(
        {_code_cache._type_key(_code_cache.argument_type(value)) for value in values}
    ) == len(values)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Return an empty cache that is used until the end of the test."""
    monkeypatch.setenv("LINGERONNX_CACHE_DIR", str(tmp_path))
    _disk_cache.cache_folder.cache_clear()
    yield tmp_path
    _disk_cache.cache_folder.cache_clear()


def twice(x, y):
    for i in range(x.size):
        y[i] = 2 * x[i]


def test_a_file_that_cannot_be_linked_is_compiled_anew(cache):
    """Law: where Numba's libraries lack a function, the code comes from Numba, and the answer is
    the same.
    """
    kinds = (_code_cache.argument_type(np.zeros(1)), _code_cache.argument_type(np.zeros(1)))
    _code_cache._load_or_compile(jit(twice), kinds)
    (path,) = cache.rglob("*.loop")
    head, _, code = _disk_cache.read_code(path.stem, "loop").partition(b"\n")
    symbol, names = json.loads(head)
    assert "twice" in symbol
    for told, kept in (([*names, "NRT_there_is_none"], code), (names, b"no code at all")):
        _disk_cache.write_code(
            path.stem, "loop", json.dumps([symbol, told]).encode() + b"\n" + kept
        )
        assert _code_cache._load_or_compile(jit(twice), kinds)
        head, _, again = _disk_cache.read_code(path.stem, "loop").partition(b"\n")  # written again
        assert json.loads(head)[1] == names
        assert len(again) == len(code)


def test_what_another_process_compiles_is_waited_for(cache, monkeypatch):
    """Law: two processes that need the same code compile it once."""
    kinds = (_code_cache.argument_type(np.zeros(1)), _code_cache.argument_type(np.zeros(1)))
    _code_cache._load_or_compile(jit(twice), kinds)
    (path,) = cache.rglob("*.loop")
    kept = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(_code_cache, "_compile_and_store", None)  # compiling would fail
    with ThreadPoolExecutor(1) as pool:
        with _disk_cache.exclusive_lock(path.stem):  # as another process holds it
            found = pool.submit(_code_cache._load_or_compile, jit(twice), kinds)
            with pytest.raises(TimeoutError):
                found.result(0.2)
            path.write_bytes(kept)
        assert found.result()
    assert list(path.parent.iterdir()) == [path]


def test_code_is_of_a_target(monkeypatch):
    """Law: other settings of Numba, such as another processor, are other code."""
    before, key = _disk_cache._environment_key(), _disk_cache.make_cache_key("a")
    _disk_cache._environment_key.cache_clear()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    other, after = _disk_cache._environment_key(), _disk_cache.make_cache_key("a")
    _disk_cache._environment_key.cache_clear()
    assert before != other
    assert key != after
    assert numba.__version__ in before


def test_numbas_libraries_are_found_without_numba():
    """What they offer is what Numba itself links with, at the same addresses."""
    from numba.core.runtime import _nrt_python

    assert (
        _code_cache._library_function_address("NRT_MemInfo_alloc_aligned")
        == _nrt_python.c_helpers["MemInfo_alloc_aligned"]
    )
    assert (
        _code_cache._library_function_address("numba_attempt_nocopy_reshape")
        == numba._helperlib.c_helpers["attempt_nocopy_reshape"]
    )
    assert _code_cache._library_function_address("NRT_there_is_none") is None
    assert _code_cache._library_function_address("memset") is None


@pytest.mark.slow
def test_a_second_process_needs_no_numba(tmp_path):
    """Law: every loop is kept, a later process links all of them without Numba, and computes the
    same integers.
    """

    def run(before=""):
        done = subprocess.run(
            [sys.executable, "-c", before + _PROGRAM],
            cwd=ROOT,
            env={**os.environ, "LINGERONNX_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        numbers, told = done.stdout.splitlines()
        return numbers, told.split()

    first, (count, imported) = run()
    assert imported == "True"
    assert int(count) == len(list(tmp_path.rglob("*.loop"))) >= 3
    assert run() == (first, [count, "False"])
    # as on ARM
    near = (
        "from simulator import _llvm; del _llvm._get_lljit; _llvm._link_with_lljit = "
        "_llvm._link_with_mcjit"
    )
    assert run(near) == (first, [count, "False"])


def test_a_numba_that_is_being_imported_is_not_asked(monkeypatch):
    """Law: while another thread imports Numba, its settings are those of the environment."""
    monkeypatch.setitem(sys.modules, "numba.core.config", ModuleType("numba.core.config"))
    for text, told in (("0", False), ("1", True)):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", text)
        assert config.DISABLE_JIT is told
