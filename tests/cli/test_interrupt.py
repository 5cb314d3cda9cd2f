"""Ctrl-C at any time: one line on stderr, exit code 130, no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

_RUN = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}
        return None

sys.meta_path.insert(0, Interrupting())
sys.argv = ["lingeronnx", *{words!r}]
from lingeronnx.__main__ import main
main()
"""
_COMMAND = ["quantize", "m.onnx", "--calib", "d.npz"]


def interrupt_import(module: str, error: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in which the import of `module` raises `error`."""
    code = _RUN.format(module=module, error=error, words=words)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "module",
    ["click", "lingeronnx.cli", "lingeronnx.cli.models.quantize", "lingeronnx.api", "numpy"],
)
def test_ctrl_c_during_an_import(module):
    """Of the command line itself, of a command, and of a library that a command needs."""
    result = interrupt_import(module, "KeyboardInterrupt", _COMMAND)
    assert (result.returncode, result.stderr, result.stdout) == (130, "interrupted\n", "")


def test_ctrl_c_that_a_library_replaces():
    """An extension module reports the interrupt as an ImportError."""
    error = "ImportError('initialization failed') from KeyboardInterrupt()"
    result = interrupt_import("numpy", error, _COMMAND)
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_an_import_that_fails_otherwise_is_no_interrupt():
    """Only a KeyboardInterrupt counts."""
    result = interrupt_import("numpy", "ImportError('none')", _COMMAND)
    assert result.returncode == 70
    assert "interrupted" not in result.stderr
