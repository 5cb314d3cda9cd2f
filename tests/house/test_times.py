"""The table of where the time of a run goes: laws on invented durations, and a run of invented tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.times import SLOWEST, folder, table

ROOT = Path(__file__).resolve().parents[2]


def test_folders_are_those_below_tests():
    assert folder("tests/flow/observe/test_a.py::test_b[x/y]") == "flow"
    assert folder("tests/test_a.py::test_b") == "."
    assert folder("other/test_a.py::test_b") == "other"


def test_parts_of_one_test_count_together_and_folders_are_sorted_by_seconds():
    parts = [
        ("tests/run/test_a.py::one", 0.5), ("tests/run/test_a.py::one", 0.5), ("tests/run/test_b.py::two", 2.0),
        ("tests/fit/test_c.py::three", 9.0),
    ]  # fmt: skip
    lines = table(parts)
    blank = lines.index("")
    assert [line.split() for line in lines[1:blank]] == [["fit", "1", "9.0", "75%"], ["run", "2", "3.0", "25%"]]
    slowest = [line.split() for line in lines[blank + 2 :]]
    assert slowest == [["9.0", parts[3][0]], ["2.0", parts[2][0]], ["1.0", parts[0][0]]]


def test_a_few_slowest_tests_of_many_are_named():
    lines = table((f"tests/run/test_a.py::{number}", number / 10) for number in range(100))
    named = lines[lines.index("") + 2 :]
    assert len(named) == SLOWEST
    assert named[0].split() == ["9.9", "tests/run/test_a.py::99"]
    assert len(table([("tests/run/test_a.py::none", 0.0)])) == 5  # no time at all is no division by zero


def test_a_run_in_other_processes_ends_with_the_table(tmp_path):
    for name, count in (("fit", 2), ("run", 1)):
        (tmp_path / "tests" / name).mkdir(parents=True)
        text = f"import pytest\n@pytest.mark.parametrize('i', range({count}))\ndef test_it(i):\n    assert True\n"
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.times", "-n", "1", "--times"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = re.findall(r"^(fit|run) +(\d+) +[\d.]+ +\d+%$", said, re.M)
    assert {name: int(tests) for name, tests in rows} == {"fit": 2, "run": 1}
    assert len(re.findall(r"^ +[\d.]+  tests/(?:fit|run)/test_\w+\.py::test_it\[\d\]$", said, re.M)) == 3
