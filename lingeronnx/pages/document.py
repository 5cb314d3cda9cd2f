"""A page: parts under one head, with one style sheet and one script, all in one file.

Data stand in ``<script type="application/json" id="data-PART">``, so that the page says to programs
what it says to people. The policy in the head forbids the page to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from ..json_values import to_json_value
from ..message_grouping import escape_invisible
from .components import escape_text

__all__ = ["PageSection", "render_page"]


@dataclass(frozen=True)
class PageSection:
    """A section of a page.

    key : of its id and of its data's. title : its heading. html : what stands below. data :
    JSON-ready, shown as `data-KEY`; None for none. style, script : CSS and JavaScript that it needs
    beside the page's own.
    """

    key: str
    title: str
    html: str
    data: object = None
    style: str = ""
    script: str = ""


def render_page(title: str, about: str, parts: Sequence[PageSection]) -> str:
    """Return the HTML of a page; title, about : plain texts."""
    links = "".join(
        f'<li><a href="#{part.key}">{escape_text(part.title)}</a></li>' for part in parts
    )
    shown = {
        "TITLE": escape_text(title),
        "ABOUT": escape_text(about),
        "STYLE": "\n".join([_read_asset("page.css"), *(part.style for part in parts)]),
        "CONTENTS": f'<nav aria-label="contents"><ul>{links}</ul></nav>' if len(parts) > 1 else "",
        "PARTS": "\n".join(map(_render_section, parts)),
        "SCRIPT": "\n".join([_read_asset("page.js"), *(part.script for part in parts)]),
    }
    pieces = _read_asset("page.html").split("%%")
    return "".join(shown[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _render_section(part: PageSection) -> str:
    body = json.dumps(
        to_json_value(part.data, escape_invisible), separators=(",", ":"), allow_nan=False
    ).replace("<", "\\u003c")
    data = (
        ""
        if part.data is None
        else f'<script type="application/json" id="data-{part.key}">{body}</script>\n'
    )
    head = f'<h2 id="{part.key}-title">{escape_text(part.title)}</h2>'
    return (
        f'<section id="{part.key}" '
        f'aria-labelledby="{part.key}-title">{head}\n{part.html}\n</section>\n{data}'
    )


def _read_asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
