"""Render a page: sections under one head, with one style sheet and one script, in one file.

Data are embedded as ``<script type="application/json" id="data-KEY">``, so that programs can read
the page's content. The policy in the head forbids the page to load anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from ..escaping import dump_script_json, escape_html, escape_invisible
from ..json_values import to_json_value
from .charts import read_charts

__all__ = ["PageSection", "render_page"]


@dataclass(frozen=True)
class PageSection:
    """A section of a page.

    Attributes
    ----------
    key
        Suffix of its HTML id and of the id of its data.
    title
        Heading.
    html
        Content below the heading.
    data
        JSON-ready data, embedded as `data-KEY`; None for none.
    style, script
        CSS and JavaScript that the section needs in addition to the page's own.
    charts
        Names of the charts that the script draws, see `charts`.
    """

    key: str
    title: str
    html: str
    data: object = None
    style: str = ""
    script: str = ""
    charts: tuple[str, ...] = ()


def render_page(title: str, about: str, parts: Sequence[PageSection]) -> str:
    """Render a page as HTML in one file.

    Parameters
    ----------
    title, about
        Plain texts of the head.
    parts
        Sections, in order; a table of contents is added if there are several.
    """
    links = "".join(
        f'<li><a href="#{part.key}">{escape_html(part.title)}</a></li>' for part in parts
    )
    charts = dict.fromkeys(chart for part in parts for chart in part.charts)
    fields = {
        "TITLE": escape_html(title),
        "ABOUT": escape_html(about),
        "STYLE": "\n".join(
            [_read_asset("page.css"), _read_asset("charts/charts.css"), *(p.style for p in parts)]
        ),
        "CONTENTS": f'<nav aria-label="contents"><ul>{links}</ul></nav>' if len(parts) > 1 else "",
        "PARTS": "\n".join(map(_render_section, parts)),
        "SCRIPT": "\n".join(
            [_read_asset("page.js"), read_charts("base", *charts), *(p.script for p in parts)]
        ),
    }
    template_parts = _read_asset("page.html").split("%%")
    return "".join(fields[text] if index % 2 else text for index, text in enumerate(template_parts))


def _render_section(section: PageSection) -> str:
    """Return the HTML of a section: heading, its `html`, and its data, if any, as JSON in a script.

    The script's id is ``data-KEY``; `<` is escaped in the JSON so that it cannot end the script.
    """
    heading = f'<h2 id="{section.key}-title">{escape_html(section.title)}</h2>'
    html = (
        f'<section id="{section.key}" '
        f'aria-labelledby="{section.key}-title">{heading}\n{section.html}\n</section>\n'
    )
    if section.data is None:
        return html
    data = to_json_value(section.data, escape_invisible)
    body = dump_script_json(data)
    return f'{html}<script type="application/json" id="data-{section.key}">{body}</script>\n'


def _read_asset(name: str) -> str:
    """Return the text of the file `name` in this package, such as page.css."""
    return (files(__package__) / name).read_text(encoding="utf-8")
