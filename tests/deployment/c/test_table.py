"""The benchmark that deploys, compiles and proves every model: its table, and one row of it."""

import json
import shutil

import pytest

from benchmarks import programs as benchmark
from lingeronnx.deployment.c import host


def test_fresh_data():
    """Test data stand beside calibration data; the folder's name is left alone."""
    assert benchmark.fresh("calib/loaders.py:ad_calib") == "calib/loaders.py:ad_test"
    assert benchmark.fresh("calib/digits_calib.npz") == "calib/digits_test.npz"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or host.available() is not None, reason="no C compiler, or no generator")
def test_a_row(tmp_path, capsys):
    """One model: proved, with the sanitizers; the log is read again, and the page says what was not run."""
    words = ["--chips", "venus", "--effort", "fast", "--samples", "2", "--log", str(tmp_path / "log")]
    assert benchmark.main(["--only", "digits_cnn", "--sanitize", *words]) == 0
    told = json.loads((tmp_path / "log").read_text())
    assert (told["failed"], told["differing"]) == ([], 0)
    assert told["sanitized"].startswith("PASS")
    page = tmp_path / "page.md"
    page.write_text(f"# Programs\n\n{benchmark.START}{benchmark.END}\n")
    assert benchmark.main(["--write", str(page), *words]) == 0
    capsys.readouterr()
    text = page.read_text()
    assert f"| digits_cnn | venus | 1 | 100.0% | {told['sqnr']:.1f} | 0 |" in text
    assert "1 of 1 programs proved" in text
    assert "Not run: digits_attention on venus" in text


def test_a_program_that_fails_is_told():
    rows = [{"model": "m", "chip": "venus", "failed": "not | chip-ready"}]
    text = benchmark.table(rows)
    assert "0 of 1 programs proved; 1 were not written." in text
    assert "no: not" in text
