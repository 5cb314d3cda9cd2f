"""Closed and full streams: what was written stays, the exit code says what was lost, and no text ends in a file."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import lingeronnx

DEMO = Path(lingeronnx.__file__).parent / "demo"


@pytest.mark.parametrize(
    "streams, code",
    [(">/dev/full", 1), (">&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)],
    ids=["full", "no stdout", "no stderr", "none"],
)
def test_quantize(tmp_path, streams, code):
    words = f"quantize {DEMO}/digits_cnn.onnx --calib {DEMO}/digits_calib.npz --effort fast -o q.onnx {streams}"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m lingeronnx {words}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.onnx"]
    onnx.load(tmp_path / "q.onnx")
    assert "Traceback" not in done.stderr
    if streams.startswith(">"):
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "what was written to files stays" in done.stderr
