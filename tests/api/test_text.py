"""Findings that are alike are told as one; nothing is lost in number, and the worst is shown."""

from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.text import (
    count_screen_lines,
    format_violations,
    group_by_key,
    mask_quotes_and_numbers,
    merge_similar_lines,
    truncate_lines,
)
from tests.case_selection import limit_examples


def test_the_worst_is_the_largest_value_or_the_smallest_where_so_much_is_needed_at_least():
    seen = [("a", "8 bytes"), ("b", "1,200 bytes"), ("c", "90 bytes"), ("c", "91 bytes")]
    assert (
        format_violations("at most 4 bytes", "cut it", seen)
        == "at most 4 bytes: 3 nodes, the worst b with 1,200 bytes; cut it"
    )
    assert format_violations("at least 2000", "pad it", seen).startswith(
        "at least 2000: 3 nodes, the worst a with 8 bytes"
    )


def test_without_numbers_there_is_an_example_and_no_worst():
    seen = [("a", "psram"), ("b", "psram")]
    assert (
        format_violations("it lies there", "move it", seen)
        == "it lies there: 2 nodes, such as a with psram; move it"
    )
    assert (
        format_violations("it has a form", "", [("a", ""), ("b", "")])
        == "it has a form: 2 nodes, such as a"
    )


def test_one_is_told_as_ever():
    assert format_violations("a rule", "do that", [("a", "7")]) == "a: a rule; here 7; do that"
    assert format_violations("a rule", "do that", [("a", "")]) == "a: a rule; do that"


def test_sentences_that_differ_in_names_and_numbers_only_are_one():
    texts = [
        f"scale of '{name}' lowered from {scale} to 1: Conv cannot"
        for name, scale in (("a", 8), ("b/c", 0.5))
    ]
    assert merge_similar_lines([*texts, "something else"]) == [
        f"{texts[0]} (1 more like it)",
        "something else",
    ]
    assert merge_similar_lines(["same", "same"]) == ["same"]


@limit_examples(50)
@given(st.lists(st.text("ab' 01.", max_size=6), max_size=12))
def test_grouping_keeps_every_item_in_order(texts):
    groups = group_by_key(texts, mask_quotes_and_numbers)
    assert sorted(text for group in groups for text in group) == sorted(texts)
    assert all(len({mask_quotes_and_numbers(text) for text in group}) == 1 for group in groups)
    assert len(merge_similar_lines(texts)) == len({mask_quotes_and_numbers(text) for text in texts})


def test_long_lines_take_more_of_a_screen():
    assert count_screen_lines(["", "x" * 100, "x" * 101]) == 4


def test_what_is_left_out_is_counted():
    assert truncate_lines(["a", "b", "c"], 2) == ["a", "b (and 1 more: --notes full)"]
    assert truncate_lines(["a", "b"], 2) == truncate_lines(["a", "b"], None) == ["a", "b"]
