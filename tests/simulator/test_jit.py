"""The traps of Numba, each with what keeps us out of it."""

import ast
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import simulator
from simulator import _disk_cache, _jit
from simulator.fixed_point import Rescale
from simulator.kernels import Conv, Mul, Requant
from simulator.native import NativeLoop
from simulator.program import Step, TensorSpec, compile_program
from tests.simulator.helpers import integers, run

PACKAGE = Path(simulator.__file__).parent


@pytest.fixture
def folder(monkeypatch):
    """Forget the cache folder before and after."""
    _disk_cache.cache_folder.cache_clear()
    yield monkeypatch
    _disk_cache.cache_folder.cache_clear()


def python(code, root, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_changed_callee_in_another_file_is_noticed(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "simulator", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import numpy as np; from simulator.kernels.elementwise import rescale_flat; from "
        "simulator.fixed_point import "
        "Rescale;"
        "from simulator.native import NativeLoop; y, half = np.zeros(1, np.int8), "
        "Rescale.from_shift(1, 8).compile_for_bound(128);"
        "NativeLoop(rescale_flat, (np.array([3], np.int8), half, y))((), ()); print(y[0])"
    )
    cache = str(tmp_path / "cache")
    assert python(code, tmp_path, LINGERONNX_CACHE_DIR=cache) == "2"
    source = tmp_path / "simulator" / "fixed_point.py"
    text = source.read_text()
    changed = text.replace("rounded = np.int32(acc + rescale.half)", "rounded = np.int32(acc)")
    assert changed != text
    source.write_text(changed)
    assert python(code, tmp_path, LINGERONNX_CACHE_DIR=cache) == "1"
    assert len(list(Path(cache).iterdir())) == 2


def test_the_cache_folder_can_be_chosen(folder, tmp_path):
    folder.setenv("LINGERONNX_CACHE_DIR", str(tmp_path))
    assert Path(_disk_cache.cache_folder()).parent == tmp_path
    assert Path(_disk_cache.cache_folder()).name == f"lingeronnx-{_disk_cache.hash_sources()}"


def test_the_cache_folder_is_the_users(folder, tmp_path):
    folder.delenv("LINGERONNX_CACHE_DIR", raising=False)
    folder.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(_disk_cache.cache_folder()).parent == tmp_path
    _disk_cache.cache_folder.cache_clear()
    folder.delenv("XDG_CACHE_HOME")
    folder.setenv("HOME", str(tmp_path))
    assert Path(_disk_cache.cache_folder()).parent == tmp_path / ".cache"


def test_nothing_is_cached_where_nothing_can_be_written(folder, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    folder.setenv("LINGERONNX_CACHE_DIR", str(blocker))
    assert _disk_cache.cache_folder() is None
    x = np.array([3])
    NativeLoop(_jit.jit(_double), (x,))((), ())
    assert x[0] == 6


def _double(x):
    x[0] *= 2


def test_numba_may_be_half_imported_by_another_thread(monkeypatch):
    """Law: a thread that asks whether to compile meanwhile takes the environment's word."""
    monkeypatch.setitem(sys.modules, "numba.core.config", ModuleType("numba.core.config"))
    for word, disabled in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", word)
        assert _jit.config.DISABLE_JIT is disabled


def test_neither_fastmath_nor_numbas_threads_are_used():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                {keyword.arg for keyword in node.keywords} if isinstance(node, ast.Call) else set()
            )
            assert not names & {"fastmath", "parallel"}, path
            assert not (isinstance(node, ast.Name) and node.id == "prange"), path


def test_importing_the_package_and_the_protocol_imports_no_numba():
    assert (
        python("import simulator.kernel, sys; print('numba' in sys.modules)", PACKAGE.parent)
        == "False"
    )


def test_the_package_imports_nothing_above_it():
    allowed = {"numba", "numpy", "llvmlite", "simulator", *sys.stdlib_module_names}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_products_of_int32_do_not_wrap():
    x = np.full((1, 2), 2**31 - 1, np.int32)
    y = np.full((1, 2), 2**15 - 1, np.int16)
    assert run(Mul(Rescale.from_shift(20, 32)), x, y).tolist() == [[67106816] * 2]


def test_large_values_saturate_when_stored():
    x = np.array([[200, -200, 2**31 - 1, -(2**31)]], np.int32)
    assert run(Requant(Rescale.from_shift(0, 8)), x).tolist() == [[127, -128, 127, -128]]


def test_halves_are_rounded_up():
    assert run(Requant(Rescale.from_shift(1, 8)), np.array([[5, -5, 3]], np.int8)).tolist() == [
        [3, -2, 2]
    ]


def test_programs_may_be_run_by_many_threads_at_once():
    rng = np.random.default_rng(0)
    conv = Conv(integers(rng, (16, 3, 3, 3)), None, Rescale.from_shift(9, 8), None, (1, 1, 1, 1))
    program = compile_program(
        [Step(conv, ("x",), ("y",))],
        {"x": TensorSpec((1, 3, 8, 8), np.int8)},
        ["y"],
        block=2,
        threads=2,
    )
    feeds = [integers(rng, (9, 3, 8, 8)) for _ in range(12)]
    alone = [dict(program.run({"x": x}))["y"] for x in feeds]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda x: dict(program.run({"x": x}))["y"], feeds))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
