"""Every link between pages leads to a file that is there, and to a heading that it has."""

import re

import pytest

from docs.pages import DOCS

PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def prose(text):
    """Return a page without its code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"^    .*$", "", text, flags=re.MULTILINE))


def anchors(text):
    """Return the anchors of a page's headings, as code hosts and the site make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#{1,4} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(DOCS).as_posix() for page in PAGES])
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(prose(text)):
        if re.match(r"[a-z]+://", link):
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else page.parent / file
        assert target.is_file(), link
        assert DOCS in target.resolve().parents, f"{link} is outside the site"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_test_sees_links():
    assert LINK.findall(prose("a [b](c.md#d) `[x](y)`\n\n    [code](z)\n")) == ["c.md#d"]
    assert anchors("# One, two\n\n## `a-b` (c)\n") == {"one-two", "a-b-c"}
