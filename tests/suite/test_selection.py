"""The choice of cases: properties of covering sets, and what each tier runs of an invented test
file.
"""

import os
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.case_selection import limit_examples
from tests.selection import MAX_CASES, cover_values, select_cases

ROOT = Path(__file__).resolve().parents[2]
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
TRIPLES = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2))


@limit_examples(60)
@given(SIZES)
def test_a_product_shows_each_value_once(sizes):
    """Every value of every parameter, and no more cases than the longest parameter has values."""
    cases = list(product(*(range(size) for size in sizes)))
    chosen = [cases[index] for index in cover_values(cases)]
    assert [{case[axis] for case in chosen} for axis in range(len(sizes))] == [
        {*range(size)} for size in sizes
    ]
    assert len(chosen) == max(sizes)


def test_values_take_turns():
    """A short parameter's values come equally often beside a long one's."""
    cases = list(product(range(8), range(2), range(4)))
    chosen = [cases[index] for index in cover_values(cases)]
    assert Counter(case[1] for case in chosen) == {0: 4, 1: 4}
    assert Counter(case[2] for case in chosen) == {0: 2, 1: 2, 2: 2, 3: 2}


@limit_examples(60)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)),
        unique=True,
        min_size=1,
        max_size=30,
    )
)
def test_any_cases_show_each_value(cases):
    """The same if some combinations are missing; in the order of the cases, none twice."""
    indices = cover_values(cases)
    assert indices == sorted({*indices})
    assert all(
        {cases[index][axis] for index in indices} == {case[axis] for case in cases}
        for axis in range(3)
    )


CASES = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(0, 2), st.sets(st.sampled_from(["slow", "deep", "sweep"]))
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda case: case[:2],
)


@limit_examples(100)
@given(CASES)
def test_both_tiers_together_show_each_value(drawn):
    """Nothing that is not marked deep is lost; the fast tier has few cases of a sweep, and none
    twice.
    """
    cases, marks = [case[:2] for case in drawn], [case[2] for case in drawn]
    fast, slow = select_cases(cases, marks, "fast"), select_cases(cases, marks, "slow")
    assert len(fast) <= MAX_CASES or not any("sweep" in marks[index] for index in fast)
    assert not set(fast) & set(slow)
    allowed = [index for index in range(len(cases)) if "deep" not in marks[index]]
    assert {*fast, *slow} <= set(allowed)
    for axis in range(2):
        assert {cases[index][axis] for index in (*fast, *slow)} == {
            cases[index][axis] for index in allowed
        }
    assert bool(fast) == any(not marks[index] & {"slow", "deep"} for index in allowed)


def test_random_examples_run_in_both_tiers():
    assert select_cases([()], [set()], "fast", is_random=True) == [0]
    assert select_cases([()], [set()], "slow", is_random=True) == [0]
    assert select_cases([()], [set()], "slow") == []


INVENTED = """
import pytest
from hypothesis import given, strategies as st

@pytest.mark.sweep
@pytest.mark.parametrize("b, c", [(0, 0), (0, 1)])
@pytest.mark.parametrize("a", range(3))
def test_product(a, b, c): pass

@pytest.mark.sweep
@pytest.mark.parametrize(["a"], [(i,) for i in range(40)])
def test_many(a): pass

@pytest.mark.parametrize("b", range(2))
@pytest.mark.parametrize("a", range(5))
def test_cheap(a, b): pass

@pytest.fixture(params="xyz")
def letter(request): return request.param

@pytest.mark.parametrize("a", range(2))
def test_fixture(a, letter): pass

@pytest.mark.parametrize("a", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_deeper(a): pass

@pytest.mark.slow
@pytest.mark.parametrize("a", range(2))
def test_all_slow(a): pass

@pytest.mark.slow
def test_slow(): pass

def test_plain(): pass

@given(st.integers())
def test_random(x): pass
"""
FAST = {"product": 2, "many": 2, "cheap": 5, "fixture": 3, "deeper": 1, "plain": 1, "random": 1}
SLOW = {"product": 1, "many": 38, "all_slow": 2, "slow": 1, "random": 1}
ALL = {
    "product": 6,
    "many": 40,
    "cheap": 10,
    "fixture": 6,
    "deeper": 2,
    "all_slow": 2,
    "slow": 1,
    "plain": 1,
    "random": 1,
}


def collect(folder, tier, *arguments):
    """Collect the invented tests in a tier; return how many cases each test has, by its name."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "LINGERONNX_TESTS": tier}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    output = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=True
    ).stdout
    lines = [line for line in output.splitlines() if "::" in line]
    return Counter(line.partition("::test_")[2].partition("[")[0] for line in lines)


@pytest.mark.sweep
@pytest.mark.parametrize("tier, expected", (("fast", FAST), ("slow", SLOW), ("all", ALL)))
def test_what_a_tier_collects(tier, expected, tmp_path):
    """The real hooks, in a process of their own."""
    (tmp_path / "test_invented.py").write_text(INVENTED)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    markers = "[pytest]\nmarkers =\n  slow: slow\n  deep: deep\n  sweep: sweep\n"
    (tmp_path / "pytest.ini").write_text(markers)
    assert collect(tmp_path, tier) == expected
    if tier == "fast":
        assert collect(tmp_path, tier, "test_invented.py::test_many[7]") == {"many": 1}
