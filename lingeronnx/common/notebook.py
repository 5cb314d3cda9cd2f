"""What results show of themselves: text of one screen at a prompt, HTML fragments in a notebook.

Fragments are tables and SVG, without scripts. All texts are escaped. Colors are those of
`currentColor` and of fixed lines that can be seen on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .escaping import escape_html, escape_invisible

__all__ = [
    "format_summary",
    "render_bar_chart",
    "render_depth_chart",
    "render_fact_table",
    "render_fragment",
]

_WIDTH, _HEIGHT, _MARGIN = 640, 160, 40
_LINE_COLORS = ("#3b7dd8", "#e0702c")
_MAX_DB = 80.0  # exact tensors are drawn here
_MAX_SUMMARY_LINES, _MAX_SUMMARY_COLUMNS = 24, 120  # of a screen


def format_summary(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """Format (label, text) pairs as one screen of text below a title: long lines are cut."""
    width = max((len(label) for label, _ in facts), default=0)
    lines = [title]
    for label, text in facts[:_MAX_SUMMARY_LINES]:
        line = escape_invisible(f"  {label.ljust(width)}  {text}")
        if len(line) > _MAX_SUMMARY_COLUMNS:
            line = f"{line[:_MAX_SUMMARY_COLUMNS]}..."
        lines.append(line)
    if len(facts) > _MAX_SUMMARY_LINES:
        lines.append(f"  ... and {len(facts) - _MAX_SUMMARY_LINES} more lines")
    return "\n".join(lines)


def render_fragment(title: str, *parts: str) -> str:
    """Render parts, which are HTML, under a title."""
    return f"<div><b>{escape_html(title)}</b>{''.join(parts)}</div>"


def render_fact_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Render a table of two columns, with an optional title."""
    cells = "".join(
        (
            f'<tr><td style="text-align:left">{escape_html(label)}</td>'
            f'<td style="text-align:left">{escape_html(text)}</td></tr>'
        )
        for label, text in rows
    )
    caption = f"<div>{escape_html(title)}</div>" if title else ""
    return f"{caption}<table>{cells}</table>"


def render_depth_chart(title: str, lines: Mapping[str, Sequence[float]]) -> str:
    """Render values in dB over the layers as lines of an SVG, with a legend.

    lines : values by name, one per layer in execution order. NaN leaves a gap; values are drawn up
    to 80 dB.
    """
    known = [value for values in lines.values() for value in values if not math.isnan(value)]
    low = min([0.0, *(value for value in known if math.isfinite(value))])
    high = max([low + 1.0, *(min(value, _MAX_DB) for value in known)])
    parts = [_render_scale(value, low, high) for value in (low, (low + high) / 2, high)]
    for (name, values), color in zip(lines.items(), _LINE_COLORS, strict=False):
        path = _make_path(values, low, high)
        parts.append(
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6">'
            f"<title>{escape_html(name)}</title></path>"
        )
    legend = " ".join(
        f'<tspan fill="{color}">{escape_html(name)}</tspan>'
        for name, color in zip(lines, _LINE_COLORS, strict=False)
    )
    parts.append(f'<text x="{_MARGIN}" y="{_HEIGHT - 4}" font-size="11">{legend}</text>')
    return (
        f'<div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape_html(title)}" style="max-width:100%">{"".join(parts)}</svg></div>'
    )


def render_bar_chart(title: str, counts: Mapping[str, int]) -> str:
    """Render a count per label as vertical bars of an SVG, in the order of `counts`."""
    high = max(counts.values(), default=1)
    step = (_WIDTH - 16) / max(len(counts), 1)
    parts = []
    for index, (label, count) in enumerate(counts.items()):
        height = (_HEIGHT - 48) * count / high
        x, y = 8 + step * index, _HEIGHT - 28 - height
        middle = f'x="{x + step / 2:.1f}" text-anchor="middle" font-size="11" fill="currentColor"'
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{height:.1f}" fill="{_LINE_COLORS[0]}"/>'
            f'<text {middle} y="{y - 4:.1f}">{count or ""}</text>'
            f'<text {middle} y="{_HEIGHT - 12}">{escape_html(label)}</text>'
        )
    return (
        f'<div><div>{escape_html(title)}</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" role="img" aria-label="{escape_html(title)}" '
        f'style="max-width:100%">{"".join(parts)}</svg></div>'
    )


def _to_y(value: float, low: float, high: float) -> float:
    """Return the height of `value` in the drawing; values outside are clipped."""
    clipped = min(max(value, low), high)
    return 8 + (_HEIGHT - 32) * (high - clipped) / (high - low)


def _render_scale(value: float, low: float, high: float) -> str:
    """Render a horizontal line with its value in dB."""
    y = _to_y(value, low, high)
    return (
        f'<line x1="{_MARGIN}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
        f'opacity="0.2"/><text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11" '
        f'fill="currentColor">{value:.0f} dB</text>'
    )


def _make_path(values: Sequence[float], low: float, high: float) -> str:
    """Return the SVG path of a line; NaN leaves a gap."""
    step = (_WIDTH - 8 - _MARGIN) / max(len(values) - 1, 1)
    commands, is_down = [], False
    for index, value in enumerate(values):
        if math.isnan(value):
            is_down = False
            continue
        x, y = _MARGIN + step * index, _to_y(value, low, high)
        commands.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}")
        is_down = True
    return "".join(commands)
