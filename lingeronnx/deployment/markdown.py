"""Escape a user's text for Markdown, so that it is shown verbatim."""

import re
from collections.abc import Sequence

__all__ = ["escape_markdown", "format_shape"]

# Characters with a meaning in Markdown or HTML. Underscores, dots and slashes within names have
# none.
_ENTITIES = {char: f"&#{ord(char)};" for char in "\\`*[]<&|"}
_MARKS = re.compile("[" + re.escape("".join(_ENTITIES)) + "]")


def escape_markdown(text: str) -> str:
    """Escape `text` so that Markdown shows it verbatim, in a line or a table cell.

    Characters that are not printable, such as newlines, become Python escapes.
    """
    escaped = _MARKS.sub(lambda match: _ENTITIES[match[0]], text)
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in escaped
    )


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape as 1x3x8x8; a scalar's as 1."""
    return "x".join(map(str, shape)) or "1"
