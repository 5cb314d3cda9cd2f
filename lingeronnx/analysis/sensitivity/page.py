"""What `sensitivity` found as a section: the advice with its options, and the ranking.

Made of the two files that every run leaves, so that a report can take in what ran before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import read_user_file
from ...pages import PageSection, components
from ...pages import render_page as whole_page

__all__ = ["load_sensitivity_section", "render_sensitivity_page", "render_sensitivity_section"]

_MAX_FILE_BYTES = 1 << 26  # bytes of a file
_OPTIONS_MARKER = "add to quantize:"
_WEIGHT_BITS_COLUMN = "weight_bits"
_TEXT_COLUMNS = 3  # columns in front of the values


def render_sensitivity_section(text: str, rows: Sequence[Sequence[Any]]) -> PageSection:
    """Return the section; text : that of sensitive_ops.txt, rows : those of sensitive_ops.json."""
    first, *ranked = text.splitlines()[: len(rows) + 1]
    head, lines = first.split(), text.splitlines()[len(rows) + 1 :]
    words = parse_advised_options(text)
    html = [components.heading("What to add"), components.copyable_command(words)] if words else []
    said = [components.escape_text(line) for line in lines if line != f"  {words}"]
    html.append(f'<pre tabindex="0">{chr(10).join(said).strip()}</pre>')
    cells = [
        [
            *map(components.breakable_path, row[:_TEXT_COLUMNS]),
            *("-" if value is None else f"{value:.6g}" for value in row[_TEXT_COLUMNS:]),
        ]
        for row in rows
    ]
    if head[-1] == _WEIGHT_BITS_COLUMN:  # of the table alone, where some are not of 8 bits
        cells = [
            [*cell, components.escape_text(line.split()[-1])]
            for cell, line in zip(cells, ranked, strict=True)
        ]
    html += [
        components.heading("The ranking"),
        components.render_table("the ranking", head, cells, range(_TEXT_COLUMNS), cards=True),
    ]
    return PageSection(
        "sensitivity", "What quantizing each operator alone costs", "\n".join(html), list(rows)
    )


def parse_advised_options(text: str) -> str:
    """Return the options that the text of sensitive_ops.txt advises.

    Empty where it advises none.
    """
    _, found, rest = text.partition(_OPTIONS_MARKER)
    return rest.splitlines()[1].strip() if found else ""


def render_sensitivity_page(text: str, rows: Sequence[Sequence[Any]]) -> str:
    """Return the page of a run alone."""
    return whole_page(
        "Sensitivity", f"{len(rows)} trials", [render_sensitivity_section(text, rows)]
    )


def load_sensitivity_section(folder: str | os.PathLike[str]) -> tuple[PageSection, str]:
    """Return the section of an earlier run's folder, and the options it advises.

    ConfigError where it holds no run.
    """
    home = Path(folder)
    try:
        text = read_user_file(home / "sensitive_ops.txt", "the ranking", _MAX_FILE_BYTES).decode()
        rows = json.loads(
            read_user_file(home / "sensitive_ops.json", "the ranking", _MAX_FILE_BYTES)
        )
        return render_sensitivity_section(text, rows), parse_advised_options(text)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{folder} does not hold what sensitivity writes; run it again"
        ) from error
