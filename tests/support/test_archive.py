"""What a report of a bug holds: the command, the traceback, the models without weights; and no
data.
"""

import json
import zipfile

import numpy as np
import onnx

from lingeronnx import api
from lingeronnx.cli.support.bug_report import write_bug_report
from tests.cli.conftest import here  # noqa: F401 - a fixture
from tests.cli.helpers import CALIB, DIGITS


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_what_is_in_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = write_bug_report(
        ["quantize", str(DIGITS), f"--calib={CALIB}", "--fix", "a=b c"], "Traceback: x\n"
    )
    parts = members(path)
    assert set(parts) == {
        "README.txt",
        "command.txt",
        "traceback.txt",
        "environment.json",
        "models/0-digits_cnn.onnx",
    }
    assert parts["command.txt"].decode().endswith("--fix 'a=b c'\n")
    assert json.loads(parts["environment.json"])["packages"]
    bare, model = onnx.load_from_string(parts["models/0-digits_cnn.onnx"]), onnx.load(DIGITS)
    assert [n.op_type for n in bare.graph.node] == [n.op_type for n in model.graph.node]
    weights = {t.name: t.raw_data for t in model.graph.initializer if np.prod(t.dims) > 64}
    assert weights
    assert not any(t.raw_data == weights.get(t.name) for t in bare.graph.initializer)


def test_a_damaged_model_is_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"\x07\x08\x09")
    readme = members(write_bug_report(["check", "bad.onnx"], "x"))["README.txt"].decode()
    assert "not included: bad.onnx: DecodeError" in readme


def test_a_folder_that_is_gone(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    path = write_bug_report(["check"], "x")
    assert path.parent == tmp_path / "temporary"
    assert "environment.json" in members(path)


def test_a_command_that_ends_with_70_writes_it(here, monkeypatch):  # noqa: F811
    def fall(*_, **__):
        raise RuntimeError("oops")

    monkeypatch.setattr(api, "quantize", fall)
    result = here("quantize", "tiny.onnx", "--calib", "calib.npz")
    assert result.exit_code == 70
    (path,) = here.folder.glob("lingeronnx-report-*.zip")
    assert f"{path} has what a bug report needs" in result.stderr
    parts = members(path)
    assert parts["command.txt"].decode() == "lingeronnx quantize tiny.onnx --calib calib.npz\n"
    assert "RuntimeError: oops" in parts["traceback.txt"].decode()


def test_a_failing_archive_does_not_hide_the_bug(here, monkeypatch):  # noqa: F811
    def fall(*_, **__):
        raise RuntimeError("oops")

    monkeypatch.setattr(api, "quantize", fall)
    monkeypatch.setattr("lingeronnx.cli.support.bug_report.write_bug_report", fall)
    result = here("quantize", "tiny.onnx", "--calib", "calib.npz")
    assert result.exit_code == 70
    assert "this is a bug in lingeronnx" in result.stderr


def test_messages_that_print_a_graph_are_cut(monkeypatch, tmp_path):
    """Some libraries print all constants of a model into an exception."""
    monkeypatch.chdir(tmp_path)
    trace = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
        f"ValueError: {'x' * 500} 9.25\n        w = 9.25\n)\n\nThe above exception was the direct "
        "cause:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in h\n    k()\nRuntimeError: '
        "no\n"
    )
    kept = members(write_bug_report(["check"], trace))["traceback.txt"].decode()
    assert "9.25" not in kept
    for line in (
        'File "a.py", line 1, in f',
        "    g()",
        'File "b.py", line 2, in h',
        "    k()",
        "RuntimeError: no",
    ):
        assert line in kept
    assert max(map(len, kept.splitlines())) < 210
