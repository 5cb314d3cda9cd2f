"""Text of a user's in Markdown: shown as it is."""

import re
from collections.abc import Sequence

__all__ = ["escape_markdown", "format_shape"]

# What Markdown, or HTML in it, would not show as it is. Underscores, dots and slashes within names
# mean nothing to it.
_ENTITIES = {char: f"&#{ord(char)};" for char in "\\`*[]<&|"}
_MARKS = re.compile("[" + re.escape("".join(_ENTITIES)) + "]")


def escape_markdown(text: str) -> str:
    """Return `text` so that Markdown shows it as it is, within a line or in one cell of a table."""
    shown = _MARKS.sub(lambda mark: _ENTITIES[mark[0]], text)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
    )


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as 1x3x8x8, of a single number 1."""
    return "x".join(map(str, shape)) or "1"
