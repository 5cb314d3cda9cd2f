"""A page: one file that asks for nothing, whose data are what they were made of."""

import json
import math
import re

from lingeronnx.common.json_values import to_json_value
from lingeronnx.common.pages.document import PageSection, render_page


def data(text, key):
    """Return the data of a part of a page."""
    return json.loads(text.split(f'id="data-{key}">')[1].split("</script>")[0])


def self_contained(text):
    """Whether a page asks for nothing: no address but SVG's name, no tag or rule that loads."""
    addresses = set(re.findall(r"https?://[^\"' ]+", text)) - {"http://www.w3.org/2000/svg"}
    return not addresses and not re.search(
        r"<(link|img|iframe)|\bsrc=|@import|url\(|href=\"[^#]", text
    )


def test_it_asks_for_nothing_and_says_so():
    text = render_page(
        "a", "b", [PageSection("one", "One", "<p>x</p>"), PageSection("two", "Two", "")]
    )
    assert self_contained(text)
    assert "default-src 'none'" in text
    assert text.count("<h1>") == 1
    assert '<html lang="en">' in text


def test_contents_name_every_part():
    text = render_page("a", "b", [PageSection("one", "One", ""), PageSection("two", "T<wo>", "")])
    assert [f'<a href="#{key}">' in text for key in ("one", "two")] == [True, True]
    assert "T&lt;wo&gt;" in text
    assert "<nav" not in render_page("a", "b", [PageSection("one", "One", "")])


def test_data_are_what_they_were_and_cannot_end_the_script():
    body = {"name": "</script><b>%%TITLE%%|", "values": [1, 2.5, math.inf], "more": {"x": None}}
    text = render_page("a", "b", [PageSection("one", "One", "", body)])
    assert data(text, "one") == {**body, "values": [1, 2.5, None]}
    assert "</script><b>" not in text


def test_what_cannot_be_seen_is_an_escape():
    assert "\u202e" not in render_page(
        "a\u202eb", "\u200b", [PageSection("one", "\u2066", "", ["\u202e"])]
    )


def test_plain_has_null_for_what_json_lacks():
    assert to_json_value({1: (math.nan, "a")}) == {"1": [None, "a"]}


def test_style_and_script_of_parts_come_along():
    text = render_page(
        "a", "b", [PageSection("one", "One", "", style=".mine {}", script="mine();")]
    )
    assert text.index(".mine {}") < text.index("</style>") < text.index("mine();")
