"""Tables as text: framed, one line per row, columns as wide as their longest cell.

And folded lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..message_grouping import escape_invisible

__all__ = ["format_table", "wrap_text"]

_WIDTH = 80  # columns


def wrap_text(text: str, head: str, indent: str) -> list[str]:
    """Return lines of up to 80 columns that begin with `head`, then with `indent`.

    A name is never broken.
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
    """Return a table with ``+---+`` above and below the head and below the last row, ``|`` between the cells."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = [
        "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True)) + "|"
        for line in lines
    ]
    return "\n".join([rule, text[0], rule, *text[1:], rule, ""])
