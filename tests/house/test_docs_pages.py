"""Pages of docs/ that the code tells (commands, calls, files, targets, error messages) say what it says now."""

from docs.pages import DOCS, written


def test_generated_pages_are_current():
    old = [path for path, text in written().items() if (DOCS / path).read_text(encoding="utf-8") != text]
    assert old == [], "run `make docs-pages` (or `python -m docs.pages`) and commit what it writes"
