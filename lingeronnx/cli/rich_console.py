"""The console of rich, with control characters in texts escaped."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..common.escaping import escape_lines

__all__ = ["EscapingConsole"]


class EscapingConsole(Console):
    """A console that writes no control character but its own, whatever it renders.

    Texts are better escaped before they are laid out, as `show` does: an escape is wider than the
    character.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of `renderable`, with control characters in their texts escaped.

        Control segments of rich itself, such as cursor movements, stay.
        """
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_lines(segment.text), segment.style)
