"""`lingeronnx doctor`: what it prints, as JSON too, and its exit code where something is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from lingeronnx.cli.support import self_test
from tests.cli.helpers import CommandFolder

SOUND = self_test.SelfTestResult(nets=1, tensors=2, integers=30, differences=())
BAD = self_test.SelfTestResult(1, 2, 30, (self_test.KernelDifference("venus", "y", 3, 10),))


@pytest.mark.slow
def test_it_finds_nothing_wrong_here(here: CommandFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINGERONNX_SIMD", raising=False)
    text = here.run_ok("doctor")
    assert f"numpy {np.__version__}" in text
    assert "all equal to the plain classes" in text
    assert text.endswith("nothing\n")


def test_as_json(here: CommandFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LINGERONNX_SIMD", raising=False)
    monkeypatch.setattr(self_test, "run_self_test", lambda _: SOUND)
    body = here.json("doctor")
    assert body["self_test"] == {"nets": 1, "tensors": 2, "integers": 30, "differences": []}
    assert body["problems"] == []


def test_a_kernel_that_computes_something_else(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "run_self_test", lambda _: BAD)
    result = here("doctor")
    assert result.exit_code == 1
    assert "NOT equal" in result.stdout
    assert "3 of 10 integers of 'y' differ" in result.stdout


def test_a_row_that_cannot_run_is_told_without_a_test(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINGERONNX_SIMD", "mmx")
    result = here("doctor")
    assert result.exit_code == 1
    assert "unknown instruction set 'mmx'" in result.stdout
    assert "self test" not in result.stdout


@pytest.mark.parametrize(
    "cores, expected",
    ((2, "2 threads"), (1, "2 threads, hyperthreads of 1 core"), (None, "2 threads")),
)
def test_hyperthreads_are_told(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch, cores: int | None, expected: str
) -> None:
    monkeypatch.setattr(self_test, "run_self_test", lambda _: SOUND)
    monkeypatch.setattr("simulator._threads.count_usable_processors", lambda: 2)
    monkeypatch.setattr("simulator._threads.count_usable_cores", lambda: cores)
    (line,) = (line for line in here("doctor").stdout.splitlines() if "threads" in line)
    assert f", {expected}, " in line
