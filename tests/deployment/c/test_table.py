"""The benchmark that deploys, compiles and proves every model: its table, and one row of it."""

import json
import shutil

import pytest

from benchmarks import c_programs as benchmark
from lingeronnx.deployment.c_program import host_source


def test_fresh_data():
    """Test data stand beside calibration data; the folder's name is left alone."""
    assert benchmark.find_test_data("calib/loaders.py:ad_calib") == "calib/loaders.py:ad_test"
    assert benchmark.find_test_data("calib/digits_calib.npz") == "calib/digits_test.npz"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("cc") is None or host_source.explain_missing_generator() is not None,
    reason="no C compiler, or no generator",
)
def test_a_row(tmp_path, capsys):
    """One model: proved, with the sanitizers; the log is read again, and the page says what was not
    run.
    """
    words = [
        "--chips",
        "venus",
        "--effort",
        "fast",
        "--samples",
        "2",
        "--log",
        str(tmp_path / "log"),
    ]
    assert (
        benchmark.main(["--only", "digits_cnn", "digits_lstm", "--sanitize", "--jobs", "2", *words])
        == 0
    )
    made = {
        told["model"]: told for told in map(json.loads, (tmp_path / "log").read_text().splitlines())
    }
    assert set(made) == {"digits_cnn", "digits_lstm"}
    told = made["digits_cnn"]
    assert (told["failed"], told["differing"]) == ([], 0)
    assert told["sanitized"].startswith("PASS")
    page = tmp_path / "page.md"
    page.write_text(f"# Programs\n\n{benchmark.START}{benchmark.END}\n")
    assert benchmark.main(["--write", str(page), *words]) == 0
    capsys.readouterr()
    text = page.read_text()
    assert f"| digits_cnn | venus | 1 | 100.0% | {told['sqnr']:.1f} | 0 |" in text
    assert "2 of 2 programs passed" in text
    assert "Not run: digits_attention on venus" in text


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("cc") is None or host_source.explain_missing_generator() is not None,
    reason="no C compiler, or no generator",
)
def test_a_stream(tmp_path, capsys):
    """A net with states runs for as many calls as are asked for, longer than its data, beside two
    sessions.
    """
    words = [
        "--only",
        "stream_lstm",
        "--chips",
        "arcs",
        "--effort",
        "fast",
        "--stream-calls",
        "5",
        "--calls",
        "1000",
    ]
    assert benchmark.main([*words, "--log", str(tmp_path / "log")]) == 0
    stream = json.loads((tmp_path / "log").read_text())["stream"]
    assert (stream["calls"], stream["failed"], stream["grows"], len(stream["errors"])) == (
        1000,
        [],
        False,
        1,
    )
    assert "| stream_lstm | arcs | 1,000 | yes | 0 of 3,000 |" in capsys.readouterr().out


def test_a_row_that_takes_too_long(tmp_path, capsys):
    """It is ended and told; it is made again under a larger limit only, and the others go on."""
    log = tmp_path / "log"
    words = [
        "--only",
        "digits_lstm",
        "digits_cnn",
        "--chips",
        "arcs",
        "--log",
        str(log),
        "--jobs",
        "2",
    ]
    assert benchmark.main([*words, "--limit", "0.02"]) == 0
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(told["model"], told["failed"]) for told in rows] == [
        ("digits_lstm", "not done in 0.02 s"),
        ("digits_cnn", "not done in 0.02 s"),
    ]
    assert benchmark.main([*words, "--limit", "0.01"]) == 0
    assert len(log.read_text().splitlines()) == 2
    assert benchmark.main([*words, "--limit", "0.03"]) == 0
    assert len(log.read_text().splitlines()) == 4
    assert "no: not done in 0.03 s" in capsys.readouterr().out


def test_a_process_that_dies(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(benchmark.sys, "executable", "/bin/false")
    log = tmp_path / "log"
    assert (
        benchmark.main(
            ["--only", "digits_cnn", "--chips", "arcs", "--log", str(log), "--limit", "60"]
        )
        == 0
    )
    assert json.loads(log.read_text())["failed"] == "the process ended with 1"
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "digits_ccn"])
    assert "no model 'digits_ccn'; there are digits_attention" in capsys.readouterr().err


def test_a_program_that_fails_is_told():
    rows = [{"model": "m", "chip": "venus", "failed": "not | chip-ready"}]
    text = benchmark.table(rows)
    assert "0 of 1 programs passed; 1 were not written." in text
    assert "no: not" in text


def test_a_kind_of_warning_that_nobody_judged():
    """Each kind says why it may stay, or that nobody has looked."""
    rows = [
        {
            "model": "m",
            "chip": "arcs",
            "cells": ["m", "arcs", "1"] + ["0"] * 12,
            "large": [],
            "host_warnings": {"-Wpedantic": 1200, "-Wnew": 1},
        }
    ]
    text = benchmark.table(rows)
    assert f"- -Wpedantic, 1,200: {benchmark.ACCEPTED_WARNINGS['-Wpedantic']}\n" in text
    assert "- -Wnew, 1: not judged\n" in text


def test_rows_of_the_page_stay(tmp_path, capsys):
    """A log has the rows made last: the others stay where they stand, with what is told of them
    below.
    """
    cells = ["1"] * 9 + ["3 calls"] + ["0"] * 5
    lines = [
        " | ".join([name, chip, *cells])
        for name in ("digits_cnn", "digits_lstm")
        for chip in benchmark.CHIPS
    ]
    large = "- digits_cnn on arcs: host1, 200,000 bytes, 5 float operations"
    old = "\n".join(
        [*(f"| {line} |" for line in lines), "", large, "- digits_lstm on arcs: host1, 9 bytes", ""]
    )
    page, log = tmp_path / "page.md", tmp_path / "log"
    page.write_text(f"# Programs\n\n{benchmark.START}{old}{benchmark.END}\nbelow\n")
    log.write_text(
        json.dumps({"model": "digits_lstm", "chip": "arcs", "failed": "not chip-ready"}) + "\n"
    )
    words = [
        "--log",
        str(log),
        "--write",
        str(page),
        "--only",
        "digits_lstm",
        "digits_gru",
        "--chips",
        "arcs",
    ]
    for _ in range(2):
        assert benchmark.main(words) == 0
        capsys.readouterr()
        text = page.read_text()
        assert [f"| {line} |" in text for line in lines] == [True] * 4 + [False, True]
        assert "| digits_lstm | arcs | no: not chip-ready |" in text
        assert "5 of 6 programs passed; 1 were not written." in text
        assert "Not run: digits_gru on arcs." in text
        assert large in text
        assert "9 bytes" not in text
        assert text.endswith(f"{benchmark.END}\nbelow\n")
