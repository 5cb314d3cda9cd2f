"""Framed tables and wrapped paragraphs as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..escaping import escape_invisible

__all__ = ["format_table", "wrap_text"]

_WIDTH = 80  # columns


def wrap_text(text: str, head: str, indent: str) -> list[str]:
    """Wrap text to lines of 80 columns without breaking names, and return the list of lines.

    The first line begins with `head`, the others with `indent`. Invisible characters are escaped; a
    longer name makes a longer line. Empty for an empty text.
    """
    return textwrap.wrap(
        escape_invisible(text),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a left-aligned table with ``+---+`` around the head and below the last row.

    Cells are separated by ``|``; invisible characters of rows are escaped, those of `head` are not.
    The text ends with a newline. Raises ValueError if a row has another number of cells than
    `head`.
    """
    lines = [list(head)]
    for row in rows:
        lines.append([escape_invisible(str(cell)) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = []
    for line in lines:
        cells = [f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True)]
        text.append("|" + "|".join(cells) + "|")
    return "\n".join([rule, text[0], rule, *text[1:], rule, ""])
