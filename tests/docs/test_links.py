"""Every link between pages leads to a file that is there, and to a heading that it has."""

import re

from docs.pages import DOCS
from tests.each import check_each

PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
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


def test_links_lead_somewhere():
    def check(page, link):
        file, _, anchor = link.partition("#")
        target = DOCS / page if not file else (DOCS / page).parent / file
        assert target.is_file()
        assert DOCS in target.resolve().parents, "outside the site"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))

    links = []
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        links += [(page, link) for link in LINK.findall(prose(text))]
    assert len(links) > 100
    check_each(check, [(page, link) for page, link in links if not re.match(r"[a-z]+://", link)])


def test_the_test_sees_links():
    assert LINK.findall(prose("a [b](c.md#d) `[x](y)`\n\n    [code](z)\n")) == ["c.md#d"]
    assert anchors("# One, two\n\n## `a-b` (c)\n") == {"one-two", "a-b-c"}
