"""Tables as text: framed, one line per row, columns as wide as their longest cell."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["framed"]


def framed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with ``+---+`` above and below the head and below the last row, ``|`` between the cells."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = [
        "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True)) + "|" for line in lines
    ]
    return "\n".join([rule, text[0], rule, *text[1:], rule, ""])
