"""What sections are built of.

Texts, facts, tables, lists and commands with a button that copies them.
Every function takes plain texts and returns HTML. Nothing that it is given can end a tag, an
attribute or a script, and what has no glyph, or turns the writing round, is shown as an escape.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

from ..message_grouping import escape_invisible

__all__ = [
    "breakable_path",
    "copyable_command",
    "definition_list",
    "escape_text",
    "heading",
    "labelled_paragraph",
    "ordered_list",
    "paragraph",
    "render_table",
    "scroll_region",
    "svg_figure",
    "usage_bar",
]


def escape_text(value: object) -> str:
    """Return a text as HTML, in attributes as well."""
    return html.escape(escape_invisible(str(value)))


def breakable_path(value: object) -> str:
    """Return a name of parts with slashes between, which on a narrow screen is broken behind a slash first."""
    return escape_text(value).replace("/", "/<wbr>")


def heading(name: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{escape_text(name)}</h3>"


def paragraph(value: object, kind: str = "") -> str:
    """Return a paragraph; kind : "", "dim", "bad" or "good"."""
    return f"<p{f' class={kind}' if kind else ''}>{escape_text(value)}</p>"


def labelled_paragraph(label: str, value: object) -> str:
    """Return a paragraph that begins with a word in bold."""
    return f"<p><b>{escape_text(label)}</b> {escape_text(value)}</p>"


def definition_list(rows: Iterable[tuple[str, object]]) -> str:
    """Return (name, value) pairs."""
    pairs = "".join(
        f"<dt>{escape_text(name)}</dt><dd>{escape_text(value)}</dd>" for name, value in rows
    )
    return f"<dl>{pairs}</dl>" if pairs else ""


def copyable_command(words: str, label: str = "") -> str:
    """Return what is to be pasted into a shell, with its button."""
    shown = escape_text(words)
    name = escape_text(f"copy {label or words}")
    return (
        f'<div class="command"><pre tabindex="0"><code>{shown}</code></pre>'
        f'<button type="button" class="copy" aria-label="{name}">copy</button></div>'
    )


def ordered_list(items: Iterable[str]) -> str:
    """Return pieces of HTML as a numbered list."""
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>"


def render_table(
    name: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[int] = (0,),
    cards: bool = False,
    chosen: Collection[int] = (),
) -> str:
    """Return a table called `name`, in a region that scrolls by itself.

    rows : cells as HTML. left : the columns of text; the others are numbers. cards : on a narrow
    screen each row is a block of its own, for rows that hold long texts. chosen : the rows that are
    marked.
    """
    kinds = [' class="t"' if i in left else "" for i in range(len(head))]
    heads = "".join(
        f'<th scope="col" role="columnheader"{kind}>{escape_text(each)}</th>'
        for kind, each in zip(kinds, head, strict=True)
    )
    body = "".join(
        f'<tr role="row"{" class=chosen" if index in chosen else ""}>'
        + "".join(
            f'<td role="cell" data-label="{escape_text(each)}"{kind}>{cell}</td>'
            for each, kind, cell in zip(head, kinds, row, strict=True)
        )
        + "</tr>\n"
        for index, row in enumerate(rows)
    )
    whole_ = (
        f'<table role="table"{" class=cards" if cards else ""} aria-label="{escape_text(name)}">'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody '
        f'role="rowgroup">\n{body}</tbody></table>'
    )
    return scroll_region(name, whole_)


def scroll_region(name: str, inner: str) -> str:
    """Return HTML that may be wider than the screen, in a region called `name` that scrolls by keys as well."""
    return (
        '<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{escape_text(name)}">{inner}</div>'
    )


def svg_figure(name: str, svg: str) -> str:
    """Return a drawing (SVG) that was made for a white page, in the page's colors."""
    drawn = svg.replace("<svg ", f'<svg role="img" aria-label="{escape_text(name)}" ', 1)
    return f'<figure class="picture">{scroll_region(name, drawn)}</figure>'


def usage_bar(name: str, used: int, limit: int) -> str:
    """Return how much of a memory is used, in bytes, as a bar and in words."""
    share = f"{100 * used / limit:.1f} %" if limit else "-"
    told = f"{used:,} of {limit:,} bytes, {share}"
    drawn = (
        f'<meter min="0" max="{limit or 1}" value="{used}" '
        f'aria-label="{escape_text(name)}"></meter>'
    )
    return f"<p><b>{escape_text(name)}</b> {escape_text(told)}<br>{drawn}</p>"
