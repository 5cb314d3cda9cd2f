"""The result of `sensitivity` as a page section: the advised options, and the ranking.

The section is made from two files written by every run, so that a report can include earlier runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...common.errors import ConfigError
from ...common.escaping import escape_html
from ...common.files import read_user_file
from ...common.pages import PageSection, components, render_page

__all__ = ["load_sensitivity_section", "render_sensitivity_page", "render_sensitivity_section"]

_MAX_FILE_BYTES = 1 << 26
_OPTIONS_MARKER = "add to quantize:"
_WEIGHT_BITS_COLUMN = "weight_bits"
_TEXT_COLUMNS = 3  # leading columns that are not values


def render_sensitivity_section(text: str, rows: Sequence[Sequence[Any]]) -> PageSection:
    """Render the text of sensitive_ops.txt and the rows of sensitive_ops.json as a page section.

    The data of the section are `rows`. `text` must begin with the table of these rows.
    """
    text_lines = text.splitlines()
    head = text_lines[0].split()
    row_lines, advice_lines = text_lines[1 : len(rows) + 1], text_lines[len(rows) + 1 :]
    options = parse_advised_options(text)
    blocks = []
    if options:
        blocks = [components.heading("Options to add"), components.copyable_command(options)]
    advice = [escape_html(line) for line in advice_lines if line != f"  {options}"]
    blocks.append(f'<pre tabindex="0">{chr(10).join(advice).strip()}</pre>')
    cells = [_render_cells(row) for row in rows]
    if head[-1] == _WEIGHT_BITS_COLUMN:  # only in the text, and only if not all have 8 bits
        for row_cells, line in zip(cells, row_lines, strict=True):
            row_cells.append(escape_html(line.split()[-1]))
    blocks += [
        components.heading("The ranking"),
        components.chart_host("sensitivity-bars", "sensitivity"),
        components.render_table("the ranking", head, cells, range(_TEXT_COLUMNS), cards=True),
    ]
    return PageSection(
        "sensitivity",
        "Loss by quantizing each operator alone",
        "\n".join(blocks),
        list(rows),
        script=(files(__package__) / "page.js").read_text(encoding="utf-8"),
        charts=("bars",),
    )


def _render_cells(row: Sequence[Any]) -> list[str]:
    """Return the HTML cells of a row: operator, kind and type, then values with six digits.

    A value of None becomes "-".
    """
    names = [components.breakable_path(name) for name in row[:_TEXT_COLUMNS]]
    return names + ["-" if value is None else f"{value:.6g}" for value in row[_TEXT_COLUMNS:]]


def parse_advised_options(text: str) -> str:
    """Return the options advised in the text of sensitive_ops.txt, or "".

    They are the line after "add to quantize:".
    """
    _, marker, advice = text.partition(_OPTIONS_MARKER)
    return advice.splitlines()[1].strip() if marker else ""


def render_sensitivity_page(text: str, rows: Sequence[Sequence[Any]]) -> str:
    """Render the ranking of a run of `sensitivity` as an HTML page.

    `text` is that of sensitive_ops.txt, `rows` are the trials of sensitive_ops.json.
    """
    section = render_sensitivity_section(text, rows)
    return render_page("Sensitivity", f"{len(rows)} trials", [section])


def load_sensitivity_section(folder: str | os.PathLike[str]) -> tuple[PageSection, str]:
    """Load the page section of an earlier run from its folder, and the options that it advises.

    Reads sensitive_ops.txt and sensitive_ops.json. The options are one line, "" for none.

    Raises
    ------
    ConfigError
        If the files are missing or damaged.
    """
    text_path, json_path = Path(folder) / "sensitive_ops.txt", Path(folder) / "sensitive_ops.json"
    try:
        text = read_user_file(text_path, "the ranking", _MAX_FILE_BYTES).decode()
        rows = json.loads(read_user_file(json_path, "the ranking", _MAX_FILE_BYTES))
        return render_sensitivity_section(text, rows), parse_advised_options(text)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{folder} does not contain the files of sensitivity; run it again"
        ) from error
