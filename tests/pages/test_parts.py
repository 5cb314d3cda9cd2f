"""The pieces of a page: no text ends a tag or an attribute, and a command has its button."""

import re
import xml.etree.ElementTree as ET

import pytest

from lingeronnx.common.escaping import escape_html
from lingeronnx.common.pages import components

WORST = "</td><script>alert(1)</script>\"'&|\u202e\x07"


@pytest.mark.parametrize(
    "made",
    [
        components.heading(WORST),
        components.paragraph(WORST),
        components.labelled_paragraph(WORST, WORST),
        components.definition_list([(WORST, WORST)]),
        components.copyable_command(WORST, WORST),
        components.ordered_list([escape_html(WORST)]),
        components.render_table(
            WORST, [WORST], [[escape_html(WORST)]], cards=True, selected_rows=[0]
        ),
        components.svg_figure(WORST, '<svg xmlns="http://www.w3.org/2000/svg" width="1"></svg>'),
        components.usage_bar(WORST, 1, 2).replace("<br>", "<br/>"),
    ],
)
def test_any_text_stays_text(made):
    """It is well-formed, and has no tag that the text brought."""
    made = re.sub(r" class=(\w+)", r' class="\1"', made)
    root = ET.fromstring(f"<x>{made}</x>")
    assert "script" not in {each.tag for each in root.iter()}
    assert "\u202e" not in made
    assert "\\u202e" in made


def test_a_command_has_one_button_that_says_what_it_copies():
    made = components.copyable_command("--override 'a=bits:16'")
    assert made.count("<button") == made.count("<code>") == 1
    assert 'aria-label="copy --override &#x27;a=bits:16&#x27;"' in made


def test_cells_say_their_column_on_a_narrow_screen():
    made = components.render_table("t", ["a", "b"], [["1", "2"], ["3", "4"]], selected_rows=[1])
    assert re.findall(r'data-label="(\w)"', made) == ["a", "b", "a", "b"]
    assert made.count("class=chosen") == 1


def test_a_memory_of_no_size_is_no_division():
    assert "0 of 0 bytes, -" in components.usage_bar("psram", 0, 0)


def test_a_path_may_be_broken_behind_its_slashes():
    assert components.breakable_path("/a/<b>") == "/<wbr>a/<wbr>&lt;b&gt;"
