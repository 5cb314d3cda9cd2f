"""HTML elements of page sections: texts, lists, tables, figures, and commands with a copy button.

Every function takes plain texts and returns HTML. No text can end a tag, an attribute or a script.
Characters without a glyph, or that change the writing direction, are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..escaping import escape_html

__all__ = [
    "breakable_path",
    "chart_host",
    "collapsible",
    "copyable_command",
    "definition_list",
    "heading",
    "labelled_paragraph",
    "ordered_list",
    "paragraph",
    "render_table",
    "scroll_region",
    "select_button",
    "render_tiles",
    "svg_figure",
    "usage_bar",
]


def breakable_path(value: object) -> str:
    """Render a text as HTML in which narrow screens may break lines after a slash."""
    return escape_html(value).replace("/", "/<wbr>")


def chart_host(key: str, name: str) -> str:
    """Render the empty element with the id `key` that a script draws a chart into.

    name : name of the files that the chart can be saved as.
    """
    return f'<div class="chart" id="{escape_html(key)}" data-chart="{escape_html(name)}"></div>'


def collapsible(summary: str, inner: str) -> str:
    """Render `inner` (HTML) below a line that shows and hides it; hidden at first."""
    return f"<details><summary>{escape_html(summary)}</summary>\n{inner}\n</details>"


def heading(name: str) -> str:
    """Render a text as a heading within a section (h3), escaped."""
    return f"<h3>{escape_html(name)}</h3>"


def paragraph(value: object, kind: str = "") -> str:
    """Render a text as an HTML paragraph, escaped.

    kind : CSS class: "", "dim", "bad" or "good".
    """
    return f"<p{f' class={kind}' if kind else ''}>{escape_html(value)}</p>"


def labelled_paragraph(label: str, value: object) -> str:
    """Render an HTML paragraph that begins with a bold label; both texts are escaped."""
    return f"<p><b>{escape_html(label)}</b> {escape_html(value)}</p>"


def definition_list(rows: Iterable[tuple[str, object]]) -> str:
    """Render (name, value) pairs as HTML, escaped; an empty text if there are none."""
    pairs = "".join(
        f"<dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd>" for name, value in rows
    )
    return f"<dl>{pairs}</dl>" if pairs else ""


def copyable_command(command: str, label: str = "") -> str:
    """Render a shell command with a copy button; texts are escaped.

    label : name of the command for screen readers; by default the command itself.
    """
    button_label = escape_html(f"copy {label or command}")
    return (
        f'<div class="command"><pre tabindex="0"><code>{escape_html(command)}</code></pre>'
        f'<button type="button" class="copy" aria-label="{button_label}">copy</button></div>'
    )


def ordered_list(items: Iterable[str]) -> str:
    """Render HTML fragments, which are not escaped here, as a numbered list."""
    return f"<ol>{''.join(f'<li>{item}</li>' for item in items)}</ol>"


def render_table(
    name: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    text_columns: Collection[int] = (0,),
    cards: bool = False,
    selected_rows: Collection[int] = (),
) -> str:
    """Render a table in a region that scrolls by itself.

    Parameters
    ----------
    name
        Name of the table for screen readers.
    head
        Column titles as plain text.
    rows
        Cells as HTML, not escaped here.
    text_columns
        Indices of the columns of text; the others are numbers.
    cards
        Whether narrow screens show each row as a block, for rows with long texts.
    selected_rows
        Indices of the rows to highlight.
    """
    titles = [escape_html(title) for title in head]
    classes = [' class="t"' if index in text_columns else "" for index in range(len(head))]
    head_cells = "".join(
        f'<th scope="col" role="columnheader"{css_class}>{title}</th>'
        for css_class, title in zip(classes, titles, strict=True)
    )
    body = ""
    for index, row in enumerate(rows):
        cells = "".join(
            f'<td role="cell" data-label="{title}"{css_class}>{cell}</td>'
            for title, css_class, cell in zip(titles, classes, row, strict=True)
        )
        row_class = " class=chosen" if index in selected_rows else ""
        body += f'<tr role="row"{row_class}>{cells}</tr>\n'
    table_class = " class=cards" if cards else ""
    table = (
        f'<table role="table"{table_class} aria-label="{escape_html(name)}">'
        f'<thead role="rowgroup"><tr role="row">{head_cells}</tr></thead><tbody '
        f'role="rowgroup">\n{body}</tbody></table>'
    )
    return scroll_region(name, table)


def scroll_region(name: str, inner: str) -> str:
    """Render `inner` (HTML) in a region `name` that scrolls horizontally, also by keys."""
    return (
        '<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{escape_html(name)}">{inner}</div>'
    )


def render_tiles(tiles: Iterable[tuple[str, str, str, str]]) -> str:
    """Render (label, value, remark, CSS class) as tiles side by side; all texts are escaped."""
    parts = "".join(
        f'<div class="tile {escape_html(kind)}"><div class="dim">{escape_html(label)}</div>'
        f'<div class="big">{escape_html(value)}</div>'
        f'<div class="dim">{escape_html(remark)}</div></div>'
        for label, value, remark, kind in tiles
    )
    return f'<div class="tiles">{parts}</div>'


def select_button(tensor: str) -> str:
    """Render a button that shows a tensor in the graph of the network; "" without a tensor."""
    if not tensor:
        return ""
    label = escape_html(f"show {tensor} in the network")
    return (
        f' <button type="button" class="select" data-tensor="{escape_html(tensor)}" '
        f'aria-label="{label}">show</button>'
    )


def svg_figure(name: str, svg: str) -> str:
    """Render an SVG drawing, made for a white page, as a figure that scrolls and has a `name`.

    The page's style shows it in the colors of the page; `name` is for screen readers.
    """
    drawn = svg.replace("<svg ", f'<svg role="img" aria-label="{escape_html(name)}" ', 1)
    return f'<figure class="picture">{scroll_region(name, drawn)}</figure>'


def usage_bar(name: str, used: int, limit: int) -> str:
    """Return HTML with `used` of `limit` bytes and the percentage as text, and a meter below.

    The percentage is "-" if `limit` is 0. `name` is escaped.
    """
    percentage = f"{100 * used / limit:.1f} %" if limit else "-"
    text = f"{used:,} of {limit:,} bytes, {percentage}"
    meter = (
        f'<meter min="0" max="{limit or 1}" value="{used}" '
        f'aria-label="{escape_html(name)}"></meter>'
    )
    return f"<p><b>{escape_html(name)}</b> {escape_html(text)}<br>{meter}</p>"
