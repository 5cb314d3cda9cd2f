"""The table of promises: what is compared, how it is told, and one model of our own."""

import pytest

from benchmarks import promises_kept
from benchmarks.promises_kept import NO, NONE, PAST, YES, Answers, Model, answers, inserted, models, table
from tests.each import check_each
from tests.packer import Verdict


def test_agreement():
    """Both judges say the same, and what is promised is what they found."""

    def check(verdicts, agree):
        assert Answers("net", "arcs", *verdicts).agree == agree

    cases = (
        ((YES, YES, YES), True),
        ((YES, PAST, PAST), True),
        ((NO, NO, NO), True),
        ((YES, YES, NO), False),
        ((YES, NO, NO), False),
        ((NO, YES, YES), False),
        ((YES, PAST, YES), False),
        ((NO, NONE, NONE), True),
    )
    check_each(check, cases)


def test_table():
    """One row each; reasons on one line, cut where they are long; the sums below."""
    rows = [
        Answers("net", "venus", YES, YES, YES),
        Answers("net", "arcs", YES, YES, NO, "a | b\nc"),
        Answers("net", "venusA", NO, NONE, NONE, "x" * 500),
    ]
    text = table(rows)
    assert "| net | arcs | yes | yes | no | **differ:** a \\| b c |" in text
    assert "Promised: 2 of 3, 1 of these by both judges without reserve." in text
    assert "alike on 1 of 2 graphs" in text
    assert all(len(line) < 250 for line in text.splitlines())


def test_page():
    """The part between the marks is replaced, and what stands around it stays; a page without marks is refused."""
    page = "before\n<!-- written by benchmarks/promises_kept.py -->\nold\n<!-- up to here -->\nafter\n"
    new = inserted(page, "new\n")
    assert new == page.replace("old", "new")
    assert inserted(new, "new\n") == new
    with pytest.raises(ValueError, match="no part between"):
        inserted("nothing", "new")


def test_our_own_model():
    """The digits' net is promised on each chip, and both judges say so."""
    found = [model for model in models() if model.name == "digits_cnn"]
    rows = list(answers(found, effort="fast", limit=8))
    assert [(row.chip, row.quantize, row.judge, row.oracle, row.why) for row in rows] == [
        (chip, YES, YES, YES, "") for chip in ("venus", "arcs", "venusA")
    ]


def test_a_judge_that_says_no(monkeypatch):
    """Its first reason stands in the row; what writes past the plan and nothing else is told apart."""
    found = [model for model in models() if model.name == "digits_cnn"]
    for problems, past, word in ((["too wide", "b"], [], NO), (["writes past"], ["writes past"], PAST)):
        said = Verdict(True, False, problems, past=past)
        monkeypatch.setattr(promises_kept, "second_judge", lambda *_, said=said: said)
        (row,) = answers(found, ["arcs"], effort="fast", limit=8)
        assert row == Answers("digits_cnn", "arcs", YES, YES, word, problems[0])


def test_a_model_that_cannot_be_quantized(tmp_path):
    """It has a row, too, with the message."""
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (row,) = answers([Model("broken", tmp_path / "broken.onnx", None)], ["venus"])
    assert (row.quantize, row.judge, row.oracle) == (NO, NONE, NONE)
    assert row.why.startswith("not quantized: ")
