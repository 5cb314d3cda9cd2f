"""The attempts of a search as an SVG plot of accuracy against work, and as an HTML page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.escaping import escape_html
from ..common.files import write_text
from ..common.pages import PageSection, components, render_page

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

_COLUMNS = (
    "attempt",
    "missing",
    "bytes",
    "flash",
    "work",
    "cycles",
    "MACs by width",
    "s",
    "options",
)


def format_shortfall(trial: Mapping[str, Any], amount: str) -> str:
    """Return "met", `amount` if accuracy is missing, or "over the limit", for a measured attempt.

    `trial` is an entry of "trials" in `Report.search`.
    """
    if trial["met"]:
        return "met"
    return amount if trial["missing"] > 0 else "over the limit"


def format_weight_bits(bits: Mapping[str, int]) -> str:
    """Summarize the weight widths of layers in one line, naming the layers with uncommon widths.

    Parameters
    ----------
    bits
        Bits of the weights by layer.

    Returns
    -------
    str
        Such as "4 in 10 of 12 layers, 8 in conv1, fc"; "" if all weights have 8 bits.
    """
    groups: dict[int, list[str]] = {}
    for layer, width in bits.items():
        groups.setdefault(width, []).append(layer)
    if set(groups) <= {8}:
        return ""
    main_width, *other_widths = sorted(groups, key=lambda width: (-len(groups[width]), width))
    exceptions = "".join(f", {width} in {', '.join(groups[width])}" for width in other_widths)
    return f"{main_width} in {len(groups[main_width])} of {len(bits)} layers{exceptions}"


def write_search_page(
    search: Mapping[str, Any], title: str, page: str | os.PathLike[str], svg: str | os.PathLike[str]
) -> None:
    """Write the plot to `svg`, and a page with the plot and the table of attempts to `page`.

    Parameters
    ----------
    search
        Search results in the form of `Report.search`.
    title
        Title of the page.
    page, svg
        Output files.
    """
    write_text(svg, render_svg(search))
    subtitle = f"Wanted: {search['goal']}"
    write_text(page, render_page(title, subtitle, [render_search_section(search)]))


def render_search_section(search: Mapping[str, Any]) -> PageSection:
    """Render the attempts of `search`, in the form of `Report.search`, as a page section.

    With outcome, command of the selected attempt, SVG plot and table; `search` is embedded as data.
    """
    trials = search["trials"]
    outcome = "met" if search["met"] else f"not met: {search['stopped']}"
    widths = format_weight_bits(search.get("weight_bits", {}))
    chosen = [index for index, trial in enumerate(trials) if trial["chosen"]]
    blocks = [
        components.labelled_paragraph("Wanted:", search["goal"]),
        components.paragraph(outcome, "good" if search["met"] else "bad"),
        components.labelled_paragraph("Chosen:", trials[chosen[0]]["what"]),
        *([components.labelled_paragraph("Bits of weights:", widths)] if widths else []),
        _render_command(search["options"]),
        components.svg_figure("accuracy against work", render_svg(search)),
        components.paragraph(
            "Each point is an attempt. The line connects attempts that no other attempt beats in "
            "both accuracy and work. Work: the mean product of data and weight bits over the "
            "multiply-accumulates; 1 is 8x8 bits, float counts as 32x32. Cycles: of a call on the "
            "chip, if its kernel costs are known. Flash: bytes of the constants as the packages "
            "store them, without weights of host parts and code.",
            "dim",
        ),
        components.render_table(
            "attempts",
            (_COLUMNS[0], _format_value_label(search), *_COLUMNS[1:]),
            map(_render_row, trials),
            (0, 9),
            cards=True,
            selected_rows=chosen,
        ),
    ]
    return PageSection("search", "The attempts", "\n".join(blocks), dict(search))


def _render_row(trial: Mapping[str, Any]) -> list[str]:
    """Render the table cells of an attempt, in the order of the columns, as HTML.

    Values that are not known are empty; an attempt that was not measured has the reason instead of
    its accuracy.
    """
    macs = "<br>".join(
        f"{escape_html(width)}: {count:,}" for width, count in (trial["macs"] or {}).items()
    )
    return [
        escape_html(trial["what"]),
        escape_html(trial["why"]) if trial["value"] is None else f"{trial['value']:.4g}",
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
    """Render the options of an attempt as one text with a copy button; "" without options."""
    return components.copyable_command(" ".join(options)) if options else ""


def _format_value_label(search: Mapping[str, Any]) -> str:
    """Return the label of accuracies: "lowest SQNR, dB" for a unit of dB, else "metric UNIT"."""
    return (
        f"lowest SQNR, {search['unit']}"
        if search["unit"] == "dB"
        else f"metric {search['unit']}".rstrip()
    )


def render_svg(search: Mapping[str, Any]) -> str:
    """Render the attempts as an SVG plot: work on the x axis, accuracy on the y axis.

    The requested accuracy and the float model are horizontal lines. `search` has the form of
    `Report.search`; attempts without a finite value are left out.
    """
    measured = [
        trial
        for trial in search["trials"]
        if trial["value"] is not None and not math.isinf(trial["value"])
    ]
    levels = {"wanted": search["wanted"], "float model": search["float"]}
    levels = {text: value for text, value in levels.items() if value is not None}
    x = _Axis([trial["work"] for trial in measured], _LEFT, _WIDTH - _RIGHT)
    values = [*(trial["value"] for trial in measured), *levels.values()]
    y = _Axis(values, _HEIGHT - _BOTTOM, _TOP)
    elements = _render_grid(x, y, _format_value_label(search))
    for text, value in levels.items():
        start, end = (_LEFT, y(value)), (_WIDTH - _RIGHT, y(value))
        elements.append(_line(start, end, 'stroke="#6b6a65" stroke-dasharray="6 3"'))
        elements.append(_text(_WIDTH - _RIGHT, y(value) - 4, text, "end"))
    points = [
        f"{x(trial['work']):.1f},{y(trial['value']):.1f}" for trial in _pareto_front(measured)
    ]
    elements.append(
        f'<polyline points="{" ".join(points)}" fill="none" stroke="#2a78d6" stroke-width="1.5"/>'
    )
    elements += [_render_point(trial, x, y) for trial in measured]
    body = "\n".join(elements)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    font = 'font-family="system-ui, sans-serif" font-size="12" fill="#1c1c1a"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{body}\n</svg>\n'


def _render_point(trial: Mapping[str, Any], x: _Axis, y: _Axis) -> str:
    """Return an SVG circle at (work, value) of an attempt, with a tooltip.

    The selected attempt is larger and orange; blue marks attempts that meet the goal, gray others.
    """
    color = "#2a78d6" if trial["met"] else "#a09e96"
    radius = 4
    if trial["chosen"]:
        color, radius = "#d9591f", 6
    tooltip = escape_html(f"{trial['what']}: {trial['value']:.4g}, work {trial['work']:.3f}")
    position = f'cx="{x(trial["work"]):.1f}" cy="{y(trial["value"]):.1f}" r="{radius}"'
    return f'<circle {position} fill="{color}"><title>{tooltip}</title></circle>'


def _line(
    start: tuple[float, float], end: tuple[float, float], style: str = 'stroke="#e3e2de"'
) -> str:
    """Render an SVG line between two points in pixels, as (x, y)."""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f"{style}/>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", attributes: str = "") -> str:
    """Render an SVG text, escaped, at (x, y) in pixels; `attributes` are further ones."""
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {position} {attributes}>{escape_html(text)}</text>"


class _Axis:
    """Maps values to coordinates between `start` and `end`, with a margin at both ends."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        """Map the range of `values`, with a margin of 8 % at both ends, to `start` .. `end`.

        Without values, the range is 0 to 1; equal values get a margin around them.
        """
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        margin = 0.08 * (high - low) or max(abs(low) * 0.05, 0.05)
        self.low, self.high, self._start, self._end = low - margin, high + margin, start, end

    def __call__(self, value: float) -> float:
        """Return the coordinate of `value`, linear between `start` (low) and `end` (high)."""
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)

    @property
    def ticks(self) -> list[float]:
        """The multiples of a step between low and high, inclusive; at most `_TICKS` + 1.

        The step is 1, 2, 2.5, 5 or 10 times a power of ten.
        """
        min_step = (self.high - self.low) / _TICKS
        unit = 10.0 ** math.floor(math.log10(min_step))
        step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= min_step)
        return [
            i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]


def _render_grid(x: _Axis, y: _Axis, label: str) -> list[str]:
    """Render the plot's axis labels, axes, grid lines and tick labels as SVG elements.

    `label` is the title of the vertical axis; `x` and `y` map values to pixels.
    """
    bottom, middle = _HEIGHT - _BOTTOM, (_TOP + _HEIGHT - _BOTTOM) / 2
    elements = [
        _text(
            (_LEFT + _WIDTH - _RIGHT) / 2,
            _HEIGHT - 12,
            "work (1 = 8x8 bits for all multiply-accumulates)",
        ),
        _text(16, middle, label, attributes=f'transform="rotate(-90 16 {middle})"'),
        _line((_LEFT, bottom), (_WIDTH - _RIGHT, bottom)),
        _line((_LEFT, _TOP), (_LEFT, bottom)),
    ]
    for value in x.ticks:
        elements += [
            _line((x(value), _TOP), (x(value), bottom)),
            _text(x(value), bottom + 17, f"{value:.4g}"),
        ]
    for value in y.ticks:
        elements += [
            _line((_LEFT, y(value)), (_WIDTH - _RIGHT, y(value))),
            _text(_LEFT - 7, y(value) + 4, f"{value:.4g}", "end"),
        ]
    return elements


def _pareto_front(attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the attempts that no other beats in both work (less) and value (more), by work.

    Of attempts with equal value, the one of least work remains.
    """
    front: list[Mapping[str, Any]] = []
    for trial in sorted(attempts, key=lambda t: (t["work"], -t["value"])):
        if not front or trial["value"] > front[-1]["value"]:
            front.append(trial)
    return front
