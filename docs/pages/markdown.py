"""What generated pages are written with: tables, and texts that Markdown must not read."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MADE", "cell", "table"]

#: First line of each page that is generated.
MADE = "<!-- written by `make docs-reference`; do not edit by hand -->"


def cell(text: str) -> str:
    """Return a text as it can stand in a cell.

    One line, with what Markdown would read escaped outside backquotes.
    """
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    for index in range(0, len(parts), 2):
        for sign in "<*_[":
            parts[index] = parts[index].replace(sign, f"\\{sign}")
    return "`".join(parts)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table; cells are Markdown."""
    names = list(head)
    return [
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
