"""The tables of where the time of a run went: invented durations, and a run of invented tests."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import times
from tests.times import MAX_FAST_SECONDS, MAX_LISTED, folder_of, format_tables, sum_by_test

ROOT = Path(__file__).resolve().parents[2]


def test_folders_are_those_below_tests():
    assert folder_of("tests/flow/observe/test_a.py::test_b[x/y]") == "flow"
    assert folder_of("tests/test_a.py::test_b") == "."
    assert folder_of("other/test_a.py::test_b") == "other"


def test_parts_of_one_test_count_together_and_folders_are_sorted_by_seconds():
    parts = [
        ("tests/run/test_a.py::one", 0.5),
        ("tests/run/test_a.py::one", 0.5),
        ("tests/run/test_b.py::two", 2.0),
        ("tests/fit/test_c.py::three", 9.0),
    ]
    lines = format_tables(sum_by_test(parts))
    blank = lines.index("")
    assert [line.split() for line in lines[1:blank]] == [
        ["fit", "1", "9.0", "75%"],
        ["run", "2", "3.0", "25%"],
    ]
    slowest = [line.split() for line in lines[blank + 2 :]]
    assert slowest == [["9.0", parts[3][0]], ["2.0", parts[2][0]], ["1.0", parts[0][0]]]


def test_a_few_slowest_tests_of_many_are_named():
    lines = format_tables(
        sum_by_test((f"tests/run/test_a.py::{number}", number / 10) for number in range(100))
    )
    named = lines[lines.index("") + 2 :]
    assert len(named) == MAX_LISTED
    assert named[0].split() == ["9.9", "tests/run/test_a.py::99"]
    assert (
        len(format_tables(sum_by_test([("tests/run/test_a.py::none", 0.0)]))) == 5
    )  # no time at all is no division by zero


def test_a_run_in_other_processes_ends_with_the_table(tmp_path):
    for name, count in (("fit", 2), ("run", 1)):
        (tmp_path / "tests" / name).mkdir(parents=True)
        text = (
            "import "
            f"pytest\n@pytest.mark.parametrize('i', range({count}))\ndef test_it(i):\n   "
            " assert True\n"
        )
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    output = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.times", "-n", "1", "--times"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = re.findall(r"^(fit|run) +(\d+) +[\d.]+ +\d+%$", output, re.M)
    assert {name: int(tests) for name, tests in rows} == {"fit": 2, "run": 1}
    assert (
        len(re.findall(r"^ +[\d.]+  tests/(?:fit|run)/test_\w+\.py::test_it\[\d\]$", output, re.M))
        == 3
    )


class Terminal:
    """A terminal reporter with reports of two tests, that keeps what is written to it."""

    def __init__(self):
        durations = {
            "tests/run/test_a.py::long": MAX_FAST_SECONDS + 1,
            "tests/run/test_a.py::short": 1.0,
        }
        reports = [
            SimpleNamespace(nodeid=nodeid, duration=seconds)
            for nodeid, seconds in durations.items()
        ]
        self.stats, self.lines = {"passed": reports, "deselected": [object()]}, []

    def section(self, title):
        self.lines.append(title)

    def write_line(self, line, **_):
        self.lines.append(line)


@pytest.mark.parametrize("tier, count", (("fast", 2), ("slow", 0), ("all", 0)))
def test_the_fast_tier_names_tests_that_are_too_slow(tier, count, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(times, "TIER", tier)
    times.pytest_terminal_summary(terminal, SimpleNamespace(getoption=lambda name: False))
    assert len(terminal.lines) == count
    assert all("::short" not in line for line in terminal.lines)
    assert not count or "6.0  tests/run/test_a.py::long" in terminal.lines[1]
