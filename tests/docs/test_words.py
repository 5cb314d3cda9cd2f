"""The documentation keeps to its limits of words, and each page has a kind."""

from benchmarks.docs_words import (
    GENERATED,
    MAX_README_WORDS,
    MAX_WRITTEN_WORDS,
    classify_page,
    count_words,
    format_table,
    iterate_excesses,
    read_checkout,
)
from docs.pages import written

#: Words of a how-to guide: about a screen and a half, with its commands and tables.
MAX_GUIDE_WORDS = 700
#: Guides that are longer, with their present words; a page leaves this list, none joins it.
LONGER = {"docs/how-to/read-the-report.md": 1_070}


def test_limits_hold():
    assert list(iterate_excesses(count_words(read_checkout()))) == []


def test_guides_are_short():
    pages = {path: len(text.split()) for path, text in read_checkout().items()}
    guides = {path: n for path, n in pages.items() if path.startswith("docs/how-to/")}
    assert len(guides) > 10
    assert [p for p, n in guides.items() if n > LONGER.get(p, MAX_GUIDE_WORDS)] == []


#: Pages written by hand that have a generated section.
PARTLY_GENERATED = {"explanation/architecture.md"}


def test_each_page_has_a_kind():
    pages = read_checkout()
    kinds = {path: classify_page(path, text) for path, text in pages.items()}
    assert [path for path, kind in kinds.items() if kind == "other pages"] == ["docs/index.md"]
    for path in written().keys() - PARTLY_GENERATED:
        assert kinds[f"docs/{path}"] == GENERATED


def test_an_excess_is_a_line():
    words = {"README": MAX_README_WORDS + 1, "how-to": MAX_WRITTEN_WORDS, "reference": 1}
    first, second = iterate_excesses(words)
    assert first.startswith("README.md: 701 words, at most 700")
    assert second.startswith("pages below docs/ that no command writes: 45,001 words")
    assert "| how-to | 45,000 |" in format_table({"now": words})
