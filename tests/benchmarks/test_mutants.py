"""Mutants are drawn by seed and package, change one place, and a probe notes which test runs it."""

import importlib
import json
import sys

import pytest

from benchmarks.mutants import __main__ as mutants
from benchmarks.mutants.sites import apply_mutant, draw_mutants, find_sites, instrument, share_out

SOURCE = '''"""Docstring with 1 and 127."""
__all__ = ["scale"]


def scale(value: int, low: int = -128) -> int:
    """Scale."""
    if value > 127:
        raise ValueError(f"{value:.2f} is above 127")
    return max(low, value + 1)
'''


@pytest.fixture
def tree(tmp_path):
    """A checkout of two packages with one module each."""
    for package in ("lingeronnx/plan", "simulator"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "scale.py").write_text(SOURCE)
    return tmp_path


def test_every_rule_has_its_sites(tree):
    sites = [
        (site.rule, site.original, site.replacement)
        for site in find_sites(tree)
        if site.package == "plan"
    ]
    assert ("comparison", "value > 127", "((value) >= (127))") in sites
    assert ("dropped branch", "value > 127", "(False and (value > 127))") in sites
    assert ("error class", "ValueError", "RuntimeError") in sites
    assert ("swapped arguments", "max(low, value + 1)", "max(value + 1, low)") in sites
    assert ("arithmetic", "value + 1", "((value) - (1))") in sites
    assert sorted(original for rule, original, _ in sites if rule == "constant") == [
        "1",
        "127",
        "128",
    ]


def test_a_seed_draws_the_same_mutants_from_every_package(tree):
    first, second = draw_mutants(tree, 6, 1), draw_mutants(tree, 6, 1)
    assert first == second != draw_mutants(tree, 6, 2)
    assert [mutant.number for mutant in first] == [1, 2, 3, 4, 5, 6]
    assert {mutant.package for mutant in first} == {"plan", "simulator"}


def test_packages_share_by_their_sites():
    assert share_out({"a": 90, "b": 9, "c": 1}, 10) == {"a": 7, "b": 2, "c": 1}
    with pytest.raises(ValueError, match="fewer than the 3 packages"):
        share_out({"a": 1, "b": 1, "c": 1}, 2)


def test_a_mutant_changes_one_place_of_the_version_that_it_was_drawn_from(tree):
    (mutant,) = (
        site for site in find_sites(tree) if (site.package, site.rule) == ("plan", "comparison")
    )
    before = apply_mutant(tree, mutant)
    path = tree / mutant.path
    assert before == SOURCE
    assert path.read_text() == SOURCE.replace("if value > 127:", "if ((value) >= (127)):")
    with pytest.raises(ValueError, match="holds '.*', but mutant 0 replaces 'value > 127'"):
        apply_mutant(tree, mutant)


def test_a_probe_notes_which_test_runs_a_mutant(tree, tmp_path, monkeypatch):
    (mutant,) = (
        site for site in find_sites(tree) if (site.package, site.rule) == ("plan", "error class")
    )
    hits = tmp_path / "hits"
    assert instrument(tree, [mutant], hits) == []
    monkeypatch.syspath_prepend(str(tree / "lingeronnx" / "plan"))
    monkeypatch.syspath_prepend(str(tree))
    module = importlib.import_module("scale")
    try:
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_a.py::test_low (call)")
        assert module.scale(1) == 2
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_a.py::test_high (call)")
        with pytest.raises(ValueError, match="above 127"):
            module.scale(200)
    finally:
        for name in ("scale", "mutant_probe"):
            sys.modules.pop(name, None)
    assert mutants.read_hits(hits) == {0: {"tests/test_a.py::test_high"}}


def test_tests_of_the_module_come_first(tree):
    mutant = next(site for site in find_sites(tree) if site.package == "plan")
    seconds = {
        "tests/plan/test_scale.py::a": 5.0,
        "tests/plan/test_b.py::b": 2.0,
        "tests/run/test_c.py::c": 0.1,
    }
    assert mutants.order_tests(reversed(list(seconds)), mutant, seconds) == list(seconds)
    assert mutants.cut_tests(list(seconds), seconds, 7.05) == list(seconds)[:2]


def test_the_journal_names_drawn_mutants_only():
    kept = mutants.read_mutants()
    rows = [json.loads(line) for line in mutants.JOURNAL.read_text().splitlines()]
    assert len(kept) == 60
    assert {row["mutant"] for row in rows} <= {mutant.number for mutant in kept}


def test_a_failure_is_read_without_temporary_folders(tmp_path):
    report = tmp_path / "report.xml"
    failure = '<failure message="DataError: no file at /home/a/b/notes.txt: give one&#10;more"/>'
    case = f'<testcase classname="tests.run.test_a" name="test_b[1]">{failure}</testcase>'
    report.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    assert mutants.read_failure(report) == (
        "tests/run/test_a.py::test_b[1]",
        "DataError: no file at .../notes.txt: give one",
    )
    report.write_text("<testsuites/>")
    assert mutants.read_failure(report) == ("", "")
