"""What sections are built of: texts, facts, tables, lists and commands with a button that copies them.

Every function takes plain texts and returns HTML. Nothing that it is given can end a tag, an attribute or a script, and
what has no glyph, or turns the writing round, is shown as an escape.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

from ..alike import visible

__all__ = ["bar", "command", "facts", "line", "listed", "note", "path", "picture", "table", "text", "title", "whole"]


def text(value: object) -> str:
    """Return a text as HTML, in attributes as well."""
    return html.escape(visible(str(value)))


def path(value: object) -> str:
    """Return a name of parts with slashes between, which on a narrow screen is broken behind a slash first."""
    return text(value).replace("/", "/<wbr>")


def title(name: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{text(name)}</h3>"


def line(value: object, kind: str = "") -> str:
    """Return a paragraph; kind : "", "dim", "bad" or "good"."""
    return f"<p{f' class={kind}' if kind else ''}>{text(value)}</p>"


def note(label: str, value: object) -> str:
    """Return a paragraph that begins with a word in bold."""
    return f"<p><b>{text(label)}</b> {text(value)}</p>"


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Return (name, value) pairs."""
    pairs = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in rows)
    return f"<dl>{pairs}</dl>" if pairs else ""


def command(words: str, label: str = "") -> str:
    """Return what is to be pasted into a shell, with its button."""
    shown = text(words)
    name = text(f"copy {label or words}")
    return (
        f'<div class="command"><pre tabindex="0"><code>{shown}</code></pre>'
        f'<button type="button" class="copy" aria-label="{name}">copy</button></div>'
    )


def listed(items: Iterable[str]) -> str:
    """Return pieces of HTML as a numbered list."""
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>"


def table(
    name: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[int] = (0,),
    cards: bool = False,
    chosen: Collection[int] = (),
) -> str:
    """Return a table called `name`, in a region that scrolls by itself.

    rows : cells as HTML. left : the columns of text; the others are numbers. cards : on a narrow screen each row is a
    block of its own, for rows that hold long texts. chosen : the rows that are marked.
    """
    kinds = [' class="t"' if i in left else "" for i in range(len(head))]
    heads = "".join(
        f'<th scope="col" role="columnheader"{kind}>{text(each)}</th>' for kind, each in zip(kinds, head, strict=True)
    )
    body = "".join(
        f'<tr role="row"{" class=chosen" if index in chosen else ""}>'
        + "".join(
            f'<td role="cell" data-label="{text(each)}"{kind}>{cell}</td>'
            for each, kind, cell in zip(head, kinds, row, strict=True)
        )
        + "</tr>\n"
        for index, row in enumerate(rows)
    )
    whole_ = (
        f'<table role="table"{" class=cards" if cards else ""} aria-label="{text(name)}">'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody role="rowgroup">\n{body}</tbody></table>'
    )
    return whole(name, whole_)


def whole(name: str, inner: str) -> str:
    """Return HTML that may be wider than the screen, in a region called `name` that scrolls by keys as well."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}">{inner}</div>'


def picture(name: str, svg: str) -> str:
    """Return a drawing (SVG) that was made for a white page, in the page's colors."""
    drawn = svg.replace("<svg ", f'<svg role="img" aria-label="{text(name)}" ', 1)
    return f'<figure class="picture">{whole(name, drawn)}</figure>'


def bar(name: str, used: int, limit: int) -> str:
    """Return how much of a memory is used, in bytes, as a bar and in words."""
    share = f"{100 * used / limit:.1f} %" if limit else "-"
    told = f"{used:,} of {limit:,} bytes, {share}"
    drawn = f'<meter min="0" max="{limit or 1}" value="{used}" aria-label="{text(name)}"></meter>'
    return f"<p><b>{text(name)}</b> {text(told)}<br>{drawn}</p>"
