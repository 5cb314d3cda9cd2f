"""Progress of long calls: its text, and a bar that notebooks show."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from .escaping import escape_html

__all__ = ["ProgressBar", "format_progress"]

_MIN_RATE_SECONDS = 1.0  # seconds before a rate is shown
_REDRAW_SECONDS = 0.2


def format_progress(completed: int, total: int | None, seconds: float) -> str:
    """Format the progress of a task after `seconds`: completed items, rate, remaining time.

    It is "" before the first item, and has no rate in the first second. Without a total, items are
    called samples and the remaining time is omitted.
    """
    if not completed:
        return ""
    text = f"{completed} samples" if total is None else f"{completed} of {total}"
    if seconds < _MIN_RATE_SECONDS:
        return text
    rate = completed / seconds
    text += f", {rate:.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
    return text if total is None else f"{text}, {math.ceil((total - completed) / rate)} s left"


class ProgressBar:
    """A bar below a notebook's cell, as the argument `progress` of long calls.

        lo.quantize("model.onnx", "calib.npz", progress=lo.ProgressBar())

    It is redrawn in place, and full once the cell has run. Outside of a notebook nothing is shown:
    the commands have their own bar.
    """

    def __init__(self) -> None:
        """Start before the first activity; nothing is shown yet."""
        self._activity, self._completed = "", 0
        self._total: int | None = None
        self._start = self._first = self._last_draw = 0.0
        self._is_finished = False
        self._handle: Any = None

    def __call__(self, activity: str, completed: int, total: int | None) -> None:
        """Show `completed` of `total` items of an activity; None for an unknown total.

        Redraws at most five times a second, and always for a new activity and the last item.
        """
        now = time.monotonic()
        is_new = activity != self._activity
        if is_new:
            self._start = now
        self._activity, self._completed, self._total = activity, completed, total
        if is_new or completed == total or now - self._last_draw >= _REDRAW_SECONDS:
            self._last_draw = now
            self._draw()

    def __repr__(self) -> str:
        """Return the activity and how far it is, or how long the cell took since the first one."""
        if self._is_finished:
            return f"finished after {self._last_draw - self._first:.0f} s"
        seconds = time.monotonic() - self._start
        return f"{self._activity} {format_progress(self._completed, self._total, seconds)}".rstrip()

    def _repr_html_(self) -> str:
        """Render a bar with the text of `repr`; one without a value moves to and fro."""
        value = f' value="{self._completed}" max="{self._total}"' if self._total else ""
        if self._is_finished:
            value = ' value="1" max="1"'
        return (
            f'<div><progress aria-label="progress"{value}></progress> {escape_html(repr(self))}'
            "</div>"
        )

    def _draw(self) -> None:
        """Show the bar below the cell that runs, or update it there."""
        if self._handle is not None:
            self._handle.update(self)
            return
        ipython = sys.modules.get("IPython")  # a notebook's kernel has imported both
        display_module = sys.modules.get("IPython.display")
        if ipython is None or display_module is None:
            return
        shell = ipython.get_ipython()
        if getattr(shell, "kernel", None) is None:
            return
        self._first, self._is_finished = self._last_draw, False
        self._handle = display_module.display(self, display_id=True)

        def finish(_result: object) -> None:
            """Show the bar full below its cell; the next cell gets a new one."""
            shell.events.unregister("post_run_cell", finish)
            self._last_draw, self._is_finished = time.monotonic(), True
            self._handle.update(self)
            self._handle, self._activity = None, ""

        shell.events.register("post_run_cell", finish)
