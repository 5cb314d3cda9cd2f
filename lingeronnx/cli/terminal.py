"""Output on the terminal: lines, the console for tables, and the progress bar.

Everything that a command prints passes here, and control characters in it are escaped: a name in a
model can neither move the cursor nor recolor, overwrite or reorder text. Styles of the commands
themselves are used on a terminal only, and not if NO_COLOR is set.

rich is imported inside the functions, so that ``--help`` is fast.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from ..common.escaping import escape_invisible, escape_lines
from ..common.progress import format_progress

if TYPE_CHECKING:
    from .rich_console import EscapingConsole

__all__ = ["console_for", "echo", "echo_text", "progress_bar"]

#: Update function of a progress bar: activity, completed items, total or None if it is unknown.
Update = Callable[[str, int, int | None], None]

_PIPE_COLUMNS = 100


def echo(line: str, err: bool = False) -> None:
    """Print `line` on stdout, or stderr if `err`, with line ends and control characters escaped."""
    click.echo(escape_invisible(line), err=err)


def echo_text(text: str, err: bool = False) -> None:
    """Print `text` of several lines on stdout, or on stderr if `err`, without adding a line end.

    Control characters other than line ends are escaped.
    """
    click.echo(escape_lines(text), err=err, nl=False)


def console_for(as_json: bool) -> EscapingConsole:
    """Return the rich console for tables: on stdout, or on stderr if `as_json` (stdout has JSON).

    Without a terminal and COLUMNS it is _PIPE_COLUMNS wide. It has no color if NO_COLOR is set.
    """
    from .rich_console import EscapingConsole

    stream = sys.stderr if as_json else sys.stdout
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return EscapingConsole(
        stderr=as_json,
        width=None if has_width else _PIPE_COLUMNS,
        color_system=None if _without_color() else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def _without_color() -> bool:
    """Whether the environment variable NO_COLOR asks for output without escape sequences."""
    return bool(os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def progress_bar() -> Iterator[Update | None]:
    """Show a progress bar on stderr; yield its update function, or None if stderr is no terminal.

    The function takes the current activity, the number of completed items, and the total number or
    None if it is unknown. With NO_COLOR the bar is a line of text.
    """
    if not sys.stderr.isatty():
        yield None
        return
    show = _plain_progress_line if _without_color() else _rich_progress_bar
    with show() as draw:
        current, start = "", time.monotonic()

        def update(activity: str, completed: int, total: int | None) -> None:
            """Draw the progress of `activity`: completed items of `total`, None if unknown.

            The rate is measured from the first call with the current activity.
            """
            nonlocal current, start
            if activity != current:
                current, start = activity, time.monotonic()
            text = format_progress(completed, total, time.monotonic() - start)
            draw(escape_invisible(activity), completed, total, text)

        yield update


#: Draws a bar: activity, completed items, total or None, and the text of `format_progress`.
_Draw = Callable[[str, int, int | None, str], None]


@contextlib.contextmanager
def _rich_progress_bar() -> Iterator[_Draw]:
    """Show a bar that is redrawn in place by control sequences and removed at the end.

    Yields a function (activity, completed items, total or None, text) that draws it.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(24),
        TextColumn("{task.fields[progress_text]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console_for(True), transient=True) as bar:
        task = bar.add_task("starting", total=None, progress_text="")

        def draw(activity: str, completed: int, total: int | None, text: str) -> None:
            """Update the bar with activity, numbers of items and the text beside the bar."""
            bar.update(
                task, description=activity, total=total, completed=completed, progress_text=text
            )

        yield draw


@contextlib.contextmanager
def _plain_progress_line() -> Iterator[_Draw]:
    """Show a line that carriage returns overwrite and that is blank at the end.

    Yields a function (activity, completed items, total or None, text) that draws it.
    """
    width, next_time = 0, 0.0

    def draw(activity: str, completed: int, total: int | None, text: str) -> None:
        """Overwrite the line with activity and text, at most once per _REDRAW_SECONDS.

        The numbers of items are not used, since `text` contains them.
        """
        nonlocal width, next_time
        if time.monotonic() < next_time:
            return
        next_time = time.monotonic() + _REDRAW_SECONDS
        line = f"{activity} {text}"[: _PIPE_COLUMNS - 1]
        sys.stderr.write(f"\r{line.ljust(width)}")
        sys.stderr.flush()
        width = len(line)

    try:
        yield draw
    finally:
        if width:
            sys.stderr.write(f"\r{' ' * width}\r")
            sys.stderr.flush()


_REDRAW_SECONDS = 0.1
