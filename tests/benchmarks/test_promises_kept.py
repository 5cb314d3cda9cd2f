"""The table of promises: what is compared, how it is told, and one model of our own."""

import pytest

from benchmarks import packability_agreement
from benchmarks.packability_agreement import (
    NO,
    NOT_ASKED,
    PAST_PLAN,
    YES,
    Model,
    PackabilityAnswers,
    find_models,
    format_table,
    iterate_answers,
    replace_section,
)
from tests.each import check_each
from tests.packer import Verdict


def test_agreement():
    """Both judges say the same, and what is promised is what they found."""

    def check(verdicts, agree):
        assert PackabilityAnswers("net", "arcs", *verdicts).is_consistent == agree

    cases = (
        ((YES, YES, YES), True),
        ((YES, PAST_PLAN, PAST_PLAN), True),
        ((NO, NO, NO), True),
        ((YES, YES, NO), False),
        ((YES, NO, NO), False),
        ((NO, YES, YES), False),
        ((YES, PAST_PLAN, YES), False),
        ((NO, NOT_ASKED, NOT_ASKED), True),
    )
    check_each(check, cases)


def test_table():
    """One row each; reasons on one line, cut where they are long; the sums below."""
    rows = [
        PackabilityAnswers("net", "venus", YES, YES, YES),
        PackabilityAnswers("net", "arcs", YES, YES, NO, "a | b\nc"),
        PackabilityAnswers("net", "venusA", NO, NOT_ASKED, NOT_ASKED, "x" * 500),
    ]
    text = format_table(rows)
    assert "| net | arcs | yes | yes | no | **differ:** a \\| b c |" in text
    assert "Promised: 2 of 3, 1 of these by both judges without reserve." in text
    assert "alike on 1 of 2 graphs" in text
    assert all(len(line) < 250 for line in text.splitlines())


def test_page():
    """The part between the marks is replaced, and what stands around it stays; a page without marks
    is refused.
    """
    page = (
        "before\n<!-- written by benchmarks/packability_agreement.py -->\nold\n<!-- up to here "
        "-->\nafter\n"
    )
    new = replace_section(page, "new\n")
    assert new == page.replace("old", "new")
    assert replace_section(new, "new\n") == new
    with pytest.raises(ValueError, match="no part between"):
        replace_section("nothing", "new")


def test_our_own_model():
    """The digits' net is promised on each chip, and both judges say so."""
    found = [model for model in find_models() if model.name == "digits_cnn"]
    rows = list(iterate_answers(found, effort="fast", limit=8))
    assert [(row.chip, row.quantize, row.judge, row.oracle, row.why) for row in rows] == [
        (chip, YES, YES, YES, "") for chip in ("venus", "arcs", "venusA")
    ]


def test_a_judge_that_says_no(monkeypatch):
    """Its first reason stands in the row; what writes past the plan and nothing else is told
    apart.
    """
    found = [model for model in find_models() if model.name == "digits_cnn"]
    for problems, past, word in (
        (["too wide", "b"], [], NO),
        (["writes past"], ["writes past"], PAST_PLAN),
    ):
        said = Verdict(True, False, problems, past=past)
        monkeypatch.setattr(packability_agreement, "second_judge", lambda *_, said=said: said)
        (row,) = iterate_answers(found, ["arcs"], effort="fast", limit=8)
        assert row == PackabilityAnswers("digits_cnn", "arcs", YES, YES, word, problems[0])


def test_a_model_that_cannot_be_quantized(tmp_path):
    """It has a row, too, with the message."""
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (row,) = iterate_answers([Model("broken", tmp_path / "broken.onnx", None)], ["venus"])
    assert (row.quantize, row.judge, row.oracle) == (NO, NOT_ASKED, NOT_ASKED)
    assert row.why.startswith("not quantized: ")
