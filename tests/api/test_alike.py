"""Findings that are alike are told as one; nothing is lost in number, and the worst is shown."""

from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.alike import few, grouped, pattern, screen_lines, together, told
from tests.examples import examples


def test_the_worst_is_the_largest_value_or_the_smallest_where_so_much_is_needed_at_least():
    seen = [("a", "8 bytes"), ("b", "1,200 bytes"), ("c", "90 bytes"), ("c", "91 bytes")]
    assert told("at most 4 bytes", "cut it", seen) == "at most 4 bytes: 3 nodes, the worst b with 1,200 bytes; cut it"
    assert told("at least 2000", "pad it", seen).startswith("at least 2000: 3 nodes, the worst a with 8 bytes")


def test_without_numbers_there_is_an_example_and_no_worst():
    seen = [("a", "psram"), ("b", "psram")]
    assert told("it lies there", "move it", seen) == "it lies there: 2 nodes, such as a with psram; move it"
    assert told("it has a form", "", [("a", ""), ("b", "")]) == "it has a form: 2 nodes, such as a"


def test_one_is_told_as_ever():
    assert told("a rule", "do that", [("a", "7")]) == "a: a rule; here 7; do that"
    assert told("a rule", "do that", [("a", "")]) == "a: a rule; do that"


def test_sentences_that_differ_in_names_and_numbers_only_are_one():
    texts = [f"scale of '{name}' lowered from {scale} to 1: Conv cannot" for name, scale in (("a", 8), ("b/c", 0.5))]
    assert together([*texts, "something else"]) == [f"{texts[0]} (1 more like it)", "something else"]
    assert together(["same", "same"]) == ["same"]


@examples(50)
@given(st.lists(st.text("ab' 01.", max_size=6), max_size=12))
def test_grouping_keeps_every_item_in_order(texts):
    groups = grouped(texts, pattern)
    assert sorted(text for group in groups for text in group) == sorted(texts)
    assert all(len({pattern(text) for text in group}) == 1 for group in groups)
    assert len(together(texts)) == len({pattern(text) for text in texts})


def test_long_lines_take_more_of_a_screen():
    assert screen_lines(["", "x" * 100, "x" * 101]) == 4


def test_what_is_left_out_is_counted():
    assert few(["a", "b", "c"], 2) == ["a", "b (and 1 more: --notes full)"]
    assert few(["a", "b"], 2) == few(["a", "b"], None) == ["a", "b"]
