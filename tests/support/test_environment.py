"""What a run stands on, and that what is wrong with it is told with its remedy."""

import json
import os

import pytest

from lingeronnx.cli.support import environment as module
from lingeronnx.cli.support.environment import Requirement, inspect_environment
from simulator import _disk_cache


def test_it_can_be_written_as_json():
    told = json.loads(json.dumps(inspect_environment().to_dict()))
    assert {"numpy", "numba", "onnx", "onnxruntime"} <= {each["name"] for each in told["packages"]}
    assert not {"pytest", "mypy"} & {each["name"] for each in told["packages"]}
    assert told["instructions"] in told["rows"] or os.environ.get("LINGERONNX_SIMD")


@pytest.mark.parametrize(
    "version, limits, fits",
    [
        ("2.0", ">=2.0", True),
        ("1.26.4", ">=2.0", False),
        ("2.13.0+cpu", ">=2.8", True),
        ("1.4.0", "==1.4.0", True),
        ("1.4.1", "==1.4.0", False),
        ("0.17.9", ">=0.17.6,<0.18", True),
        ("0.18", ">=0.17.6,<0.18", False),
        ("2", ">=2.0.0", True),
    ],
)
def test_versions(version, limits, fits):
    assert Requirement("p", version, limits, "").is_satisfied is fits


def test_absent_packages():
    assert Requirement("p", None, ">=1", "torch").is_satisfied
    assert not Requirement("p", None, ">=1", "").is_satisfied


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("LINGERONNX_SIMD", "0", "plain loops"),
        ("LINGERONNX_SIMD", "mmx", "unset LINGERONNX_SIMD"),
        ("LINGERONNX_THREADS", "abc", "unset it"),
        ("NUMBA_DISABLE_JIT", "1", "unset it"),
    ],
)
def test_settings(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    assert any(words in line for line in inspect_environment().problems)


def test_a_cache_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("LINGERONNX_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(_disk_cache, "cache_folder", _disk_cache.cache_folder.__wrapped__)
    around = inspect_environment()
    assert around.cache is None
    assert any("compiled code is not cached" in line for line in around.problems)


@pytest.mark.skipif(os.name != "posix", reason="rights of files")
def test_a_cache_that_others_may_write(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("LINGERONNX_CACHE_DIR", str(tmp_path))
    folder = _disk_cache._create_folder(tmp_path)
    folder.chmod(0o777)
    lines = list(module._find_cache_problems(str(tmp_path / "elsewhere" / "x")))
    assert any("is not used" in line for line in lines)


def test_packages_that_do_not_fit():
    lines = list(
        module._find_package_problems(
            (Requirement("numpy", "1.26", ">=2.0", ""), Requirement("x", None, ">=1", "c"))
        )
    )
    assert lines == ["numpy is 1.26, but lingeronnx requires numpy>=2.0: pip install 'numpy>=2.0'"]
