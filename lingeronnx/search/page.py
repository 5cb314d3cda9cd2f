"""The attempts of a search as a picture, accuracy against cost, and as a page that needs nothing else."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..files import write_text
from ..pages import PageSection, components
from ..pages import render_page as whole_page

__all__ = [
    "format_shortfall",
    "format_weight_bits",
    "render_search_section",
    "render_svg",
    "write_search_page",
]

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 24, 24, 52
_TICKS = 5

_COLUMNS = ("what", "missing", "bytes", "flash", "work", "cycles", "MACs by width", "s", "options")


def format_shortfall(trial: Mapping[str, Any], amount: str) -> str:
    """Return what a measured attempt lacks.

    Nothing, accuracy by `amount`, or that it breaks a limit.
    """
    return "met" if trial["met"] else amount if trial["missing"] > 0 else "over the limit"


def format_weight_bits(bits: Mapping[str, int]) -> str:
    """Return the widths of weights as a line, the layers of the rarest named.

    Nothing where all have 8.
    bits : {layer: bits of its weights}.
    """
    groups: dict[int, list[str]] = {}
    for layer, width in bits.items():
        groups.setdefault(width, []).append(layer)
    if set(groups) <= {8}:
        return ""
    most, *others = sorted(groups, key=lambda width: (-len(groups[width]), width))
    named = "".join(f", {width} in {', '.join(groups[width])}" for width in others)
    return f"{most} in {len(groups[most])} of {len(bits)} layers{named}"


def write_search_page(
    search: Mapping[str, Any], title: str, page: str | os.PathLike[str], svg: str | os.PathLike[str]
) -> None:
    """Write the picture to `svg`, and it with the table of attempts to `page`.

    Search : as `Report.search`.
    """
    write_text(svg, render_svg(search))
    write_text(
        page, whole_page(title, f"Wanted: {search['goal']}", [render_search_section(search)])
    )


def render_search_section(search: Mapping[str, Any]) -> PageSection:
    """Return the attempts of a search as a section; search : as `Report.search`."""
    trials = search["trials"]
    end = "met" if search["met"] else f"not met: {search['stopped']}"
    widths = format_weight_bits(search.get("weight_bits", {}))
    chosen = [index for index, trial in enumerate(trials) if trial["chosen"]]
    html = [
        components.labelled_paragraph("Wanted:", search["goal"]),
        components.paragraph(end, "good" if search["met"] else "bad"),
        components.labelled_paragraph("Chosen:", trials[chosen[0]]["what"]),
        *([components.labelled_paragraph("Bits of weights:", widths)] if widths else []),
        _render_command(search["options"]),
        components.svg_figure("accuracy against work", render_svg(search)),
        components.paragraph(
            "Each point is an attempt. The line joins those that no other attempt beats in both. "
            "Work: the product of "
            "the widths of data and weights, on average over the multiply-accumulates; 1 is 8x8 "
            "bits, float counts as "
            "32x32. Cycles: of a call on the chip, where its prices are known. Flash: bytes of the "
            "constants as the "
            "packages store them.",
            "dim",
        ),
        components.render_table(
            "attempts",
            (_COLUMNS[0], _format_value_label(search), *_COLUMNS[1:]),
            map(_render_row, trials),
            (0, 9),
            cards=True,
            chosen=chosen,
        ),
    ]
    return PageSection("search", "The attempts", "\n".join(html), dict(search))


def _render_row(trial: Mapping[str, Any]) -> list[str]:
    macs = "<br>".join(
        f"{components.escape_text(width)}: {count:,}"
        for width, count in (trial["macs"] or {}).items()
    )
    return [
        components.escape_text(trial["what"]),
        components.escape_text(trial["why"]) if trial["value"] is None else f"{trial['value']:.4g}",
        "" if trial["missing"] is None else format_shortfall(trial, f"{trial['missing']:.4g}"),
        "" if trial["bytes"] is None else f"{trial['bytes']:,}",
        "" if trial.get("flash") is None else f"{trial['flash']:,}",
        "" if trial["work"] is None else f"{trial['work']:.3f}",
        "" if trial.get("cycles") is None else f"{trial['cycles']:,.0f}",
        macs,
        f"{trial['seconds']:.0f}",
        _render_command(trial["options"]),
    ]


def _render_command(options: Sequence[str]) -> str:
    """Return the options of an attempt, to be copied together."""
    return components.copyable_command(" ".join(options)) if options else ""


def _format_value_label(search: Mapping[str, Any]) -> str:
    return (
        f"least SQNR, {search['unit']}"
        if search["unit"] == "dB"
        else f"metric {search['unit']}".rstrip()
    )


def render_svg(search: Mapping[str, Any]) -> str:
    """Return the attempts as SVG.

    Work along x, the value along y, the wish and the float model as lines.
    """
    measured = [
        t for t in search["trials"] if t["value"] is not None and abs(t["value"]) != float("inf")
    ]
    known = {"wanted": search["wanted"], "float model": search["float"]}
    levels = {text: value for text, value in known.items() if value is not None}
    x = _Axis([t["work"] for t in measured], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([*(t["value"] for t in measured), *levels.values()], _HEIGHT - _BOTTOM, _TOP)
    parts = _render_grid(x, y, _format_value_label(search))
    for text, value in levels.items():
        parts += [
            _line(
                (_LEFT, y(value)),
                (_WIDTH - _RIGHT, y(value)),
                'stroke="#6b6a65" stroke-dasharray="6 3"',
            ),
            _text(_WIDTH - _RIGHT, y(value) - 4, text, "end"),
        ]
    front = " ".join(f"{x(t['work']):.1f},{y(t['value']):.1f}" for t in _pareto_front(measured))
    parts.append(f'<polyline points="{front}" fill="none" stroke="#2a78d6" stroke-width="1.5"/>')
    for trial in measured:
        color = "#d9591f" if trial["chosen"] else "#2a78d6" if trial["met"] else "#a09e96"
        tip = html.escape(f"{trial['what']}: {trial['value']:.4g}, work {trial['work']:.3f}")
        place = (
            f'cx="{x(trial["work"]):.1f}" cy="{y(trial["value"]):.1f}" '
            f'r="{6 if trial["chosen"] else 4}"'
        )
        parts.append(f'<circle {place} fill="{color}"><title>{tip}</title></circle>')
    body = "\n".join(parts)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#1c1c1a"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{body}\n</svg>\n'


def _line(
    start: tuple[float, float], end: tuple[float, float], style: str = 'stroke="#e3e2de"'
) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f"{style}/>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(text)}</text>'


class _Axis:
    """Maps values to places; a little room is left at both ends."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        room = 0.08 * (high - low) or max(abs(low) * 0.05, 0.05)
        self.low, self.high, self._start, self._end = low - room, high + room, start, end

    def __call__(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        """Round values at equal distances.

        1, 2, 2.5 or 5 times a power of ten, at most _TICKS + 1 of them.
        """
        rough = (self.high - self.low) / _TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough)
        return [
            i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]


def _render_grid(x: _Axis, y: _Axis, label: str) -> list[str]:
    low, middle = _HEIGHT - _BOTTOM, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts = [
        _text(
            (_LEFT + _WIDTH - _RIGHT) / 2,
            _HEIGHT - 12,
            "work (1 = 8x8 bits for all multiply-accumulates)",
        ),
        _text(16, middle, label, more=f'transform="rotate(-90 16 {middle})"'),
        _line((_LEFT, low), (_WIDTH - _RIGHT, low)),
        _line((_LEFT, _TOP), (_LEFT, low)),
    ]
    for value in x.ticks:
        parts += [
            _line((x(value), _TOP), (x(value), low)),
            _text(x(value), low + 17, f"{value:.4g}"),
        ]
    for value in y.ticks:
        parts += [
            _line((_LEFT, y(value)), (_WIDTH - _RIGHT, y(value))),
            _text(_LEFT - 7, y(value) + 4, f"{value:.4g}", "end"),
        ]
    return parts


def _pareto_front(attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the attempts that none beats in both, by work (Pareto's front)."""
    front: list[Mapping[str, Any]] = []
    for trial in sorted(attempts, key=lambda t: (t["work"], -t["value"])):
        if not front or trial["value"] > front[-1]["value"]:
            front.append(trial)
    return front
