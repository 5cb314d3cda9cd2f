"""Closed and full streams: what was written stays, the exit code says what was lost, and no text
ends in a file.
"""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import lingeronnx
from lingeronnx import cli

DEMO = Path(lingeronnx.__file__).parent / "cli" / "demo_model"


@pytest.mark.parametrize(
    "streams, code",
    [
        pytest.param(">/dev/full", 1, id="full", marks=pytest.mark.slow),
        pytest.param(">&-", 1, id="no stdout", marks=pytest.mark.slow),
        pytest.param("2>&-", 0, id="no stderr", marks=pytest.mark.slow),
        pytest.param("<&- >&- 2>&-", 1, id="none", marks=pytest.mark.slow),
    ],
)
def test_quantize(tmp_path, streams, code):
    words = (
        f"quantize {DEMO}/digits_cnn.onnx --calib {DEMO}/digits_calib.npz --effort fast -o "
        f"q.onnx {streams}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m lingeronnx {words}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.onnx"]
    onnx.load(tmp_path / "q.onnx")
    assert "Traceback" not in done.stderr
    if streams.startswith(">"):
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "files already written remain" in done.stderr


#: Exits with 0 if the numbers of the standard streams are taken, so that no file that is opened gets one of them.
REPLACE_STREAMS = """
import os, sys
from lingeronnx import cli
cli._replace_closed_streams()
null = os.stat(os.devnull).st_rdev
sys.stderr.write("lost")
devices = [os.fstat(number).st_rdev for number in range(3)]
sys.exit(devices != [null] * 3 or not isinstance(sys.stdout, cli._ClosedStream))
"""


def test_closed_streams_are_replaced_before_files_are_opened(tmp_path):
    (tmp_path / "replace.py").write_text(REPLACE_STREAMS)
    command = f"{sys.executable} replace.py <&- >&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(Path(lingeronnx.__file__).parents[1])}
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment).returncode == 0


def test_a_closed_output_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["platforms"])
    assert ended.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: standard output is closed (files already written remain)"


class FullDisk(io.StringIO):
    """A stream that takes nothing."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("arguments", [["platforms"], ["platforms", "--json"]])
def test_a_full_output_is_told_in_one_line(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: No space left on device (files already written remain)"
