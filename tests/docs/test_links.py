"""Every link between pages leads to a file that is there, and to a heading that it has.

Pages that were moved are redirected to pages that are there.
"""

import re

from docs.conf import read_redirects
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


def test_links_of_results_and_guides_lead_somewhere():
    """The same for pages outside the site; those of the site they may link, too."""
    root = DOCS.parent
    pages = [*(root / "benchmarks" / "results").glob("*.md"), root / "CONTRIBUTING.md"]
    pages += [root / "examples" / "README.md", root / "models" / "README.md"]

    def check(page, link):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists()
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))

    links = []
    for page in pages:
        found = LINK.findall(prose(page.read_text(encoding="utf-8")))
        links += [(page, link) for link in found if not re.match(r"[a-z]+://", link)]
    assert len(links) > 20
    check_each(check, links)


def test_each_page_of_results_is_listed_with_a_command():
    folder = DOCS.parent / "benchmarks" / "results"
    text = (folder / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[([\w-]+\.md)\].*\| (.*) \|$", text, re.MULTILINE))
    assert sorted([*rows, "README.md"]) == sorted(page.name for page in folder.glob("*.md"))
    scripts = re.findall(r"`(benchmarks/[\w./]+)`", " ".join(rows.values()))
    assert len(scripts) > 20
    assert [script for script in scripts if not (DOCS.parent / script).exists()] == []


def test_results_that_pages_name_are_there():
    """Names such as `benchmarks/results/peers.md` in the text of a page."""
    named = set()
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        named |= set(re.findall(r"`(benchmarks/[\w/-]+\.(?:md|py|js|json))`", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (DOCS.parent / name).is_file()] == []


def test_paths_of_the_contributors_guide_are_there():
    """Files and folders in backquotes; names in capitals stand for others."""
    root = DOCS.parent
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w./*-]+/[\w./*-]*)`", text) if path == path.lower()}
    assert len(paths) > 25
    folders = (root, root / "lingeronnx")
    missing = [path for path in paths if not any(list(f.glob(path.rstrip("/"))) for f in folders)]
    assert missing == []


def test_moved_pages_are_redirected():
    redirects = read_redirects()
    assert len(redirects) > 50
    assert [new for new in redirects.values() if not (DOCS / f"{new}.md").is_file()] == []
    assert set(redirects) & {page.removesuffix(".md") for page in PAGES} == set()


def test_the_test_sees_links():
    assert LINK.findall(prose("a [b](c.md#d) `[x](y)`\n\n    [code](z)\n")) == ["c.md#d"]
    assert anchors("# One, two\n\n## `a-b` (c)\n") == {"one-two", "a-b-c"}
